// The conversation in numbers: a few on the page, all of them for tests and for the curious.

import { figuresOf } from "./latency.js";

export class Tally {
  #conversation;
  #media;
  #counters;
  #parts;

  /** `parts` has the elements wait, turns, interruptions and gaps. */
  constructor({ conversation, media, counters, parts }) {
    this.#conversation = conversation;
    this.#media = media;
    this.#counters = counters;
    this.#parts = parts;
  }

  get #figures() {
    return this.#conversation.turns.map(figuresOf).filter((turn) => turn !== null);
  }

  show() {
    const waits = this.#figures.map(({ total }) => total).sort((a, b) => a - b);
    const median = waits[Math.floor((waits.length - 1) / 2)];
    this.#parts.wait.textContent = waits.length === 0 ? "–" : `${(median / 1000).toFixed(2)} s`;
    this.#parts.turns.textContent = String(this.#conversation.turns.length);
    this.#parts.interruptions.textContent = String(this.#counters.interruptions);
    this.#parts.gaps.textContent = String(this.#media.underruns);
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
