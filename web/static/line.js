// The line to the server: opened when wanted, and opened again when it breaks.

import { backoff, meaningOf } from "./protocol.js";

const ATTEMPTS_AT_MOST = 8;
const STEADY_MS = 5000; // a session that lasted this long starts the count afresh
const WAIT_MS = 15000; // for the session to be there
const AGAIN_MS = 300000; // a carrier that could not be set up is left alone for so long

/** Why the line is down for good; `reason` is a word that the page explains. */
export class LineTrouble extends Error {
  constructor(reason, detail = "") {
    super(detail || reason);
    this.reason = reason;
    this.detail = detail;
  }
}

/**
 * `carriers()` gives the ways to reach the server, best first, each {kind, dial()}; dial() makes a
 * Wire that has not begun. `told` has state(name, {reason, detail, retryInMs}), begun(wire) when a
 * session is there, event(event, wire) for what the server says, and fellBack(kind, reason) when
 * the next best carrier is taken. `probe()` answers how HTTP sees the server: "well", "refused",
 * "full" or "away", for closes that say nothing; `isWell()` is what it answered last.
 */
export class Line {
  state = "closed";
  wire = null;
  #carriers;
  #told;
  #probe;
  #isWell;
  #doubtful = false; // the server had no room at last
  #wanted = null; // {promise, resolve, reject} of the connect() being answered
  #unusable = new Map(); // kind of carrier: until when
  #attempt = 0;
  #begunAt = 0;
  #retryTimer = 0;
  #waitTimer = 0;
  #retryAfterMs = 0;

  constructor({ carriers, told, probe, isWell }) {
    this.#isWell = isWell;
    this.#carriers = carriers;
    this.#told = told;
    this.#probe = probe;
  }

  /** "webrtc" or "websocket" while there is a session, else null. */
  get kind() {
    return this.state === "open" ? this.wire.carrier.kind : null;
  }

  /** The WebRTC call of the session, if it is one. */
  get call() {
    return this.kind === "webrtc" ? this.wire.carrier : null;
  }

  /** Resolves when a session is there; rejects with LineTrouble when there will be none. */
  connect() {
    if (this.state === "open") return Promise.resolve();
    if (this.#wanted === null) {
      this.#wanted = deferred();
      this.#wanted.promise.catch(() => {});
      this.#attempt = 0;
      this.#dial();
    }
    return this.#wanted.promise;
  }

  /** Do not wait for the next attempt, nor trust a network that may have changed. */
  hurry() {
    this.#unusable.clear();
    if (this.state === "waiting") this.#dial();
    this.call?.hurry();
  }

  close() {
    this.#forget();
    this.#wanted?.reject(new LineTrouble("closed"));
    this.#wanted = null;
    this.#become("closed");
  }

  /** Close and connect again, for settings that a session can't change. */
  renew() {
    this.#unusable.clear();
    this.#forget();
    this.#become("closed");
    return this.connect();
  }

  #become(state, detail = {}) {
    this.state = state;
    this.#told.state(state, detail);
  }

  /** Stop listening to the present connection and let it go. */
  #forget() {
    clearTimeout(this.#retryTimer);
    clearTimeout(this.#waitTimer);
    const wire = this.wire;
    this.wire = null;
    wire?.close();
  }

  #dial() {
    this.#forget();
    this.#retryAfterMs = 0;
    const now = performance.now();
    const carriers = this.#carriers();
    const usable = carriers.filter(({ kind }) => (this.#unusable.get(kind) ?? 0) <= now);
    const wire = (usable[0] ?? carriers.at(-1)).dial();
    this.wire = wire;
    this.#waitTimer = setTimeout(() => this.#failed(wire, "lost", ""), WAIT_MS);
    const current = (handle) => (event) => {
      if (this.wire === wire) handle(event);
    };
    wire
      .on(
        wire.begins,
        current(() => this.#begin(wire)),
      )
      .on(
        "error",
        current(({ error }) => (this.#retryAfterMs = error.retry_after_ms ?? 0)),
      )
      .on(
        "*",
        current((event) => this.#told.event(event, wire)),
      )
      .on(
        "closed",
        current((close) => this.#closed(wire, close)),
      )
      .on(
        "unavailable",
        current(({ reason }) => this.#unavailable(wire, reason, carriers.at(-1).kind)),
      );
    this.#become("connecting", { again: this.#attempt > 0 });
    if (this.#doubtful || !this.#isWell()) this.#beginIfWell(wire);
    else wire.begin();
  }

  /** Don't ask for a session that can't be: browsers write every refusal into the console. */
  async #beginIfWell(wire) {
    const seen = await this.#probe();
    if (this.wire !== wire) return;
    this.#doubtful = false;
    if (seen === "well") wire.begin();
    else this.#failed(wire, seen === "away" ? "lost" : seen, "");
  }

  #begin(wire) {
    clearTimeout(this.#waitTimer);
    this.#begunAt = performance.now();
    this.#become("open");
    this.#told.begun(wire);
    this.#wanted?.resolve();
    this.#wanted = null;
  }

  /** This carrier can't be had: the next best is tried at once. */
  #unavailable(wire, reason, last) {
    const { kind } = wire.carrier;
    if (kind === last) {
      this.#failed(wire, "lost", reason);
      return;
    }
    this.#unusable.set(kind, performance.now() + AGAIN_MS);
    this.#told.fellBack(kind, reason);
    this.#dial();
  }

  async #closed(wire, { code, reason, begun }) {
    if (begun && performance.now() - this.#begunAt > STEADY_MS) this.#attempt = 0;
    let meaning = meaningOf(code, begun);
    if (meaning === "lost" && !begun) {
      const seen = await this.#probe();
      if (this.wire !== wire) return;
      if (seen === "refused" || seen === "full") meaning = seen;
    }
    this.#failed(wire, meaning, reason);
  }

  #failed(wire, meaning, detail) {
    if (this.wire !== wire) return;
    this.#forget();
    this.#doubtful = meaning === "full";
    const again = ["lost", "draining", "full"].includes(meaning);
    if (!again || this.#attempt >= ATTEMPTS_AT_MOST) {
      this.#wanted?.reject(new LineTrouble(meaning, detail));
      this.#wanted = null;
      this.#become("closed", { reason: meaning, detail });
      return;
    }
    const least = meaning === "full" ? 3000 : 0;
    const retryInMs = Math.max(this.#retryAfterMs, least, backoff(this.#attempt));
    this.#attempt += 1;
    this.#wanted ??= deferred();
    this.#wanted.promise.catch(() => {});
    this.#retryTimer = setTimeout(() => this.#dial(), retryInMs);
    this.#become("waiting", { reason: meaning, detail, retryInMs });
  }
}

function deferred() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}
