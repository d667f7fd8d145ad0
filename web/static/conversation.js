// What was said: the items of a conversation as the wire tells them. No DOM; time is an argument.

import { figuresOf } from "./latency.js";

const USUAL_CHARACTERS_PER_MS = 0.0145; // until a voice has shown its own pace

class Item {
  text = "";
  final = false;
  speaking = false; // the user's voice is on
  typed = false;
  committed = false;
  note = "";
  turn = null;
  playedMs = 0;
  audioMs = 0;
  audioDone = false;
  wholeHeard = false;
  cutAtMs = null;
  heardText = null; // the server's word for what was heard of an interrupted item

  constructor(id, role) {
    this.id = id;
    this.role = role;
  }
}

function newTurn(item, endedAt, typed) {
  return {
    user: item.id,
    assistant: null,
    typed,
    endedAt,
    transcriptAt: typed ? endedAt : null,
    textAt: null,
    audioAt: null,
    cancelledAt: null,
    response: null,
    interrupted: false,
  };
}

/** `told` has changed(item), added(item) and removed(item). */
export class Conversation {
  turns = [];
  #items = new Map();
  #told;
  #charactersPerMs = USUAL_CHARACTERS_PER_MS;
  #cutResponses = new Set();

  constructor(told) {
    this.#told = told;
  }

  get items() {
    return [...this.#items.values()];
  }

  item(id) {
    return this.#items.get(id);
  }

  #add(id, role) {
    let item = this.#items.get(id);
    if (item === undefined) {
      item = new Item(id, role);
      this.#items.set(id, item);
      this.#told.added(item);
    }
    return item;
  }

  #remove(item) {
    this.#items.delete(item.id);
    // What nobody said needs no answer, and has no wait.
    if (item.role === "user") this.turns = this.turns.filter((turn) => turn !== item.turn);
    this.#told.removed(item);
  }

  #change(id, change) {
    const item = this.#items.get(id);
    if (item === undefined) return;
    change(item);
    this.#told.changed(item);
  }

  // --- the user ---

  speechStarted(id) {
    for (const item of this.items) {
      const stray = item.role === "user" && !item.committed && !item.final && item.id !== id;
      if (stray && item.text === "") this.#remove(item);
    }
    const item = this.#add(id, "user");
    item.speaking = true;
    this.#told.changed(item);
  }

  speechStopped(id, endedAt) {
    this.#change(id, (item) => {
      item.speaking = false;
      if (item.turn === null) {
        item.turn = newTurn(item, endedAt, false);
        this.turns.push(item.turn);
      }
      item.turn.endedAt = endedAt;
    });
  }

  typed(id, text, now) {
    const item = this.#add(id, "user");
    Object.assign(item, { text, final: true, typed: true, committed: true });
    item.turn = newTurn(item, now, true);
    this.turns.push(item.turn);
    this.#told.changed(item);
  }

  #transcript(id, now, change) {
    const item = this.#add(id, "user");
    change(item);
    if (item.final && item.turn) item.turn.transcriptAt ??= now;
    if (item.final && item.text === "" && item.note === "") this.#remove(item);
    else this.#told.changed(item);
  }

  // --- the assistant ---

  #begin(event) {
    if (event.item.type !== "message" || event.item.role !== "assistant") return;
    const item = this.#add(event.item.id, "assistant");
    item.response = event.response_id;
    const turn = this.turns.at(-1);
    if (turn && turn.assistant === null) {
      turn.assistant = item.id;
      item.turn = turn;
    }
    this.#told.changed(item);
  }

  #answering({ response }) {
    const turn = this.turns.at(-1);
    if (turn && response.conversation_id !== null) turn.response ??= response.id;
  }

  #say(event, now) {
    this.#change(event.item_id, (item) => {
      if (item.cutAtMs !== null) return;
      item.text += event.delta;
      if (item.turn) item.turn.textAt ??= now;
    });
  }

  /** More audio of an item has arrived; false when it was interrupted and must not be played. */
  audioArrived(id, responseId, milliseconds) {
    const item = this.#items.get(id);
    if (item?.cutAtMs != null || this.#cutResponses.has(responseId)) return false;
    if (item) item.audioMs += milliseconds;
    return true;
  }

  audioStarted(id, atEar) {
    this.#change(id, (item) => {
      if (item.turn) item.turn.audioAt ??= atEar;
    });
  }

  played(id, milliseconds, whole = false) {
    this.#change(id, (item) => {
      if (item.cutAtMs !== null) return;
      item.playedMs = milliseconds;
      if (!whole) return;
      item.wholeHeard = true;
      item.audioMs ||= milliseconds; // of what the server played out, this is the length
      if (item.audioMs > 1500) this.#charactersPerMs = item.text.length / item.audioMs;
    });
  }

  cutResponse(id) {
    this.#cutResponses.add(id);
  }

  cut(id, playedMs) {
    this.#change(id, (item) => {
      item.cutAtMs = playedMs;
      item.playedMs = playedMs;
      if (item.turn) item.turn.interrupted = true;
    });
  }

  #retrieved({ item: told }) {
    const part = told.content?.[0];
    this.#change(told.id, (item) => {
      if (item.cutAtMs !== null) item.heardText = part?.transcript ?? part?.text ?? "";
      else if (item.role === "user" && part?.transcript) item.text = part.transcript;
    });
  }

  #responseDone({ response }, now) {
    for (const item of this.items) {
      if (item.role !== "assistant" || item.response !== response.id) continue;
      item.final = true;
      item.audioDone = true;
      if (response.status === "failed") item.note = "The answer failed.";
      const reason = response.status_details?.reason;
      if (reason === "max_output_tokens") item.note = "Cut off: the answer was too long.";
      if (item.text === "" && item.note === "") this.#remove(item);
      else this.#told.changed(item);
    }
    if (response.status === "cancelled") this.#cancelled(response.id, now);
  }

  #cancelled(id, now) {
    const turn = this.turns.find((one) => one.response === id);
    if (!turn || turn.audioAt !== null) return;
    turn.cancelledAt = now;
    const item = this.item(turn.assistant ?? turn.user) ?? this.item(turn.user);
    if (item) this.#told.changed(item);
  }

  /** The session is gone: nothing more comes of what was being said. Returns the ids concerned. */
  lineLost() {
    const unfinished = this.items.filter((item) => !item.final);
    for (const item of unfinished) {
      item.final = item.role === "assistant" || item.text !== "";
      item.speaking = false;
      item.audioDone = true;
      if (item.text === "") this.#remove(item);
      else this.#told.changed(item);
    }
    return unfinished.map((item) => item.id);
  }

  // --- full duplex: words come as they are heard, and nobody's turn is told ---

  /** The user said this; whether it is all of it is not known. */
  heardOf(id, delta) {
    const item = this.#add(id, "user");
    item.text = (item.text + delta).trimStart();
    item.committed = true;
    item.final = !item.speaking;
    this.#told.changed(item);
  }

  /** The user paused; an answer is measured from here, its words and its sound being one. */
  fellSilent(id, endedAt) {
    this.#change(id, (item) => {
      item.speaking = false;
      item.final = item.text !== "";
      item.turn = newTurn(item, endedAt, true);
      this.turns.push(item.turn);
    });
  }

  /** The assistant was heard to say this. */
  spokenBy(id, delta, now) {
    const item = this.#add(id, "assistant");
    const turn = this.turns.at(-1);
    if (item.text === "" && turn && turn.assistant === null) {
      Object.assign(turn, { assistant: id, textAt: now, audioAt: now });
      item.turn = turn;
    }
    item.text = (item.text + delta).trimStart();
    item.wholeHeard = true;
    this.#told.changed(item);
  }

  /** No more comes of this item: one without words is no line. */
  ended(id) {
    const item = this.#items.get(id);
    if (item === undefined) return;
    item.final = true;
    item.speaking = false;
    if (item.text === "") this.#remove(item);
    else this.#told.changed(item);
  }

  // --- the wire ---

  receive(event, now) {
    const id = event.item_id;
    switch (event.type) {
      case "input_audio_buffer.committed":
        this.#change(id, (item) => (item.committed = true));
        break;
      case "conversation.item.input_audio_transcription.delta":
        this.#transcript(id, now, (item) => (item.text += event.delta ?? ""));
        break;
      case "conversation.item.input_audio_transcription.completed":
        this.#transcript(id, now, (item) => {
          item.text = event.transcript.trim();
          item.final = true;
        });
        break;
      case "conversation.item.input_audio_transcription.failed":
        this.#transcript(id, now, (item) => {
          item.note = "Could not be made out.";
          item.final = true;
        });
        break;
      case "response.created":
        this.#answering(event);
        break;
      case "response.output_item.added":
        this.#begin(event);
        break;
      case "response.output_audio_transcript.delta":
      case "response.output_text.delta":
        this.#say(event, now);
        break;
      case "response.output_audio_transcript.done":
        this.#change(id, (item) => (item.text = event.transcript || item.text));
        break;
      case "response.output_text.done":
        this.#change(id, (item) => {
          item.text = event.text || item.text;
          item.wholeHeard = true;
        });
        break;
      case "response.output_audio.done":
        this.#change(id, (item) => (item.audioDone = true));
        break;
      case "conversation.item.retrieved":
        this.#retrieved(event);
        break;
      case "response.done":
        this.#responseDone(event, now);
        break;
    }
  }

  // --- what to show, and what to remember ---

  /** How many characters of an assistant's text have been heard, to the end of a word. */
  heardCharacters(item) {
    const { text } = item;
    if (item.heardText !== null) return commonLength(text, item.heardText);
    if (item.wholeHeard) return text.length;
    if (item.playedMs <= 0) return 0;
    const pace =
      item.audioDone && item.audioMs > 0 ? text.length / item.audioMs : this.#charactersPerMs;
    const reached = Math.floor(item.playedMs * pace);
    if (reached >= text.length) return text.length;
    if (item.cutAtMs !== null) return Math.max(0, text.lastIndexOf(" ", reached));
    const end = text.indexOf(" ", reached);
    return end === -1 ? text.length : end;
  }

  /** An answer's figures; of one that was never begun, they are its question's. */
  figures(item) {
    const { turn } = item;
    if (!turn) return null;
    const unanswered = !this.#items.has(turn.assistant);
    if (item.role === "user" && !(unanswered && turn.cancelledAt !== null)) return null;
    return figuresOf(turn);
  }

  /**
   * The conversation so far as items to give to a new session: what was said and heard, and what
   * still waits to be played, since it will be heard unless it is cut.
   */
  history(atMost = 40) {
    return this.items
      .map((item) => this.message(item.id))
      .filter((message) => message !== null)
      .slice(-atMost);
  }

  /** One item as the wire's message, or null when there is nothing of it to remember. */
  message(id) {
    const item = this.#items.get(id);
    const user = item.role === "user";
    const known = user || item.cutAtMs === null ? item.text.length : this.heardCharacters(item);
    const text = item.text.slice(0, known).trim();
    if (text === "" || (user && !item.final)) return null;
    const type = user ? "input_text" : "output_text";
    return { id, type: "message", role: item.role, content: [{ type, text }] };
  }

  /** The id of the item before this one, or "root". */
  before(id) {
    const ids = [...this.#items.keys()];
    return ids[ids.indexOf(id) - 1] ?? "root";
  }
}

/** The length of the part of `text` that has the words of `heard`, which may be spaced otherwise. */
function commonLength(text, heard) {
  let at = 0;
  let end = 0;
  for (const word of heard.split(/\s+/).filter(Boolean)) {
    const found = text.indexOf(word, at);
    if (found === -1 || text.slice(at, found).trim() !== "") break;
    at = found + word.length;
    end = at;
  }
  return end;
}
