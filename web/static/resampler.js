// Sample-rate conversion that keeps its state, for the two audio worklets.

const ZERO_CROSSINGS = 32; // on each side of the centre, at the lower of the two rates
const KAISER_BETA = 8.6; // about 90 dB down in the stop band
const PHASES_AT_MOST = 1024; // odd rates share the nearest phase

function gcd(a, b) {
  return b === 0 ? a : gcd(b, a % b);
}

function bessel0(x) {
  let sum = 1;
  let term = 1;
  for (let k = 1; k < 64; k += 1) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
    if (term < sum * 1e-12) break;
  }
  return sum;
}

/**
 * A polyphase filter from one integer rate to another (a Kaiser-windowed sinc).
 *
 * Flat to 0.85 of the lower rate's Nyquist frequency, more than 90 dB down from 1.04 of it.
 * `delay` is the filter's delay in input samples.
 */
export class Resampler {
  #up;
  #down;
  #taps;
  #half;
  #phases;
  #table;
  #held; // input not yet used up, the filter's past first
  #size;
  #step = 0; // the next output's place after held[half - 1], in 1/up input samples

  constructor(from, to) {
    const common = gcd(from, to);
    this.#up = to / common;
    this.#down = from / common;
    const ratio = Math.min(1, to / from);
    this.#half = from === to ? 1 : Math.ceil(ZERO_CROSSINGS / ratio);
    this.#taps = 2 * this.#half;
    this.#phases = Math.min(this.#up, PHASES_AT_MOST);
    this.#table = this.#design(ratio, from === to);
    this.#held = new Float32Array(this.#taps + 4096);
    this.#size = this.#half - 1;
  }

  get delay() {
    return this.#half;
  }

  #design(ratio, identity) {
    const table = new Float32Array(this.#phases * this.#taps);
    if (identity) {
      table[0] = 1;
      return table;
    }
    // A quarter of the window's transition band below the lower Nyquist: a compromise that lets
    // only the topmost 3 % of the band fold, onto itself.
    const cutoff = ratio - 2.9 / this.#taps;
    const edge = bessel0(KAISER_BETA);
    for (let phase = 0; phase < this.#phases; phase += 1) {
      const row = phase * this.#taps;
      let sum = 0;
      for (let tap = 0; tap < this.#taps; tap += 1) {
        const x = tap - (this.#half - 1) - phase / this.#phases;
        const inside = 1 - (x / this.#half) ** 2;
        if (inside <= 0) continue;
        const angle = Math.PI * x * cutoff;
        const sinc = Math.abs(angle) < 1e-9 ? 1 : Math.sin(angle) / angle;
        table[row + tap] = sinc * (bessel0(KAISER_BETA * Math.sqrt(inside)) / edge);
        sum += table[row + tap];
      }
      for (let tap = 0; tap < this.#taps; tap += 1) table[row + tap] /= sum;
    }
    return table;
  }

  /** How many more input samples must be pushed before `count` outputs can be pulled. */
  needed(count) {
    if (count === 0) return 0;
    const last = Math.floor((this.#step + (count - 1) * this.#down) / this.#up);
    return Math.max(0, last + this.#taps - this.#size);
  }

  /** How many outputs the samples pushed so far allow. */
  available() {
    const room = this.#size - this.#taps;
    if (room < 0) return 0;
    const reach = (room + 1) * this.#up - this.#step;
    return reach <= 0 ? 0 : Math.ceil(reach / this.#down);
  }

  push(samples) {
    if (this.#size + samples.length > this.#held.length) {
      const larger = new Float32Array(2 * (this.#size + samples.length));
      larger.set(this.#held.subarray(0, this.#size));
      this.#held = larger;
    }
    this.#held.set(samples, this.#size);
    this.#size += samples.length;
  }

  /** Fill `out` from its start with up to `count` outputs; returns how many were made. */
  pull(out, count = out.length) {
    const made = Math.min(count, this.available());
    for (let k = 0; k < made; k += 1) {
      const base = Math.floor(this.#step / this.#up);
      const fraction = this.#step - base * this.#up;
      const row = Math.floor((fraction * this.#phases) / this.#up) * this.#taps;
      let sum = 0;
      for (let tap = 0; tap < this.#taps; tap += 1) {
        sum += this.#table[row + tap] * this.#held[base + tap];
      }
      out[k] = sum;
      this.#step += this.#down;
    }
    const used = Math.min(Math.floor(this.#step / this.#up), this.#size);
    if (used > 0) {
      this.#held.copyWithin(0, used, this.#size);
      this.#size -= used;
      this.#step -= used * this.#up;
    }
    return made;
  }

  reset() {
    this.#held.fill(0);
    this.#size = this.#half - 1;
    this.#step = 0;
  }
}
