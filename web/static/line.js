// The line to the server: opened when wanted, and opened again when it breaks.

import { Realtime, backoff, meaningOf } from "./protocol.js";

const ATTEMPTS_AT_MOST = 8;
const STEADY_MS = 5000; // a session that lasted this long starts the count afresh
const WAIT_MS = 15000; // for session.created

/** Why the line is down for good; `reason` is a word that the page explains. */
export class LineTrouble extends Error {
  constructor(reason, detail = "") {
    super(detail || reason);
    this.reason = reason;
    this.detail = detail;
  }
}

/**
 * `told` has state(name, {reason, detail, retryInMs}), begun(realtime) when a session is there, and
 * event(event, realtime) for what the server says. `probe()` answers how HTTP sees the server:
 * "well", "refused", "full" or "away", for closes that say nothing.
 */
export class Line {
  state = "closed";
  realtime = null;
  #page;
  #told;
  #probe;
  #settings = { model: "", key: "" };
  #wanted = null; // {promise, resolve, reject} of the connect() being answered
  #attempt = 0;
  #begunAt = 0;
  #retryTimer = 0;
  #waitTimer = 0;
  #retryAfterMs = 0;

  constructor({ page, told, probe }) {
    this.#page = page;
    this.#told = told;
    this.#probe = probe;
  }

  /** What the next connection will ask for. */
  configure(settings) {
    this.#settings = { ...this.#settings, ...settings };
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

  /** Do not wait for the next attempt. */
  hurry() {
    if (this.state === "waiting") this.#dial();
  }

  close() {
    this.#forget();
    this.#wanted?.reject(new LineTrouble("closed"));
    this.#wanted = null;
    this.#become("closed");
  }

  /** Close and connect again, for settings that a session can't change. */
  renew() {
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
    const realtime = this.realtime;
    this.realtime = null;
    realtime?.close();
  }

  #dial() {
    this.#forget();
    this.#retryAfterMs = 0;
    const realtime = new Realtime({ page: this.#page, ...this.#settings });
    this.realtime = realtime;
    this.#waitTimer = setTimeout(() => this.#failed(realtime, "lost", ""), WAIT_MS);
    const current = (handle) => (event) => {
      if (this.realtime === realtime) handle(event);
    };
    realtime
      .on(
        "session.created",
        current(() => this.#begin(realtime)),
      )
      .on(
        "error",
        current(({ error }) => (this.#retryAfterMs = error.retry_after_ms ?? 0)),
      )
      .on(
        "*",
        current((event) => this.#told.event(event, realtime)),
      )
      .on(
        "closed",
        current((close) => this.#closed(realtime, close)),
      );
    this.#become("connecting", { again: this.#attempt > 0 });
  }

  #begin(realtime) {
    clearTimeout(this.#waitTimer);
    this.#begunAt = performance.now();
    this.#become("open");
    this.#told.begun(realtime);
    this.#wanted?.resolve();
    this.#wanted = null;
  }

  async #closed(realtime, { code, reason, begun }) {
    if (begun && performance.now() - this.#begunAt > STEADY_MS) this.#attempt = 0;
    let meaning = meaningOf(code, begun);
    if (meaning === "lost" && !begun) {
      const seen = await this.#probe();
      if (this.realtime !== realtime) return;
      if (seen === "refused" || seen === "full") meaning = seen;
    }
    this.#failed(realtime, meaning, reason);
  }

  #failed(realtime, meaning, detail) {
    if (this.realtime !== realtime) return;
    this.#forget();
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
