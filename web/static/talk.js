// The page: what people do and the server says, put together. The parts are in the other modules.

import { Conversation } from "./conversation.js";
import { Horizon } from "./horizon.js";
import { SpeechClock } from "./latency.js";
import { Line, LineTrouble } from "./line.js";
import { Media, MediaTrouble, soundIsPossible } from "./media.js";
import { Panel } from "./panel.js";
import { RATE, decodeAudio, newId } from "./protocol.js";
import { Tally } from "./tally.js";
import { Transcript } from "./transcript.js";
import { Banner, isHarmless, wordsFor } from "./trouble.js";

const FRAMES_WAITING_AT_MOST = 150; // 3 s of speech while the line is being opened
const IDLE_MS = 60000; // a line that nobody uses holds a place that others want
const CANCEL_WAIT_MS = 1000;
const ALIGNING_MS = 500; // the server needs a moment to find which words were played
const MODELS_AGAIN_MS = 2000;
const LINE_REASONS = ["lost", "full", "draining", "done", "policy", "key", "wrongKey"];

const page = new URL(".", document.baseURI);
const $ = (id) => document.getElementById(id);
const now = () => performance.now();

const clock = new SpeechClock();
const counters = { framesSent: 0, framesDropped: 0, interruptions: 0, sessions: 0, errors: [] };
const state = {
  talking: false,
  starting: false,
  muted: false,
  userSpeaking: false,
  awaiting: false, // a turn has ended and its answer makes no sound yet
  response: null, // the id of the response being made
  playing: null, // the id of the item being played
  interrupts: true,
  voiceIsFixed: false, // a session keeps its voice from its first sound on
  modelIsAbsent: false, // the server is there, its model not yet
  known: new Set(), // the items that the present session has
  responseDone: null,
  idleTimer: 0,
  countdown: 0,
};
let waitingFrames = [];
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
  frame: frameCaptured,
  position: ({ id, playedMs, level }) => {
    horizon.level("voice", level);
    if (id !== null) conversation.played(id, playedMs);
  },
  started: (id) => {
    state.playing = id;
    state.awaiting = false;
    if (banner.reason === "absent") banner.hide();
    conversation.audioStarted(id, now() + media.outputLatencyMs);
    show();
  },
  played: (id, playedMs) => {
    conversation.played(id, playedMs, true);
    if (state.playing === id) state.playing = null;
    show();
  },
  rest: () => {
    horizon.level("voice", 0);
    show();
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
const line = new Line({
  page,
  probe: () => panel.load(),
  told: { state: lineChanged, begun: sessionBegun, event: serverSaid },
});

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
});

// --- the line ---

function lineChanged(name, { reason, detail, retryInMs } = {}) {
  clearInterval(state.countdown);
  if (name !== "open") {
    state.response = null;
    state.responseDone?.();
    state.userSpeaking = false;
    if (name !== "connecting") state.awaiting = false;
    for (const id of conversation.lineLost()) media.finish(id);
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
    linkWords({ closed: "Not connected", connecting: "Connecting…", open: "Connected" }[name]);
  }
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

async function connect() {
  line.configure({ model: panel.model, key: panel.key });
  await line.connect();
}

function sessionBegun(realtime) {
  counters.sessions += 1;
  clock.reset();
  state.known.clear();
  state.voiceIsFixed = false;
  realtime.updateSession(panel.session());
  for (const item of conversation.history()) {
    realtime.createItem(item);
    state.known.add(item.id);
  }
  sendWaitingFrames();
  idleSoon();
}

/** Give the line back when nobody has used it for a while; what was said is remembered here. */
function idleSoon() {
  clearTimeout(state.idleTimer);
  state.idleTimer = setTimeout(() => {
    if (line.state !== "open") return;
    if (state.talking || state.response !== null || state.playing !== null) idleSoon();
    else line.close();
  }, IDLE_MS);
}

// --- what the server says ---

function serverSaid(event, realtime) {
  conversation.receive(event, now());
  const act = {
    "session.created": sessionKnown,
    "session.updated": sessionKnown,
    "input_audio_buffer.speech_started": speechStarted,
    "input_audio_buffer.speech_stopped": speechStopped,
    "response.created": ({ response }) => {
      if (response.conversation_id !== null) state.response = response.id;
      state.awaiting = true;
    },
    "response.output_audio.delta": audioArrived,
    "response.output_audio.done": ({ item_id: id }) => media.finish(id),
    "response.done": responseDone,
    "conversation.item.truncated": ({ item_id: id }) => {
      setTimeout(() => line.realtime === realtime && realtime.retrieveItem(id), ALIGNING_MS);
    },
    error: serverComplained,
  }[event.type];
  act?.(event);
  if (event.type !== "response.output_audio.delta") show();
}

function sessionKnown({ session }) {
  state.interrupts = session.audio?.input?.turn_detection?.interrupt_response !== false;
}

function speechStarted({ item_id: id }) {
  state.userSpeaking = true;
  state.awaiting = false;
  conversation.speechStarted(id);
  if (state.interrupts) attempt(interrupt());
}

function speechStopped({ item_id: id, audio_end_ms: audioEndMs }) {
  state.userSpeaking = false;
  state.awaiting = true;
  conversation.speechStopped(id, clock.endOfSpeech(audioEndMs, now()));
}

function audioArrived({ item_id: id, response_id: response, content_index: content, delta }) {
  const pcm = decodeAudio(delta);
  state.voiceIsFixed = true;
  if (conversation.audioArrived(id, response, (pcm.length * 1000) / RATE)) {
    media.play(id, content, pcm);
  }
}

function responseDone({ response }) {
  for (const item of response.output ?? []) media.finish(item.id);
  if (state.response === response.id) state.response = null;
  const silent = response.status !== "completed" || !soundIsPossible();
  if (silent && !state.userSpeaking && state.playing === null) state.awaiting = false;
  state.responseDone?.();
  if (response.status === "failed") {
    const { code, message } = response.status_details?.error ?? {};
    if (code === "engine_unavailable") banner.tell("absent");
    else banner.say("The answer failed.", message ?? "Say or type it again.");
  }
  idleSoon();
}

function serverComplained({ error }) {
  if (isHarmless(error)) return;
  counters.errors.push(error.code ?? error.type);
  if (error.code === "engine_unavailable") banner.tell("absent");
  else banner.say("The server did not accept something.", error.message);
}

// --- speaking and interrupting ---

function frameCaptured({ pcm, level }) {
  horizon.level("you", state.muted ? 0 : level);
  waitingFrames.push({ pcm, level, at: now() });
  if (line.state === "open") {
    sendWaitingFrames();
  } else if (waitingFrames.length > FRAMES_WAITING_AT_MOST) {
    waitingFrames.shift();
    counters.framesDropped += 1;
  }
}

function sendWaitingFrames() {
  for (const { pcm, level, at } of waitingFrames) {
    if (line.realtime.append(pcm) === null) counters.framesDropped += 1;
    else {
      clock.sent(level, at);
      counters.framesSent += 1;
    }
  }
  waitingFrames = [];
}

/** Silence within 10 ms, and the server is told what was heard of it. */
async function interrupt() {
  if (state.response !== null) conversation.cutResponse(state.response);
  const cut = await media.flush();
  for (const { id, content, playedMs } of cut) {
    conversation.cut(id, playedMs);
    if (state.known.has(id)) rewrite(id);
    else line.realtime?.truncateItem(id, content, playedMs);
  }
  if (cut.length > 0) counters.interruptions += 1;
  state.playing = null;
  show();
}

/** What an earlier session said is mere text to this one, which can't truncate it. */
function rewrite(id) {
  line.realtime?.deleteItem(id);
  const message = conversation.message(id);
  if (message !== null) line.realtime?.createItem(message, conversation.before(id));
}

/** Stop the voice because the user wants it, not because the server heard them speak. */
async function hush() {
  const response = state.response;
  await interrupt();
  state.awaiting = false;
  if (response === null || line.state !== "open") return;
  const done = new Promise((resolve) => (state.responseDone = resolve));
  line.realtime.cancelResponse(response);
  await Promise.race([done, new Promise((resolve) => setTimeout(resolve, CANCEL_WAIT_MS))]);
  state.responseDone = null;
}

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
}

function stopTalking() {
  state.talking = false;
  state.starting = false;
  state.userSpeaking = false;
  setMuted(false);
  media.closeMicrophone();
  if (navigator.audioSession) navigator.audioSession.type = "auto";
  horizon.level("you", 0);
  waitingFrames = [];
  attempt(wakeLock?.release());
  wakeLock = null;
  line.realtime?.clearInput();
  attempt(hush());
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
  const id = newId("item_");
  const silenced = hush();
  conversation.typed(id, text, now());
  state.awaiting = true;
  show();
  await Promise.all([silenced, connect()]);
  const { realtime } = line;
  if (!state.known.has(id)) realtime.createItem(conversation.message(id));
  state.known.add(id);
  conversation.item(id).turn.endedAt = now();
  conversation.item(id).turn.transcriptAt = now();
  state.awaiting = true;
  realtime.createResponse();
  show();
}

// --- settings ---

async function settingChanged(what) {
  switch (what) {
    case "model":
      if (line.state === "open") await renew();
      break;
    case "voice":
      if (line.state === "open" && state.voiceIsFixed) await renew();
      else if (line.state === "open") line.realtime.updateSession(panel.session());
      break;
    case "turns":
    case "instructions":
      if (line.state === "open") line.realtime.updateSession(panel.session());
      break;
    case "microphone":
    case "clean":
      if (media.microphoneIsOpen) await openMicrophone();
      break;
    case "speaker":
      await media.chooseSpeaker(panel.speaker);
      break;
  }
  show();
}

async function renew() {
  await interrupt();
  line.configure({ model: panel.model, key: panel.key });
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
  if (line.state === "connecting" && (state.talking || state.awaiting)) return "Connecting…";
  if (line.state === "waiting") return "The line is down";
  if (state.playing !== null) return "Speaking";
  if (state.userSpeaking) return "Hearing you";
  if (state.awaiting) return "Thinking";
  if (state.talking) return state.muted ? "Muted" : "Listening";
  return state.modelIsAbsent ? "The model is starting…" : "Press to talk";
}

function show() {
  const words = activity();
  if ($("status").textContent !== words) $("status").textContent = words;
  const on = state.talking || state.starting;
  const talk = $("talk");
  talk.setAttribute("aria-pressed", String(on));
  talk.setAttribute("aria-label", on ? "Stop talking" : "Start talking");
  talk.setAttribute("aria-busy", String(on && line.state !== "open"));
  $("mute").disabled = !state.talking;
  $("mute").setAttribute("aria-pressed", String(state.muted));
  $("hush").disabled = state.playing === null && state.response === null;
  $("voice-name").textContent = panel.voiceName;
  tally.show();
}

// --- people ---

$("talk").addEventListener("click", toggleTalking);
$("mute").addEventListener("click", () => setMuted(!state.muted));
$("hush").addEventListener("click", () => attempt(hush()));
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
  if (event.key === "Escape" && !$("hush").disabled) attempt(hush());
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
  const { talking, muted, userSpeaking, response, playing } = state;
  const seen = { activity: activity(), line: line.state, trouble: banner.reason };
  return { ...seen, talking, muted, userSpeaking, response, playing };
});

await loadModels();
await refreshDevices();
show();
