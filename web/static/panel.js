// The settings: model, voice, devices, and how turns are taken. It keeps preferences, never the key.

import { microphoneIsPossible, soundIsPossible, speakerCanBeChosen } from "./media.js";
import { RATE } from "./protocol.js";
import { ask } from "./server.js";

const PREFERENCES = "duologue.preferences";
const KEY = "duologue.key";

function read(storage, name) {
  try {
    return storage().getItem(name);
  } catch {
    return null; // storage is off in this browser
  }
}

function write(storage, name, value) {
  try {
    storage().setItem(name, value);
  } catch {
    // Then it lasts as long as the page.
  }
}

const tab = () => window.sessionStorage;
const browser = () => window.localStorage;

function preferences() {
  try {
    return JSON.parse(read(browser, PREFERENCES)) ?? {};
  } catch {
    return {};
  }
}

/** "af_heart" or "en_US-lessac-medium" as a person's name: "Heart", "Lessac". */
export function nameOf(voice) {
  if (voice.name) return voice.name;
  const word = voice.id
    .replace(/^[a-z]{1,2}_(?=[a-z])/, "")
    .replace(/^[a-z]{2}_[A-Z]{2}-/, "")
    .split(/[-_]/)[0];
  return word.charAt(0).toUpperCase() + word.slice(1);
}

/** The one honest line about a model. */
export function statementOf(model) {
  const about = model?.duologue ?? {};
  if (typeof about.statement === "string") return about.statement;
  if (about.kind === "scripted")
    return "A script, not a model: it says the same lines to everyone.";
  const size = /(\d+(?:\.\d+)?)\s*([bm])(?![a-z])/i.exec(about.parameters ?? model?.id ?? "");
  const large = size && size[2].toLowerCase() === "b" && Number(size[1]) >= 3;
  const what = size ? `A ${size[1]}${size[2].toUpperCase()}-parameter model` : "A small model";
  if (large) return `${what} on your server. Check what matters.`;
  return `${what} on your own machine: it holds a conversation; don't trust its facts.`;
}

function voicesOf(model) {
  const voices = model?.duologue?.voices;
  if (!Array.isArray(voices)) return [];
  return voices
    .map((voice) => (typeof voice === "string" ? { id: voice } : voice))
    .filter((voice) => typeof voice?.id === "string");
}

/** Models one can talk with, from whatever /v1/models says; without our fields, all of them. */
function conversational(models) {
  const named = models.filter((model) => typeof model?.id === "string");
  const ours = named.filter((model) => model.duologue);
  return ours.length > 0 ? ours : named;
}

function fill(select, choices, chosen) {
  select.replaceChildren(
    ...choices.map(({ id, label }) => {
      const option = document.createElement("option");
      option.value = id;
      option.textContent = label;
      return option;
    }),
  );
  if (choices.some(({ id }) => id === chosen)) select.value = chosen;
  select.closest("label").hidden = choices.length === 0;
}

/** `changed(what)` is called with "model", "voice", "turns", "instructions", "microphone", … */
export class Panel {
  key = read(tab, KEY) ?? "";
  models = [];
  iceServers = [];
  isWell = false; // what the server said last when it was asked
  #fields;
  #page;
  #statement;
  #only;
  #changed;

  /** `only` is where the name of the only model is written. */
  constructor({ form, statement, only, page, changed }) {
    this.#only = only;
    this.#fields = form.elements;
    this.#page = page;
    this.#statement = statement;
    this.#changed = changed;
    const { clean, turns, instructions, line, mode } = preferences();
    if (mode) this.#fields.mode.value = mode;
    if (line) this.#fields.line.value = line;
    if (clean !== undefined) this.#fields.clean.checked = clean;
    if (turns) this.#fields.turns.value = turns;
    if (instructions) this.#fields.instructions.value = instructions;
    for (const select of ["model", "voice", "microphone", "speaker"]) {
      fill(this.#fields[select], [], "");
    }
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("change", ({ target }) => {
      if (target.name === "model") this.#showVoices();
      this.#keep();
      this.#changed(target.name);
    });
    this.#showStatement();
  }

  get model() {
    return this.#fields.model.value;
  }

  get voice() {
    return this.#fields.voice.value;
  }

  get voiceName() {
    const voice = this.#voices.find(({ id }) => id === this.voice);
    return voice ? nameOf(voice) : "Voice";
  }

  get microphone() {
    return this.#fields.microphone.value;
  }

  get speaker() {
    return this.#fields.speaker.value;
  }

  get clean() {
    return this.#fields.clean.checked;
  }

  get turns() {
    return this.#fields.turns.value;
  }

  /** "turns", or "duplex" for a conversation in which both may speak at once. */
  get mode() {
    return this.#fields.mode.value;
  }

  /** "auto", or "websocket" for no call. */
  get line() {
    return this.#fields.line.value;
  }

  get instructions() {
    return this.#fields.instructions.value.trim();
  }

  /** The settings as the wire's session. */
  session() {
    const format = { type: "audio/pcm", rate: RATE };
    return {
      type: "realtime",
      output_modalities: [soundIsPossible() ? "audio" : "text"],
      ...(this.instructions ? { instructions: this.instructions } : {}),
      audio: {
        input: { format, transcription: { model: "whisper-1" }, turn_detection: this.#detection() },
        output: { format, ...(this.voice ? { voice: this.voice } : {}) },
      },
    };
  }

  #detection() {
    const common = { create_response: true, interrupt_response: true };
    if (this.turns === "fixed") {
      return { type: "server_vad", silence_duration_ms: 500, prefix_padding_ms: 300, ...common };
    }
    const eagerness = this.turns === "patient" ? "low" : "auto";
    return { type: "semantic_vad", eagerness, ...common };
  }

  get #model() {
    return this.models.find(({ id }) => id === this.model);
  }

  get #voices() {
    return voicesOf(this.#model);
  }

  keepKey(key) {
    this.key = key;
    write(tab, KEY, key);
  }

  #keep() {
    const { turns, instructions, clean, line, mode } = this;
    const kept = { ...preferences(), turns, instructions, clean, line, mode };
    for (const select of ["model", "voice", "microphone", "speaker"]) {
      if (this.#fields[select].length > 0) kept[select] = this.#fields[select].value;
    }
    write(browser, PREFERENCES, JSON.stringify(kept));
  }

  /** Ask the server what there is; answers "well", "refused", "full" or "away". */
  async load() {
    const { state, models, iceServers } = await ask(this.#page, this.key);
    this.isWell = state === "well";
    if (!this.isWell) return state;
    this.iceServers = iceServers;
    this.#show(models);
    return state;
  }

  #show(models) {
    const before = this.model || preferences().model;
    this.models = conversational(models);
    const choices = this.models.map((model) => ({
      id: model.id,
      label: model.duologue?.name ?? model.id,
    }));
    fill(this.#fields.model, choices, before);
    // A choice of one is none, and a name in a list is cut off where one in a line is not.
    this.#only.textContent = choices.length === 1 ? choices[0].label : "";
    this.#only.hidden = choices.length !== 1;
    this.#fields.model.parentElement.hidden = choices.length === 1;
    this.#showVoices();
  }

  #showVoices() {
    const choices = this.#voices.map((voice) => ({ id: voice.id, label: nameOf(voice) }));
    const usual = this.#model?.duologue?.default_voice ?? choices[0]?.id;
    fill(this.#fields.voice, choices, usual);
    const wanted = this.voice && preferences().voice;
    if (choices.some(({ id }) => id === wanted)) this.#fields.voice.value = wanted;
    this.#showStatement();
  }

  #showStatement() {
    this.#statement.textContent = statementOf(this.#model);
  }

  showDevices({ microphones, speakers }) {
    const { microphone, speaker } = preferences();
    const list = (devices) => {
      const others = devices.filter(({ id }) => id !== "default");
      return others.length === 0 ? [] : [{ id: "", label: "System default" }, ...others];
    };
    fill(this.#fields.microphone, microphoneIsPossible() ? list(microphones) : [], microphone);
    fill(this.#fields.speaker, speakerCanBeChosen() ? list(speakers) : [], speaker);
  }

  /** The chosen microphone has gone: the system's own is used. */
  forgetMicrophone() {
    this.#fields.microphone.value = "";
    this.#keep();
  }
}
