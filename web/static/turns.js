// A conversation in turns: what the Realtime protocol says, and what is done about it.

import { SpeechClock } from "./latency.js";
import { soundIsPossible } from "./media.js";
import { Playhead } from "./playhead.js";
import { RATE, decodeAudio, newId } from "./protocol.js";
import { isHarmless } from "./trouble.js";

const FRAMES_WAITING_AT_MOST = 400; // 8 s of speech while the line is being opened
const CANCEL_WAIT_MS = 1000;
const ALIGNING_MS = 500; // the server needs a moment to find which words were played

const now = () => performance.now();

/**
 * Over a WebSocket the sound is played here, and an interruption is told to the server; over a call
 * the server plays out, interrupts by itself, and tells. `report` runs a promise whose failure
 * people should read about; `changed()` shows the page anew, `level(level)` how loud the voice is.
 */
export class Turns {
  userSpeaking = false;
  awaiting = false; // a turn has ended and its answer makes no sound yet
  response = null; // the id of the response being made
  playing = null; // the id of the item being played
  #conversation;
  #media;
  #line;
  #panel;
  #counters;
  #banner;
  #report;
  #changed;
  #level;
  #playhead;
  #clock = new SpeechClock();
  #interrupts = true;
  #voiceIsFixed = false; // a session keeps its voice from its first sound on
  #known = new Set(); // the items that the present session has
  #responseDone = null;
  #frames = []; // captured and not sent yet

  constructor({ conversation, media, line, panel, counters, banner, report, changed, level }) {
    this.#conversation = conversation;
    this.#media = media;
    this.#line = line;
    this.#panel = panel;
    this.#counters = counters;
    this.#banner = banner;
    this.#report = report;
    this.#changed = changed;
    this.#level = level;
    this.#playhead = new Playhead({ now, level: () => media.heardLevel, told: this });
  }

  get busy() {
    return this.response !== null || this.playing !== null;
  }

  /** One word on what happens, or null when nothing does. */
  get activity() {
    if (this.playing !== null) return "Speaking";
    if (this.userSpeaking) return "Hearing you";
    return this.awaiting ? "Thinking" : null;
  }

  // --- the line ---

  /** A session is there: it is told the settings, and what was said before. */
  begun(wire) {
    this.#clock.reset();
    this.#known.clear();
    this.#voiceIsFixed = false;
    wire.updateSession(this.#panel.session());
    for (const item of this.#conversation.history()) {
      wire.createItem(item);
      this.#known.add(item.id);
    }
    this.#sendFrames(wire);
    this.microphoneChanged();
  }

  /** Speak into the present call with the present microphone. */
  microphoneChanged() {
    this.#report(this.#line.call?.useMicrophone(this.#media.microphone));
  }

  lost(connecting) {
    this.response = null;
    this.#responseDone?.();
    this.userSpeaking = false;
    this.#playhead.stop();
    if (!connecting) this.awaiting = false;
    for (const id of this.#conversation.lineLost()) this.#media.finish(id);
    // What the server played is gone with it; what is played here goes on to its end.
    if (this.playing !== null && !this.#media.plays(this.playing)) this.playing = null;
  }

  // --- what the server says ---

  said(event, wire) {
    this.#conversation.receive(event, now());
    this.#playhead.receive(event);
    const act = {
      "session.created": (said) => this.#sessionKnown(said),
      "session.updated": (said) => this.#sessionKnown(said),
      "input_audio_buffer.speech_started": (said) => this.#speechStarted(said),
      "input_audio_buffer.speech_stopped": (said) => this.#speechStopped(said),
      "response.created": ({ response }) => {
        if (response.conversation_id !== null) this.response = response.id;
        this.awaiting = true;
      },
      "response.output_audio.delta": (said) => this.#audioArrived(said),
      "response.output_audio.done": ({ item_id: id }) => this.#media.finish(id),
      "response.done": (said) => this.#done(said),
      "output_audio_buffer.started": () => (this.#voiceIsFixed = true),
      "output_audio_buffer.cleared": () => {
        this.#counters.interruptions += 1;
        this.playing = null;
      },
      "conversation.item.truncated": ({ item_id: id }) => {
        setTimeout(() => this.#line.wire === wire && wire.retrieveItem(id), ALIGNING_MS);
      },
      error: (said) => this.#complained(said),
    }[event.type];
    act?.(event);
    if (event.type !== "response.output_audio.delta") this.#changed();
  }

  #sessionKnown({ session }) {
    this.#interrupts = session.audio?.input?.turn_detection?.interrupt_response !== false;
  }

  #speechStarted({ item_id: id }) {
    this.userSpeaking = true;
    this.awaiting = false;
    this.#conversation.speechStarted(id);
    if (this.#interrupts && this.#line.call === null) this.#report(this.interrupt());
  }

  #speechStopped({ item_id: id, audio_end_ms: audioEndMs }) {
    this.userSpeaking = false;
    this.awaiting = true;
    // A call's sound is not counted by us: what was voiced last is what ended.
    const place = this.#line.call === null ? audioEndMs : null;
    this.#conversation.speechStopped(id, this.#clock.endOfSpeech(place, now()));
  }

  #audioArrived({ item_id: id, response_id: response, content_index: content, delta }) {
    const pcm = decodeAudio(delta);
    this.#voiceIsFixed = true;
    if (this.#conversation.audioArrived(id, response, (pcm.length * 1000) / RATE)) {
      this.#media.play(id, content, pcm);
    }
  }

  #done({ response }) {
    for (const item of response.output ?? []) this.#media.finish(item.id);
    if (this.response === response.id) this.response = null;
    const silent = response.status !== "completed" || !soundIsPossible();
    if (silent && !this.userSpeaking && this.playing === null) this.awaiting = false;
    this.#responseDone?.();
    if (response.status !== "failed") return;
    const { code, message } = response.status_details?.error ?? {};
    if (code === "engine_unavailable") this.#banner.tell("absent");
    else this.#banner.say("The answer failed.", message ?? "Say or type it again.");
  }

  #complained({ error }) {
    if (isHarmless(error)) return;
    this.#counters.errors.push(error.code ?? error.type);
    if (error.code === "engine_unavailable") this.#banner.tell("absent");
    else this.#banner.say("The server did not accept something.", error.message);
  }

  // --- what is played, whoever plays it ---

  position({ id, playedMs, level }) {
    this.#level(level);
    if (id !== null) this.#conversation.played(id, playedMs);
  }

  started(id) {
    this.playing = id;
    this.awaiting = false;
    if (this.#banner.reason === "absent") this.#banner.hide();
    this.#conversation.audioStarted(id, now() + this.#media.delayMs(this.#line.call !== null));
    this.#changed();
  }

  played(id, playedMs) {
    this.#conversation.played(id, playedMs, true);
    if (this.playing === id) this.playing = null;
    this.#changed();
  }

  rest() {
    this.#level(0);
    this.#changed();
  }

  /** The server has cut off what it played. */
  cut(id, playedMs) {
    if (this.#line.call !== null) this.#conversation.cut(id, playedMs);
  }

  // --- speaking ---

  /** 20 ms of the microphone. */
  frame({ pcm, level }) {
    this.#frames.push({ pcm, level, at: now() });
    if (this.#line.call !== null) {
      // The call takes the microphone itself; only when people fell silent is to be known here.
      for (const { level: loud, at } of this.#frames) this.#clock.sent(loud, at);
      this.#frames = [];
    } else if (this.#line.state === "open") {
      this.#sendFrames(this.#line.wire);
    } else if (this.#frames.length > FRAMES_WAITING_AT_MOST) {
      this.#frames.shift();
      this.#counters.framesDropped += 1;
    }
  }

  #sendFrames(wire) {
    for (const { pcm, level, at } of this.#frames) {
      if (wire.append(pcm) === null) this.#counters.framesDropped += 1;
      else {
        this.#clock.sent(level, at);
        this.#counters.framesSent += 1;
      }
    }
    this.#frames = [];
  }

  /** The microphone was closed. */
  silent() {
    this.userSpeaking = false;
    this.#frames = [];
    this.#line.wire?.clearInput();
  }

  // --- interrupting ---

  /** Silence within 10 ms, and the server is told what was heard of it. */
  async interrupt() {
    if (this.response !== null) this.#conversation.cutResponse(this.response);
    if (this.#line.call !== null && this.playing !== null) this.#line.wire.clearOutput();
    const cut = await this.#media.flush();
    for (const { id, content, playedMs } of cut) {
      this.#conversation.cut(id, playedMs);
      if (this.#known.has(id)) this.#rewrite(id);
      else this.#line.wire?.truncateItem(id, content, playedMs);
    }
    if (cut.length > 0) this.#counters.interruptions += 1;
    this.playing = null;
    this.#changed();
  }

  /** What an earlier session said is mere text to this one, which can't truncate it. */
  #rewrite(id) {
    this.#line.wire?.deleteItem(id);
    const message = this.#conversation.message(id);
    if (message !== null) this.#line.wire?.createItem(message, this.#conversation.before(id));
  }

  /** Stop the voice because the user wants it, not because the server heard them speak. */
  async hush() {
    const { response } = this;
    await this.interrupt();
    this.awaiting = false;
    if (response === null || this.#line.state !== "open") return;
    const done = new Promise((resolve) => (this.#responseDone = resolve));
    this.#line.wire.cancelResponse(response);
    await Promise.race([done, new Promise((resolve) => setTimeout(resolve, CANCEL_WAIT_MS))]);
    this.#responseDone = null;
  }

  // --- typing ---

  /** `connect()` resolves when a session is there. */
  async type(text, connect) {
    const id = newId("item_");
    const silenced = this.hush();
    this.#conversation.typed(id, text, now());
    this.awaiting = true;
    this.#changed();
    await Promise.all([silenced, connect()]);
    const { wire } = this.#line;
    if (!this.#known.has(id)) wire.createItem(this.#conversation.message(id));
    this.#known.add(id);
    this.#conversation.item(id).turn.endedAt = now();
    this.#conversation.item(id).turn.transcriptAt = now();
    this.awaiting = true;
    wire.createResponse();
    this.#changed();
  }

  // --- settings ---

  /** Whether a session must be made anew for it; what it can take is told to it. */
  settingChanged(what) {
    if (what === "model" || what === "line" || what === "mode") return true;
    if (what === "voice" && this.#voiceIsFixed) return true;
    this.#line.wire?.updateSession(this.#panel.session());
    return false;
  }
}
