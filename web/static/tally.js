// The conversation in numbers: a few on the page, all of them for tests and for the curious.

import { figuresOf } from "./latency.js";

export class Tally {
  #conversation;
  #media;
  #counters;
  #parts;
  #line;

  /** `parts` and `line` have the elements that `show` and `showLine` write. */
  constructor({ conversation, media, counters, parts, line }) {
    this.#line = line;
    this.#conversation = conversation;
    this.#media = media;
    this.#counters = counters;
    this.#parts = parts;
  }

  get #figures() {
    return this.#conversation.turns.map(figuresOf).filter((turn) => turn !== null);
  }

  show() {
    const answered = this.#figures.filter(({ cancelled }) => cancelled === null);
    const waits = answered.map(({ total }) => total).sort((a, b) => a - b);
    const median = waits[Math.floor((waits.length - 1) / 2)];
    this.#parts.wait.textContent = waits.length === 0 ? "–" : `${(median / 1000).toFixed(2)} s`;
    this.#parts.turns.textContent = String(this.#conversation.turns.length);
    this.#parts.interruptions.textContent = String(this.#counters.interruptions);
    this.#parts.gaps.textContent = String(this.#media.underruns);
  }

  /** How the line is: its kind, and of a call how good it is; `fellBack` is why there is no call. */
  showLine(kind, { lossPercent, jitterMs, roundTripMs, concealedPercent }, fellBack) {
    const figure = (value, digits, unit) =>
      kind !== "webrtc" || value === null ? "–" : `${value.toFixed(digits)} ${unit}`;
    const names = { webrtc: "WebRTC", websocket: "WebSocket" };
    this.#line.kind.textContent = kind === null ? "" : ` by ${names[kind]}`;
    this.#line.kind.title = fellBack ? `WebRTC could not be set up: ${fellBack}` : "";
    this.#line.loss.textContent = figure(lossPercent, 1, "%");
    this.#line.jitter.textContent = figure(jitterMs, 0, "ms");
    this.#line.trip.textContent = figure(roundTripMs, 0, "ms");
    this.#line.concealed.textContent = figure(concealedPercent, 1, "%");
  }

  /** What `window.duologue` is: always the present numbers, nothing that can be changed. */
  published(state) {
    const conversation = this.#conversation;
    const media = this.#media;
    const counters = this.#counters;
    const figures = () => this.#figures;
    return Object.freeze({
      get state() {
        return state();
      },
      get turns() {
        return conversation.turns.map((turn) => ({ ...turn }));
      },
      get latencies() {
        return figures();
      },
      get items() {
        return conversation.items.map((item) => ({
          id: item.id,
          role: item.role,
          text: item.text,
          final: item.final,
          playedMs: item.playedMs,
          audioMs: item.audioMs,
          cutAtMs: item.cutAtMs,
          heard: item.text.slice(0, conversation.heardCharacters(item)),
        }));
      },
      get playedMs() {
        return conversation.items.reduce((sum, item) => sum + item.playedMs, 0);
      },
      get underruns() {
        return media.underruns;
      },
      get sampleRate() {
        return media.sampleRate;
      },
      get counters() {
        return { ...counters, errors: [...counters.errors] };
      },
    });
  }
}
