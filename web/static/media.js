// Sound: one AudioContext, the two worklets, the devices. It knows nothing of the wire or the page.

const HERE = import.meta.url;
const START_MS = 8000;
const METER = 1024; // samples: 21 ms at 48 kHz

/** Why the microphone or the speaker can't be used; `reason` is a word that the page explains. */
export class MediaTrouble extends Error {
  constructor(reason, cause) {
    super(reason, { cause });
    this.reason = reason;
  }
}

const REASONS = {
  NotAllowedError: "refused",
  SecurityError: "refused",
  NotFoundError: "none",
  DevicesNotFoundError: "none",
  NotReadableError: "busy",
  AbortError: "busy",
  OverconstrainedError: "gone",
};

/** What getUserMedia threw, as MediaTrouble; `device` is "" for the microphone, or "camera". */
export function troubleOf(error, device = "") {
  const reason = REASONS[error.name] ?? "broken";
  return new MediaTrouble(device ? `${device}:${reason}` : reason, error);
}

/** Sound needs a secure page: https, or a loopback address. */
export function soundIsPossible() {
  return window.isSecureContext && "AudioWorkletNode" in window;
}

export function microphoneIsPossible() {
  return soundIsPossible() && navigator.mediaDevices?.getUserMedia !== undefined;
}

function inContext() {
  return "setSinkId" in AudioContext.prototype;
}

export function speakerCanBeChosen() {
  if (!soundIsPossible()) return false;
  return inContext() || "setSinkId" in HTMLMediaElement.prototype;
}

/**
 * `told` has the listeners: frame({pcm, level}) every 20 ms of microphone at 24 kHz,
 * position({id, playedMs, level, heldMs}), started(id), played(id, playedMs), rest(),
 * underrun(count), microphoneLost(), contextState(state).
 */
export class Media {
  underruns = 0;
  refusedSamples = 0;
  callDelayMs = 0; // of the browser's own buffer in a call
  #told;
  #context = null;
  #ready = null;
  #playout = null;
  #capture = null;
  #source = null;
  #stream = null;
  #muted = false;
  #given = new Set(); // the items that are played here
  #flushes = new Map();
  #token = 0;
  #speaker = "";
  #element = null;
  #call = null; // {element, source, meter} of what the server plays out
  #opening = 0;

  constructor(told) {
    this.#told = told;
  }

  /** Start the sound system; call it from a click or a key, or browsers keep it silent. */
  async prepare() {
    if (!soundIsPossible()) throw new MediaTrouble("insecure");
    if (this.#ready === null) {
      this.#ready = this.#build().catch((error) => {
        this.#ready = null;
        throw error;
      });
    }
    await this.#ready;
    if (this.#context.state !== "running") await this.#start();
  }

  /** Some browsers wait for ever where there is no loudspeaker. */
  async #start() {
    const late = new Promise((_, reject) => {
      setTimeout(() => reject(new MediaTrouble("silent")), START_MS);
    });
    await Promise.race([this.#context.resume(), late]);
  }

  async #build() {
    const context = new AudioContext({ latencyHint: "interactive" });
    context.onstatechange = () => this.#told.contextState(context.state);
    this.#context = context;
    await Promise.all([
      context.audioWorklet.addModule(new URL("capture-worklet.js", HERE)),
      context.audioWorklet.addModule(new URL("playout-worklet.js", HERE)),
    ]);
    this.#playout = new AudioWorkletNode(context, "duologue-playout", {
      numberOfInputs: 0,
      outputChannelCount: [1],
    });
    this.#playout.port.onmessage = ({ data }) => this.#hear(data);
    this.#playout.connect(context.destination);
    if (this.#speaker) await this.chooseSpeaker(this.#speaker);
  }

  #hear(data) {
    switch (data.type) {
      case "position":
        this.refusedSamples = data.refused;
        this.#told.position(data);
        break;
      case "started":
        this.#told.started(data.id);
        break;
      case "played":
        this.#given.delete(data.id);
        this.#told.played(data.id, data.playedMs);
        break;
      case "rest":
        this.#told.rest();
        break;
      case "underrun":
        this.underruns = data.underruns;
        this.#told.underrun(data.underruns);
        break;
      case "flushed":
        for (const { id } of data.items) this.#given.delete(id);
        this.#flushes.get(data.token)?.(data.items);
        this.#flushes.delete(data.token);
        break;
    }
  }

  get microphoneIsOpen() {
    return this.#stream !== null;
  }

  /** The track that is spoken into; null while there is none. */
  get microphone() {
    return this.#stream?.getAudioTracks()[0] ?? null;
  }

  get sampleRate() {
    return this.#context?.sampleRate ?? 0;
  }

  /** Milliseconds until what starts now is heard, as far as the browser tells; `called`: in a call. */
  delayMs(called) {
    if (called) return this.callDelayMs;
    const seconds = this.#context?.outputLatency || this.#context?.baseLatency || 0;
    return seconds * 1000;
  }

  /** Open, or reopen with other settings, the microphone. Throws MediaTrouble. */
  async openMicrophone({ deviceId, clean }) {
    if (!microphoneIsPossible()) throw new MediaTrouble("insecure");
    const opening = ++this.#opening;
    await this.prepare();
    const stream = await this.#ask({
      channelCount: 1,
      echoCancellation: clean,
      noiseSuppression: clean,
      autoGainControl: clean,
      ...(deviceId ? { deviceId: { exact: deviceId } } : {}),
    });
    if (opening !== this.#opening) {
      for (const track of stream.getTracks()) track.stop();
      return;
    }
    this.#release();
    const [track] = stream.getAudioTracks();
    track.onended = () => {
      if (this.#stream !== stream) return;
      this.#release();
      this.#told.microphoneLost();
    };
    this.#stream = stream;
    this.#source = this.#context.createMediaStreamSource(stream);
    this.#capture = new AudioWorkletNode(this.#context, "duologue-capture", {
      outputChannelCount: [1],
    });
    this.#capture.port.onmessage = ({ data }) => {
      if (this.#stream === stream) this.#told.frame(data);
    };
    // Its output is silence; connected all the same, since some browsers run only what is heard.
    this.#source.connect(this.#capture).connect(this.#context.destination);
    this.mute(this.#muted);
  }

  async #ask(audio) {
    try {
      return await navigator.mediaDevices.getUserMedia({ audio, video: false });
    } catch (error) {
      throw troubleOf(error);
    }
  }

  closeMicrophone() {
    this.#opening += 1;
    this.#release();
  }

  #release() {
    this.#capture?.port.postMessage({ type: "close" });
    this.#source?.disconnect();
    this.#capture?.disconnect();
    for (const track of this.#stream?.getTracks() ?? []) track.stop();
    this.#stream = null;
    this.#source = null;
    this.#capture = null;
  }

  /** A muted microphone goes on sending, but silence. */
  mute(muted) {
    this.#muted = muted;
    for (const track of this.#stream?.getAudioTracks() ?? []) track.enabled = !muted;
    this.#capture?.port.postMessage({ type: "mute", muted });
  }

  /** Queue PCM16 at 24 kHz behind what is queued; the array is handed over. */
  play(id, content, pcm) {
    this.#given.add(id);
    this.#playout?.port.postMessage({ type: "audio", id, content, pcm }, [pcm.buffer]);
  }

  /** All the audio of this item has been given. */
  finish(id) {
    this.#playout?.port.postMessage({ type: "end", id });
  }

  /** Whether some of this item waits to be played here, or is played. */
  plays(id) {
    return this.#given.has(id);
  }

  /** Fade out and forget; resolves to [{id, content, playedMs}] of what was cut. */
  flush() {
    if (this.#playout === null) return Promise.resolve([]);
    this.#token += 1;
    const token = this.#token;
    return new Promise((resolve) => {
      this.#flushes.set(token, resolve);
      this.#playout.port.postMessage({ type: "flush", token });
    });
  }

  /** Let what the server plays out be heard; the sound system has been started. */
  async hear(stream) {
    this.unhear();
    const element = new Audio();
    element.srcObject = stream;
    this.#call = { element, source: null, meter: null };
    if (this.#context !== null) {
      const source = this.#context.createMediaStreamSource(stream);
      const meter = new AnalyserNode(this.#context, { fftSize: METER });
      source.connect(meter);
      Object.assign(this.#call, { source, meter });
    }
    if (this.#speaker) await element.setSinkId?.(this.#speaker).catch(() => {});
    await element.play().catch(() => {}); // replaced by another at once
  }

  unhear() {
    this.callDelayMs = 0;
    this.#call?.source?.disconnect();
    if (this.#call) this.#call.element.srcObject = null;
    this.#call = null;
  }

  /** How loud the server is now: RMS, 0 to 1. */
  get heardLevel() {
    const meter = this.#call?.meter;
    if (!meter) return 0;
    const samples = new Float32Array(METER);
    meter.getFloatTimeDomainData(samples);
    return Math.sqrt(samples.reduce((sum, sample) => sum + sample * sample, 0) / METER);
  }

  /** {microphones, speakers}, each [{id, label}]; labels are empty until a microphone was granted. */
  async devices() {
    const found = (await navigator.mediaDevices?.enumerateDevices?.()) ?? [];
    const list = (kind) =>
      found
        .filter((device) => device.kind === kind && device.deviceId && device.label)
        .map((device) => ({ id: device.deviceId, label: device.label }));
    return { microphones: list("audioinput"), speakers: list("audiooutput") };
  }

  /** Play through another speaker ("" is the system's). Throws MediaTrouble. */
  async chooseSpeaker(id) {
    this.#speaker = id;
    if (this.#context === null) return;
    try {
      await this.#call?.element.setSinkId?.(id === "default" ? "" : id);
      if (inContext()) await this.#context.setSinkId(id === "default" ? "" : id);
      else await this.#throughElement(id);
    } catch (error) {
      throw new MediaTrouble("speaker", error);
    }
  }

  /** Browsers without AudioContext.setSinkId route a media element instead. */
  async #throughElement(id) {
    if (this.#element === null) {
      if (!id) return;
      const destination = this.#context.createMediaStreamDestination();
      this.#element = new Audio();
      this.#element.srcObject = destination.stream;
      this.#playout.disconnect();
      this.#playout.connect(destination);
      await this.#element.play();
    }
    await this.#element.setSinkId(id);
  }
}
