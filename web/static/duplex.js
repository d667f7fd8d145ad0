// A conversation in full duplex: both may speak at any time, and nobody's turn is waited for.

import { SpeechClock } from "./latency.js";
import { decodeAudio, newId } from "./protocol.js";

const FRAMES_TOGETHER = 3; // 60 ms a message
const FRAMES_WAITING_AT_MOST = 400; // 8 s of speech while the line is being opened
const VOICE = "live"; // the one endless item that is played here, over a WebSocket
const LEVEL_MS = 50;
const HISTORY_AT_MOST = 40;
const PAUSE_MS = 2500; // after this, the voice begins a new line

const now = () => performance.now();

/** It has what Turns has; see there for `report` and `changed`. */
export class Duplex {
  userSpeaking = false;
  awaiting = false;
  response = null; // there are no responses to wait for
  playing = null;
  #conversation;
  #media;
  #line;
  #panel;
  #counters;
  #banner;
  #report;
  #changed;
  #level;
  #clock = new SpeechClock();
  #frames = [];
  #rows = { user: null, assistant: null }; // the rows that grow
  #voiceSpeaks = false;
  #spokeAt = 0;
  #timer = 0;

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
  }

  /** Silence is not waited for, so nothing is ever to be stopped. */
  get busy() {
    return false;
  }

  get activity() {
    if (this.#voiceSpeaks) return this.userSpeaking ? "Both speaking" : "Speaking";
    if (this.userSpeaking) return "Hearing you";
    return this.awaiting ? "Thinking" : null;
  }

  /** The settings as Live's session. */
  static session(panel, conversation) {
    const model = panel.model || "duologue";
    const input = conversation.history(HISTORY_AT_MOST).map(({ role, content: [{ type, text }] }) => ({
      type: "message",
      role,
      content: [{ type, text }],
    }));
    return {
      model,
      ...(panel.instructions ? { instructions: panel.instructions } : {}),
      ...(panel.voice ? { audio: { output: { voice: panel.voice } } } : {}),
      ...(input.length > 0 ? { input } : {}),
      delegation: { type: "responses", responses: { model } },
      duologue: { turn_marks: true },
    };
  }

  // --- the line ---

  begun(wire) {
    this.#clock.reset();
    this.#rows = { user: null, assistant: null };
    if (this.#line.call === null) this.#sendFrames(wire, 1);
    else this.#frames = [];
    this.#timer = setInterval(() => this.#measure(), LEVEL_MS);
    this.microphoneChanged();
  }

  microphoneChanged() {
    this.#report(this.#line.call?.useMicrophone(this.#media.microphone));
  }

  lost() {
    clearInterval(this.#timer);
    this.#media.finish(VOICE);
    this.#level(0);
    this.userSpeaking = false;
    this.awaiting = false;
    this.#voiceSpeaks = false;
    this.#end("user");
    this.#end("assistant");
  }

  #measure() {
    if (this.#line.call !== null) this.#level(this.#media.heardLevel);
  }

  // --- what the server says ---

  said(event) {
    const act = {
      "session.output_audio.delta": ({ delta }) =>
        this.#media.play(VOICE, 0, decodeAudio(delta)),
      "session.input_transcript.delta": ({ delta }) => this.#userSaid(delta),
      "session.output_transcript.delta": ({ delta }) => this.#voiceSaid(delta),
      "duologue.turn.started": ({ speaker }) => this.#turned(speaker, true),
      "duologue.turn.ended": ({ speaker }) => this.#turned(speaker, false),
      error: ({ error }) => {
        this.#counters.errors.push(error.code ?? error.type);
        if (error.code === "engine_unavailable") this.#banner.tell("absent");
        else this.#banner.say("The server did not accept something.", error.message);
      },
    }[event.type];
    act?.(event);
    if (event.type !== "session.output_audio.delta") this.#changed();
  }

  #turned(speaker, begins) {
    if (speaker === "assistant") {
      this.#voiceSpeaks = begins;
      if (begins) this.awaiting = false;
      else this.#end("assistant");
      return;
    }
    this.userSpeaking = begins;
    this.awaiting = !begins;
    if (begins) {
      if (this.#voiceSpeaks) this.#counters.interruptions += 1;
      this.#end("user");
      this.#rows.user = newId("item_");
      this.#conversation.speechStarted(this.#rows.user);
    } else if (this.#rows.user !== null) {
      this.#conversation.fellSilent(this.#rows.user, this.#clock.endOfSpeech(null, now()));
    }
  }

  #end(role) {
    const id = this.#rows[role];
    this.#rows[role] = null;
    if (id !== null) this.#conversation.ended(id);
  }

  #userSaid(delta) {
    this.#rows.user ??= newId("item_");
    this.#conversation.heardOf(this.#rows.user, delta);
  }

  #voiceSaid(delta) {
    if (now() - this.#spokeAt > PAUSE_MS) this.#end("assistant");
    this.#spokeAt = now();
    this.#rows.assistant ??= newId("item_");
    this.#conversation.spokenBy(this.#rows.assistant, delta, now());
  }

  // --- speaking ---

  frame({ pcm, level }) {
    this.#clock.sent(level, now());
    if (this.#line.call !== null) return;
    this.#frames.push(pcm);
    if (this.#line.state === "open") this.#sendFrames(this.#line.wire, FRAMES_TOGETHER);
    else if (this.#frames.length > FRAMES_WAITING_AT_MOST) {
      this.#frames.shift();
      this.#counters.framesDropped += 1;
    }
  }

  /** Send what waits, once there are `least` frames of it. */
  #sendFrames(wire, least) {
    if (this.#frames.length < least) return;
    const together = new Int16Array(this.#frames.reduce((sum, pcm) => sum + pcm.length, 0));
    let at = 0;
    for (const pcm of this.#frames) {
      together.set(pcm, at);
      at += pcm.length;
    }
    const sent = wire.append(together) !== null;
    this.#counters[sent ? "framesSent" : "framesDropped"] += this.#frames.length;
    this.#frames = [];
  }

  silent() {
    this.userSpeaking = false;
    this.#frames = [];
  }

  // --- what is played here, over a WebSocket ---

  position({ level }) {
    this.#level(level);
  }

  started() {}

  played() {}

  rest() {
    this.#level(0);
  }

  // --- people ---

  async interrupt() {
    await this.#media.flush();
  }

  async hush() {
    await this.interrupt();
  }

  async type(text, connect) {
    this.#end("assistant");
    this.#end("user");
    const id = newId("item_");
    await connect();
    this.#conversation.typed(id, text, now());
    this.awaiting = true;
    this.#line.wire.write(text);
    this.#changed();
  }

  settingChanged(what) {
    return what !== "turns";
  }
}
