// The page: what people do and the server says, put together. The parts are in the other modules.

import { Call, RealtimeSignals, callIsPossible } from "./call.js";
import { Camera, cameraIsPossible } from "./camera.js";
import { Conversation } from "./conversation.js";
import { Duplex } from "./duplex.js";
import { Horizon } from "./horizon.js";
import { Line, LineTrouble } from "./line.js";
import { Live, LiveSignals } from "./live.js";
import { Media, MediaTrouble, soundIsPossible } from "./media.js";
import { Panel } from "./panel.js";
import { Realtime } from "./protocol.js";
import { Quality } from "./quality.js";
import { Socket } from "./socket.js";
import { Tally } from "./tally.js";
import { Transcript } from "./transcript.js";
import { Banner, wordsFor } from "./trouble.js";
import { Turns } from "./turns.js";

const IDLE_MS = 60000; // a line that nobody uses holds a place that others want
const MODELS_AGAIN_MS = 2000;
const QUALITY_MS = 1000;
const LINE_REASONS = ["lost", "full", "draining", "done", "policy", "key", "wrongKey"];
const KINDS = { webrtc: "WebRTC", websocket: "WebSocket" };

const page = new URL(".", document.baseURI);
const $ = (id) => document.getElementById(id);
const now = () => performance.now();

const counters = { framesSent: 0, framesDropped: 0, interruptions: 0, sessions: 0, errors: [] };
const state = {
  talking: false,
  starting: false,
  muted: false,
  modelIsAbsent: false, // the server is there, its model not yet
  fellBack: "", // why there is no call
  idleTimer: 0,
  qualityTimer: 0,
  countdown: 0,
};
let quality = new Quality();
let wakeLock = null;

const banner = new Banner({
  box: $("trouble"),
  title: $("trouble-title"),
  advice: $("trouble-advice"),
  act: $("trouble-act"),
  close: $("trouble-close"),
});
const panel = new Panel({
  form: $("settings"),
  statement: $("statement"),
  only: $("only-model"),
  page,
  changed: (what) => attempt(settingChanged(what)),
});
const horizon = new Horizon($("levels"), $("talk"));
const transcript = new Transcript({
  list: $("lines"),
  scroller: $("scroller"),
  announcer: $("announcer"),
  names: () => ({ you: "You", voice: panel.voiceName }),
});
const conversation = new Conversation({
  added: (item) => {
    $("opening").hidden = true;
    transcript.added(item);
  },
  removed: (item) => transcript.removed(item),
  changed: (item) => transcript.changed(item),
});
transcript.show(conversation);
const media = new Media({
  position: (place) => talk.position(place),
  started: (id) => talk.started(id),
  played: (id, playedMs) => talk.played(id, playedMs),
  rest: () => talk.rest(),
  frame: (frame) => {
    horizon.level("you", state.muted ? 0 : frame.level);
    talk.frame(frame);
  },
  underrun: show,
  microphoneLost: () => {
    stopTalking();
    banner.tell("unplugged");
    attempt(refreshDevices());
  },
  contextState: (name) => {
    // iOS takes the sound away for a call and gives it back without asking.
    if (name === "interrupted" && state.talking) attempt(media.prepare());
  },
});
const camera = new Camera({
  view: $("self"),
  lost: () => {
    attempt(line.call?.useCamera(null));
    banner.tell("camera:unplugged");
    show();
  },
});
const line = new Line({
  carriers,
  probe: () => panel.load(),
  isWell: () => panel.isWell,
  told: { state: lineChanged, begun: sessionBegun, event: serverSaid, fellBack },
});
const parts = {
  conversation,
  media,
  line,
  panel,
  counters,
  banner,
  report: attempt,
  changed: show,
  level: (level) => horizon.level("voice", level),
};
const modes = { turns: new Turns(parts), duplex: new Duplex(parts) };
let talk = modes[panel.mode];
const tally = new Tally({
  conversation,
  media,
  counters,
  parts: {
    wait: $("tally-wait"),
    turns: $("tally-turns"),
    interruptions: $("tally-interruptions"),
    gaps: $("tally-gaps"),
  },
  line: {
    kind: $("line-kind"),
    loss: $("line-loss"),
    jitter: $("line-jitter"),
    trip: $("line-trip"),
    concealed: $("line-concealed"),
  },
});

/** The ways to the server, best first: a call where the browser can make one and hear it. */
function carriers() {
  const { model, key, iceServers } = panel;
  const duplex = talk === modes.duplex;
  const session = duplex ? Duplex.session(panel, conversation) : null;
  const overSocket = () => {
    if (duplex) return new Live(new Socket({ page, path: "v1/live/sessions", key }), session);
    return new Realtime(new Socket({ page, path: "v1/realtime", model, key }));
  };
  const overCall = () => {
    const signals = duplex
      ? new LiveSignals({ page, key, session })
      : new RealtimeSignals({ page, model, key });
    const call = new Call({ signals, iceServers });
    return duplex ? new Live(call, null) : new Realtime(call);
  };
  const socket = { kind: "websocket", dial: overSocket };
  return callsAreWanted() ? [{ kind: "webrtc", dial: overCall }, socket] : [socket];
}

function callsAreWanted() {
  return panel.line !== "websocket" && callIsPossible() && soundIsPossible();
}

// --- the line ---

function lineChanged(name, { reason, detail, retryInMs } = {}) {
  clearInterval(state.countdown);
  if (name !== "open") {
    talk.lost(name === "connecting");
    clearInterval(state.qualityTimer);
    media.unhear();
  }
  if (name === "open" && LINE_REASONS.includes(banner.reason)) banner.hide();
  if (name === "waiting") {
    const due = now() + retryInMs;
    const tell = () => {
      const left = Math.max(1, Math.ceil((due - now()) / 1000));
      linkWords(`Trying again in ${left} s`);
    };
    state.countdown = setInterval(tell, 500);
    banner.tell(reason, detail, () => line.hurry());
    tell();
  } else {
    const words = { closed: "Not connected", connecting: "Connecting…", open: "Connected by" };
    linkWords(words[name]);
  }
  $("link-way").textContent = KINDS[line.kind] ?? "";
  $("link").dataset.state = name;
  if (name === "closed" && reason) {
    if (state.talking) stopTalking();
    lineFailed(new LineTrouble(reason, detail));
  }
  show();
}

function lineFailed({ reason, detail }) {
  if (reason === "closed") return;
  if (reason === "refused") askForKey(panel.key !== "");
  else banner.tell(reason, detail, () => attempt(connect()));
}

/** A call could not be set up: the same conversation is held over a WebSocket, without pictures. */
function fellBack(_kind, reason) {
  state.fellBack = reason;
  closeCamera();
}

async function connect() {
  await line.connect();
}

function sessionBegun(wire) {
  counters.sessions += 1;
  if (line.call !== null) {
    state.fellBack = "";
    callBegun(line.call);
  }
  talk.begun(wire);
  idleSoon();
}

function callBegun(call) {
  quality = new Quality();
  state.qualityTimer = setInterval(() => attempt(measure(call)), QUALITY_MS);
  attempt(media.hear(call.sound));
  if (call.seen) attempt(call.useCamera(camera.track));
  else closeCamera();
}

async function measure(call) {
  quality.sample(await call.stats());
  media.callDelayMs = quality.now.delayMs ?? 0;
  tally.showLine(line.kind, quality.now, state.fellBack);
}

/** Give the line back when nobody has used it for a while; what was said is remembered here. */
function idleSoon() {
  clearTimeout(state.idleTimer);
  state.idleTimer = setTimeout(() => {
    if (line.state !== "open") return;
    if (state.talking || talk.busy || camera.track !== null) idleSoon();
    else line.close();
  }, IDLE_MS);
}

function serverSaid(event, wire) {
  talk.said(event, wire);
  if (event.type === "response.done") idleSoon();
}

// --- speaking ---

async function startTalking() {
  if (state.talking || state.starting) return;
  banner.hide();
  state.starting = true;
  show();
  try {
    if (navigator.audioSession) navigator.audioSession.type = "play-and-record";
    await openMicrophone();
    if (!state.starting) return media.closeMicrophone();
    state.talking = true;
    attempt(refreshDevices());
    attempt(keepAwake());
    await connect();
  } finally {
    state.starting = false;
    show();
  }
}

async function openMicrophone() {
  const { microphone, clean } = panel;
  try {
    await media.openMicrophone({ deviceId: microphone, clean });
  } catch (error) {
    if (error.reason !== "gone" || microphone === "") throw error;
    panel.forgetMicrophone();
    await media.openMicrophone({ deviceId: "", clean });
  }
  talk.microphoneChanged();
}

function stopTalking() {
  state.talking = false;
  state.starting = false;
  setMuted(false);
  media.closeMicrophone();
  talk.microphoneChanged();
  if (navigator.audioSession) navigator.audioSession.type = "auto";
  horizon.level("you", 0);
  attempt(wakeLock?.release());
  wakeLock = null;
  talk.silent();
  attempt(talk.hush());
  if (line.state === "waiting" || line.state === "connecting") line.close();
  idleSoon();
  show();
}

function toggleTalking() {
  if (state.talking || state.starting) stopTalking();
  else attempt(startTalking());
}

function setMuted(muted) {
  state.muted = muted;
  media.mute(muted);
  show();
}

async function keepAwake() {
  try {
    wakeLock = await navigator.wakeLock?.request("screen");
  } catch {
    wakeLock = null; // a low battery may refuse it
  }
}

async function sendTyped(text) {
  if (soundIsPossible()) await media.prepare();
  else if (talk === modes.duplex) throw new MediaTrouble("insecure");
  await talk.type(text, connect);
}

// --- the camera ---

async function toggleCamera() {
  if (camera.track !== null) {
    closeCamera();
    return;
  }
  if (!(await camera.open())) return;
  if (line.call?.seen) await line.call.useCamera(camera.track);
  else camera.close();
  show();
}

function closeCamera() {
  camera.close();
  attempt(line.call?.useCamera(null));
  show();
}

// --- settings ---

async function settingChanged(what) {
  switch (what) {
    case "microphone":
    case "clean":
      if (media.microphoneIsOpen) await openMicrophone();
      break;
    case "speaker":
      await media.chooseSpeaker(panel.speaker);
      break;
    case "mode":
      await changeMode();
      break;
    default:
      if (line.state === "open" && talk.settingChanged(what)) await renew();
  }
  show();
}

/** The same conversation goes on in turns, or in full duplex. */
async function changeMode() {
  const open = line.state === "open";
  await talk.interrupt();
  if (line.state !== "closed") line.close();
  talk = modes[panel.mode];
  if (open) await line.connect();
}

async function renew() {
  await talk.interrupt();
  await line.renew();
}

/** A server that is still starting has no models to tell yet: it is asked again. */
async function loadModels() {
  const answer = await panel.load();
  state.modelIsAbsent = answer === "full";
  if (answer === "refused") askForKey(panel.key !== "");
  else if (answer !== "well") setTimeout(() => attempt(loadModels()), MODELS_AGAIN_MS);
  show();
}

async function refreshDevices() {
  panel.showDevices(await media.devices());
  if (panel.speaker) await media.chooseSpeaker(panel.speaker);
}

// --- trouble ---

/** Run something whose failure people should read about. */
async function attempt(promise) {
  try {
    await promise;
  } catch (error) {
    if (error instanceof MediaTrouble) {
      const retry = state.talking ? null : () => attempt(startTalking());
      banner.tell(error.reason, "", retry);
    } else if (!(error instanceof LineTrouble)) {
      counters.errors.push(String(error));
      banner.say(
        "Something in this page went wrong.",
        "Reload it; the conversation starts afresh.",
      );
      console.error(error);
    }
  }
}

function askForKey(wrong) {
  const { title, advice } = wordsFor(wrong ? "wrongKey" : "key");
  $("ask-key-title").textContent = title;
  $("ask-key-advice").textContent = advice;
  banner.tell(wrong ? "wrongKey" : "key", "", () => askForKey(wrong));
  if (!$("ask-key").open) $("ask-key").showModal();
}

async function keyGiven() {
  panel.keepKey($("key").value.trim());
  $("key").value = "";
  $("ask-key").close();
  if ((await panel.load()) === "refused") askForKey(true);
  else banner.hide();
  show();
}

// --- what is shown ---

function linkWords(words) {
  $("link-words").textContent = words;
}

function activity() {
  if (state.starting && !state.talking) return "Opening the microphone…";
  const wanted = state.talking || talk.awaiting;
  if (line.state === "connecting" && wanted) return "Connecting…";
  if (line.state === "waiting") return "The line is down";
  if (talk.activity !== null) return talk.activity;
  if (state.talking) return state.muted ? "Muted" : "Listening";
  return state.modelIsAbsent ? "The model is starting…" : "Press to talk";
}

function show() {
  const words = activity();
  if ($("status").textContent !== words) $("status").textContent = words;
  const on = state.talking || state.starting;
  const button = $("talk");
  button.setAttribute("aria-pressed", String(on));
  button.setAttribute("aria-label", on ? "Stop talking" : "Start talking");
  button.setAttribute("aria-busy", String(on && line.state !== "open"));
  $("mute").disabled = !state.talking;
  $("mute").setAttribute("aria-pressed", String(state.muted));
  $("hush").disabled = !talk.busy;
  $("voice-name").textContent = panel.voiceName;
  showCamera();
  tally.show();
  tally.showLine(line.kind, quality.now, state.fellBack);
}

/** A camera is only of use in a call to a model that sees: elsewhere there is no button for it. */
function showCamera() {
  const button = $("camera");
  const way = callsAreWanted() && state.fellBack === "";
  button.hidden = !way || !cameraIsPossible() || (line.state === "open" && !line.call?.seen);
  button.disabled = line.call === null;
  const on = camera.track !== null;
  const words = on ? "Turn the camera off" : "Show it your camera";
  button.setAttribute("aria-pressed", String(on));
  button.setAttribute("aria-label", words);
  button.title = words;
}

// --- people ---

$("talk").addEventListener("click", toggleTalking);
$("mute").addEventListener("click", () => setMuted(!state.muted));
$("camera").addEventListener("click", () => attempt(toggleCamera()));
$("hush").addEventListener("click", () => attempt(talk.hush()));
$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("words").value.trim();
  if (text === "") return;
  $("words").value = "";
  attempt(sendTyped(text));
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(keyGiven());
});
$("key-cancel").addEventListener("click", () => $("ask-key").close());
$("open-panel").addEventListener("click", () => $("panel").showModal());
$("close-panel").addEventListener("click", () => $("panel").close());
$("panel").addEventListener("click", ({ target }) => {
  if (target === $("panel") && !wide.matches) $("panel").close();
});
document.addEventListener("keydown", (event) => {
  const elsewhere = event.target.closest("input, textarea, select, button, dialog[open] *");
  if (event.code === "Space" && !elsewhere && !event.repeat) {
    event.preventDefault();
    toggleTalking();
  }
  if (event.key === "Escape" && !$("hush").disabled) attempt(talk.hush());
});
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && state.talking) attempt(keepAwake());
});
window.addEventListener("online", () => line.hurry());
window.addEventListener("pagehide", () => {
  if (state.talking || state.starting) stopTalking();
  line.close();
});
navigator.mediaDevices?.addEventListener?.("devicechange", () => attempt(refreshDevices()));

// Wide windows have the settings beside the script, narrow ones in a dialog.
const wide = matchMedia("(min-width: 1080px)");
function placePanel() {
  if ($("panel").open) $("panel").close();
  if (wide.matches) $("panel").setAttribute("open", "");
}
wide.addEventListener("change", placePanel);
placePanel();

window.duologue = tally.published(() => {
  const { talking, muted, fellBack } = state;
  const { userSpeaking, response, playing } = talk;
  const seen = { activity: activity(), line: line.state, trouble: banner.reason };
  const way = { kind: line.kind, fellBack, quality: quality.now, camera: camera.track !== null };
  return { mode: panel.mode, ...seen, ...way, talking, muted, userSpeaking, response, playing };
});

await loadModels();
await refreshDevices();
show();
