// The microphone's side of the audio thread: any rate in, frames of 20 ms at 24 kHz out.

import { Resampler } from "./resampler.js";

const RATE = 24000;
const FRAME = 480;

class Capture extends AudioWorkletProcessor {
  #resampler = new Resampler(Math.round(sampleRate), RATE);
  #mono = new Float32Array(128);
  #frame = new Float32Array(FRAME);
  #filled = 0;
  #muted = false;
  #open = true;

  constructor() {
    super();
    this.port.onmessage = ({ data }) => {
      if (data.type === "mute") this.#muted = data.muted;
      if (data.type === "close") this.#open = false;
    };
  }

  process([channels]) {
    if (!this.#open) return false;
    if (channels.length === 0) return true;
    this.#resampler.push(this.#mix(channels));
    const pending = this.#frame.subarray(this.#filled);
    let made = this.#resampler.pull(pending);
    while (made > 0) {
      this.#filled += made;
      if (this.#filled === FRAME) this.#send();
      made = this.#resampler.pull(this.#frame.subarray(this.#filled));
    }
    return true;
  }

  #mix(channels) {
    if (channels.length === 1) return channels[0];
    const length = channels[0].length;
    if (this.#mono.length !== length) this.#mono = new Float32Array(length);
    this.#mono.fill(0);
    for (const channel of channels) {
      for (let k = 0; k < length; k += 1) this.#mono[k] += channel[k] / channels.length;
    }
    return this.#mono;
  }

  #send() {
    const pcm = new Int16Array(FRAME);
    let energy = 0;
    if (!this.#muted) {
      for (let k = 0; k < FRAME; k += 1) {
        const sample = Math.max(-1, Math.min(1, this.#frame[k]));
        energy += sample * sample;
        pcm[k] = Math.round(sample * 32767);
      }
    }
    this.#filled = 0;
    this.port.postMessage({ pcm, level: Math.sqrt(energy / FRAME) }, [pcm.buffer]);
  }
}

registerProcessor("duologue-capture", Capture);
