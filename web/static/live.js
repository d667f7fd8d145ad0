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

/** The offers of a Live session, as those of RealtimeSignals. */
export class LiveSignals {
  #page;
  #headers;
  #session;
  #place = null;

  constructor({ page, key, session }) {
    this.#page = page;
    this.#headers = { "Content-Type": "application/json" };
    if (key) this.#headers.Authorization = `Bearer ${key}`;
    this.#session = session;
  }

  async offer(sdp) {
    const url = new URL("v1/live/sessions", this.#page);
    const { session, transport } = await this.#post(url, { session: this.#session }, sdp);
    this.#place = new URL(`v1/live/sessions/${session.id}`, this.#page);
    return transport.sdp;
  }

  get canRenew() {
    return this.#place !== null;
  }

  async renew(sdp) {
    return (await this.#post(this.#place, {}, sdp)).transport.sdp;
  }

  async #post(url, fields, sdp) {
    const body = JSON.stringify({ ...fields, transport: { type: "webrtc", sdp } });
    const request = { method: "POST", headers: this.#headers, body };
    return (await answerOf(await fetch(url, request))).json();
  }
}
