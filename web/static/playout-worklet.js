// The speaker's side of the audio thread: items of PCM16 at 24 kHz in, the context's rate out.
//
// It is the only one who knows what was really played, so it counts: every position it reports is
// in samples of the item that left for the sound card.

import { Resampler } from "./resampler.js";

const RATE = 24000;
const FADE_SECONDS = 0.008; // an interruption is silent within 10 ms
// What must be held when a piece is played out, until the next one arrives. A network or an engine
// that is late raises it, an answer without a gap lowers it.
const START_MS = { first: 80, least: 60, most: 240, step: 20, ease: 5 };
const PIECE_MS_AT_MOST = 120; // a longer piece has the time in itself
const REPORT_SECONDS = 0.02;
const HELD_SECONDS_AT_MOST = 900; // a quarter of an hour; what is beyond is refused and counted

class Item {
  chunks = [];
  offset = 0; // into the first chunk
  held = 0; // samples not yet taken
  piece = 0; // samples in the largest piece that arrived
  taken = 0;
  ended = false; // all its audio has arrived
  begun = false;
  dry = false; // it ran out before it ended
  late = false; // it was dry and more came
  doomed = false; // interrupted: it goes when the fade is over

  constructor(id, content) {
    this.id = id;
    this.content = content;
  }

  read(out, at, count) {
    let copied = 0;
    while (copied < count && this.chunks.length > 0) {
      const chunk = this.chunks[0];
      const size = Math.min(count - copied, chunk.length - this.offset);
      for (let k = 0; k < size; k += 1) out[at + copied + k] = chunk[this.offset + k] / 32768;
      copied += size;
      this.offset += size;
      if (this.offset === chunk.length) {
        this.chunks.shift();
        this.offset = 0;
      }
    }
    this.held -= copied;
    this.taken += copied;
    return copied;
  }
}

class Playout extends AudioWorkletProcessor {
  #resampler = new Resampler(RATE, Math.round(sampleRate));
  #input = new Float32Array(1024);
  #items = [];
  #playing = false;
  #fadeIn = false;
  #fadeLeft = 0; // output frames until an interruption's fade is over
  #fadeLength = Math.round(FADE_SECONDS * sampleRate);
  #tail = 0; // samples of silence the filter is owed after the last item
  #startMs = START_MS.first;
  #underruns = 0;
  #refused = 0;
  #energy = 0;
  #counted = 0;

  constructor() {
    super();
    this.port.onmessage = ({ data }) => {
      if (data.type === "audio") this.#add(data);
      else if (data.type === "end") this.#end(data.id);
      else if (data.type === "flush") this.#flush(data.token);
    };
  }

  get #held() {
    return this.#items.reduce((sum, item) => sum + item.held, 0);
  }

  #add({ id, content, pcm }) {
    if (this.#held + pcm.length > HELD_SECONDS_AT_MOST * RATE) {
      this.#refused += pcm.length;
      return;
    }
    let item = this.#items.find((one) => one.id === id && one.content === content);
    if (item === undefined) {
      item = new Item(id, content);
      this.#items.push(item);
    }
    item.chunks.push(pcm);
    item.held += pcm.length;
    item.piece = Math.max(item.piece, pcm.length);
    if (item.dry) this.#blameTheNetwork(item);
  }

  /** Only when more audio follows was the silence an underrun and not the item's end. */
  #blameTheNetwork(item) {
    item.dry = false;
    item.late = true;
    this.#underruns += 1;
    this.#startMs = Math.min(START_MS.most, this.#startMs + START_MS.step);
    this.port.postMessage({ type: "underrun", underruns: this.#underruns });
  }

  #end(id) {
    for (const item of this.#items) if (item.id === id) item.ended = true;
    const [first] = this.#items;
    // Less than a block is left of an item that ran dry, and a late blip is worse than none.
    if (first?.ended && first.dry) this.#finish(first.held);
  }

  /** Answer at once with what will have been played when the fade is over; fade; forget. */
  #flush(token) {
    let ahead = this.#playing && this.#fadeLeft === 0 ? Math.round(FADE_SECONDS * RATE) : 0;
    const cut = [];
    for (const item of this.#items) {
      if (item.doomed) continue;
      item.doomed = true;
      const fading = Math.min(ahead, item.held);
      ahead -= fading;
      cut.push({
        id: item.id,
        content: item.content,
        playedMs: this.#milliseconds(item.taken + fading),
      });
    }
    if (!this.#playing) this.#items = [];
    else if (this.#fadeLeft === 0) this.#fadeLeft = this.#fadeLength;
    this.port.postMessage({ type: "flushed", token, items: cut });
  }

  #milliseconds(taken) {
    return Math.max(0, Math.floor(((taken - this.#resampler.delay) * 1000) / RATE));
  }

  process(_inputs, [[out, ...others]]) {
    if (!this.#playing && !this.#start()) return true;
    const dry = this.#fill(out.length);
    this.#resampler.pull(out);
    if (this.#fadeIn) ramp(out, 0, 1);
    this.#fadeIn = false;
    if (this.#fadeLeft > 0) this.#fade(out);
    else if (dry) this.#runDry(out);
    for (const other of others) other.set(out);
    if (this.#playing) this.#report(out);
    return true;
  }

  #start() {
    const [item] = this.#items;
    if (item === undefined) return false;
    const pieceMs = Math.min(PIECE_MS_AT_MOST, (item.piece * 1000) / RATE);
    if (!item.ended && this.#held < ((this.#startMs + pieceMs) * RATE) / 1000) return false;
    this.#playing = true;
    this.#fadeIn = item.begun;
    return true;
  }

  /** Move what a block needs into the filter; true when the next one could not be filled. */
  #fill(frames) {
    const needed = this.#resampler.needed(frames);
    if (this.#input.length < needed) this.#input = new Float32Array(needed);
    let copied = 0;
    while (copied < needed && this.#items.length > 0) {
      const item = this.#items[0];
      if (this.#fadeLeft > 0 && !item.doomed) break;
      if (!item.begun && item.held > 0) {
        item.begun = true;
        this.port.postMessage({ type: "started", id: item.id });
      }
      copied += item.read(this.#input, copied, needed - copied);
      if (item.held > 0) continue;
      if (!item.ended) break;
      this.#finish();
    }
    this.#input.fill(0, copied, needed);
    this.#resampler.push(this.#input.subarray(0, needed));
    if (this.#items.length > 0) return !this.#items[0].ended && this.#held < needed;
    this.#tail -= needed - copied;
    if (this.#tail <= 0) this.#rest();
    return false;
  }

  #finish(skipped = 0) {
    const item = this.#items.shift();
    item.taken += skipped;
    this.#tail = this.#resampler.delay;
    if (!item.late) this.#startMs = Math.max(START_MS.least, this.#startMs - START_MS.ease);
    const playedMs = Math.floor((item.taken * 1000) / RATE);
    this.port.postMessage({ type: "played", id: item.id, playedMs });
  }

  /** The network was late: end this block without a click and wait for the start buffer. */
  #runDry(out) {
    ramp(out, 1, 0);
    this.#items[0].dry = true;
    this.#resampler.reset();
    this.#rest();
  }

  #fade(out) {
    for (let k = 0; k < out.length; k += 1) {
      const left = Math.max(0, this.#fadeLeft - k);
      out[k] *= 0.5 - 0.5 * Math.cos((Math.PI * left) / this.#fadeLength);
    }
    this.#fadeLeft -= out.length;
    if (this.#fadeLeft > 0 && this.#playing) return;
    this.#fadeLeft = 0;
    this.#items = this.#items.filter((item) => !item.doomed);
    this.#resampler.reset();
    this.#rest();
  }

  #rest() {
    this.#playing = false;
    this.#energy = 0;
    this.#counted = 0;
    this.port.postMessage({ type: "rest" });
  }

  #report(out) {
    for (let k = 0; k < out.length; k += 1) this.#energy += out[k] * out[k];
    this.#counted += out.length;
    if (this.#counted < REPORT_SECONDS * sampleRate) return;
    const item = this.#items.find((one) => one.begun);
    this.port.postMessage({
      type: "position",
      id: item ? item.id : null,
      playedMs: item ? this.#milliseconds(item.taken) : 0,
      level: Math.sqrt(this.#energy / this.#counted),
      heldMs: Math.round((this.#held * 1000) / RATE),
      refused: this.#refused,
    });
    this.#energy = 0;
    this.#counted = 0;
  }
}

function ramp(out, from, to) {
  for (let k = 0; k < out.length; k += 1) out[k] *= from + ((to - from) * (k + 1)) / out.length;
}

registerProcessor("duologue-playout", Playout);
