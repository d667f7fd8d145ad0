// A carrier of events and sound: one WebRTC call. The server plays out, so it knows what was heard.

const OPEN_MS = 5000; // from the answer to an open data channel
const PATIENCE_MS = 2000; // a way that is silent for so long is looked for anew
const RESTART_MS = 8000; // for a way to be found again
const CAMERA_BITS = 600000; // a second: a face at 15 pictures
const CHANNEL = "oai-events";

export function callIsPossible() {
  return "RTCPeerConnection" in window;
}

/** What the server said to an offer when it did not take it. */
export class OfferRefused extends Error {
  constructor(status, code, message) {
    super(message || `HTTP ${status}`);
    this.status = status;
    this.code = code;
  }

  /** A close code that says the same, or null when another carrier may fare better. */
  get closeCode() {
    if (this.status === 401 || this.status === 403) return 1008;
    const full = this.status === 429 || this.status === 503;
    return full && this.code !== "no_port_free" ? 1013 : null;
  }
}

/** The response if it is well; throws OfferRefused. */
export async function answerOf(response) {
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({}));
  throw new OfferRefused(response.status, error?.code, error?.message);
}

/** Offers to the Realtime protocol's calls: `offer(sdp)` makes one, `renew(sdp)` restarts its ICE. */
export class RealtimeSignals {
  #page;
  #model;
  #headers;
  #place = null;

  constructor({ page, model, key }) {
    this.#page = page;
    this.#model = model;
    this.#headers = key ? { Authorization: `Bearer ${key}` } : {};
  }

  async offer(sdp) {
    const form = new FormData();
    form.set("sdp", new Blob([sdp], { type: "application/sdp" }));
    const session = JSON.stringify({ type: "realtime", model: this.#model || undefined });
    form.set("session", new Blob([session], { type: "application/json" }));
    const url = new URL("v1/realtime/calls", this.#page);
    const request = { method: "POST", headers: this.#headers, body: form };
    const response = await answerOf(await fetch(url, request));
    const id = response.headers.get("Location")?.split("/").pop();
    this.#place = id ? new URL(`v1/realtime/calls/${id}`, this.#page) : null;
    return response.text();
  }

  get canRenew() {
    return this.#place !== null;
  }

  async renew(sdp) {
    const headers = { ...this.#headers, "Content-Type": "application/sdp" };
    const request = { method: "POST", headers, body: sdp };
    return (await answerOf(await fetch(this.#place, request))).text();
  }
}

export class Call {
  kind = "webrtc";
  #signals;
  #connection;
  #channel;
  #audio;
  #video;
  #told = null;
  #over = false;
  #opened = false;
  #restarting = false;
  #timer = 0;

  constructor({ signals, iceServers }) {
    this.#signals = signals;
    const connection = new RTCPeerConnection({ iceServers, bundlePolicy: "max-bundle" });
    this.#connection = connection;
    // Both ways from the start, so that a microphone or a camera can come and go without an offer.
    this.#audio = connection.addTransceiver("audio", { direction: "sendrecv" });
    this.#video = connection.addTransceiver("video", {
      direction: "sendonly",
      sendEncodings: [{ maxBitrate: CAMERA_BITS }],
    });
    this.#channel = connection.createDataChannel(CHANNEL);
    this.#channel.onopen = () => this.#open();
    this.#channel.onmessage = ({ data }) => this.#told?.message(data);
    this.#channel.onclose = () => this.#end(1006, "");
    connection.onconnectionstatechange = () => this.#watch();
  }

  begin(told) {
    this.#told = told;
    this.#setUp().catch((error) => this.#fail(error));
  }

  async #setUp() {
    await this.#connection.setLocalDescription();
    // Candidates are not waited for: the server learns them from the checks that come from them.
    const sdp = await this.#signals.offer(this.#connection.localDescription.sdp);
    if (this.#over) return;
    await this.#connection.setRemoteDescription({ type: "answer", sdp });
    this.#timer = setTimeout(() => this.#fail(new Error("no way was found")), OPEN_MS);
  }

  #fail(error) {
    if (this.#over || this.#opened) return;
    const told = this.#told;
    const code = error instanceof OfferRefused ? error.closeCode : null;
    this.close();
    if (code !== null) told.closed({ code, reason: error.message });
    else told.unavailable(error.message);
  }

  #open() {
    if (this.#over) return;
    clearTimeout(this.#timer);
    this.#opened = true;
    this.#told.opened();
  }

  #end(code, reason) {
    if (this.#over) return;
    const told = this.#told;
    this.close();
    told?.closed({ code, reason });
  }

  #watch() {
    if (this.#over) return;
    const state = this.#connection.connectionState;
    if (!this.#opened) {
      if (state === "failed") this.#fail(new Error("no way was found"));
      return;
    }
    if (state === "connected") {
      clearTimeout(this.#timer);
      this.#restarting = false;
    } else if (state === "failed") {
      this.#restart();
    } else if (state === "disconnected" && !this.#restarting) {
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#restart(), PATIENCE_MS);
    }
  }

  /** The network has changed: look for a way at once. */
  hurry() {
    if (this.#opened && !this.#over) this.#restart();
  }

  async #restart() {
    if (this.#restarting || this.#over) return;
    clearTimeout(this.#timer);
    if (!this.#signals.canRenew) {
      this.#end(1006, "");
      return;
    }
    this.#restarting = true;
    this.#timer = setTimeout(() => this.#end(1006, ""), RESTART_MS);
    try {
      this.#connection.restartIce();
      await this.#connection.setLocalDescription();
      const sdp = await this.#signals.renew(this.#connection.localDescription.sdp);
      if (!this.#over) await this.#connection.setRemoteDescription({ type: "answer", sdp });
    } catch {
      this.#end(1006, "");
    }
  }

  get open() {
    return this.#channel.readyState === "open";
  }

  get waitingBytes() {
    return this.#channel.bufferedAmount;
  }

  send(text) {
    this.#channel.send(text);
  }

  close() {
    this.#over = true;
    clearTimeout(this.#timer);
    this.#connection.close();
  }

  /** What the server says aloud. */
  get sound() {
    return new MediaStream([this.#audio.receiver.track]);
  }

  /** Whether the server has a use for pictures. */
  get seen() {
    return this.#video.currentDirection === "sendonly";
  }

  /** Speak with this track; null for silence. */
  async useMicrophone(track) {
    if (!this.#over) await this.#audio.sender.replaceTrack(track);
  }

  /** Show this track; null for nothing. */
  async useCamera(track) {
    if (!this.#over) await this.#video.sender.replaceTrack(track);
  }

  stats() {
    return this.#connection.getStats();
  }
}
