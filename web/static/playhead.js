// Where the listener is in an answer that the server plays out, from what the server says of it.

const TICK_MS = 50;

/**
 * It tells what the playout worklet tells of audio played here: started(id), position({id,
 * playedMs, level}), played(id, playedMs) and rest(); and cut(id, playedMs), since here the server
 * interrupts. `level()` is the loudness now, `now()` milliseconds.
 */
export class Playhead {
  #told;
  #level;
  #now;
  #items = new Map(); // of each response, the items that were not played yet
  #current = null;
  #timer = 0;

  constructor({ told, level, now }) {
    this.#told = told;
    this.#level = level;
    this.#now = now;
  }

  receive(event) {
    switch (event.type) {
      case "response.output_item.added":
        if (event.item.type === "message") this.#waiting(event.response_id).push(event.item.id);
        break;
      case "output_audio_buffer.started":
        this.#start(event.response_id);
        break;
      case "output_audio_buffer.stopped":
        this.#finish(event.response_id);
        break;
      case "output_audio_buffer.cleared":
        this.#items.delete(event.response_id);
        this.stop();
        break;
      case "conversation.item.truncated":
        this.#told.cut(event.item_id, event.audio_end_ms);
        break;
    }
  }

  /** Nothing is played any more: the line is gone, or the server has cleared it. */
  stop() {
    clearInterval(this.#timer);
    if (this.#current !== null) this.#told.rest();
    this.#current = null;
  }

  #waiting(response) {
    if (!this.#items.has(response)) this.#items.set(response, []);
    return this.#items.get(response);
  }

  #start(response) {
    const [id] = this.#waiting(response);
    if (id === undefined) return;
    this.stop();
    this.#current = { id, since: this.#now() };
    this.#told.started(id);
    this.#timer = setInterval(() => {
      this.#told.position({ id, playedMs: this.#playedMs, level: this.#level() });
    }, TICK_MS);
  }

  get #playedMs() {
    return Math.max(0, Math.round(this.#now() - this.#current.since));
  }

  #finish(response) {
    const ids = this.#waiting(response);
    this.#items.delete(response);
    if (this.#current === null) return;
    const playedMs = this.#playedMs;
    this.stop();
    for (const id of ids) this.#told.played(id, playedMs);
  }
}
