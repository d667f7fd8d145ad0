// A conversation in full duplex on the wire: the Live protocol's events and offers.

import { answerOf } from "./call.js";
import { RATE, Wire } from "./protocol.js";

/** Over a WebSocket the session is asked for with an event, over a call with the offer. */
export class Live extends Wire {
  /** `session` is what to start with; null where the offer has brought it. */
  constructor(carrier, session) {
    super(carrier, "session.started");
    if (session === null) return;
    const format = { type: "audio/pcm", rate: RATE };
    const audio = { ...session.audio, format };
    this.on("opened", () => this.send("session.start", { session: { ...session, audio } }));
  }

  append(pcm) {
    return this.sendAudio("session.input_audio.append", pcm);
  }

  /** What the user writes, to be answered aloud. */
  write(text) {
    const content = [{ type: "input_text", text }];
    const item = { type: "message", role: "user", content };
    this.send("response.item.create", { item });
    return this.send("response.create");
  }
}

/** The offer of a Live session; it has no later one. */
export class LiveSignals {
  canRenew = false;
  #page;
  #key;
  #session;

  constructor({ page, key, session }) {
    this.#page = page;
    this.#key = key;
    this.#session = session;
  }

  async offer(sdp) {
    const headers = { "Content-Type": "application/json" };
    if (this.#key) headers.Authorization = `Bearer ${this.#key}`;
    const body = JSON.stringify({ session: this.#session, transport: { type: "webrtc", sdp } });
    const url = new URL("v1/live/sessions", this.#page);
    const response = await answerOf(await fetch(url, { method: "POST", headers, body }));
    return (await response.json()).transport.sdp;
  }
}
