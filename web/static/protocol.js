// The events of a session, over whatever carries them. It knows nothing of the page.

export const RATE = 24000; // samples a second of audio/pcm, both ways

const LAST_ERRORS = ["session_expired", "session_idle"]; // a close follows, and it is meant
const QUEUED_BYTES_AT_MOST = 1 << 20; // about 16 s of base64 PCM16: then new audio is dropped

/** Little-endian PCM16 as base64. */
export function encodeAudio(pcm) {
  const bytes = new Uint8Array(pcm.buffer, pcm.byteOffset, pcm.byteLength);
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) {
    text += String.fromCharCode.apply(null, bytes.subarray(at, at + 8192));
  }
  return btoa(text);
}

/** Base64 as little-endian PCM16; an odd last byte is ignored. */
export function decodeAudio(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length & ~1);
  for (let at = 0; at < bytes.length; at += 1) bytes[at] = text.charCodeAt(at);
  return new Int16Array(bytes.buffer);
}

/** A new id, unguessable enough to be unique in a conversation; at most 32 characters. */
export function newId(prefix) {
  const bytes = crypto.getRandomValues(new Uint8Array(10));
  return prefix + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Milliseconds before reconnection number `attempt` (from 0): 0.5 s doubling to 8 s, jittered. */
export function backoff(attempt, random = Math.random()) {
  return Math.min(8000, 500 * 2 ** attempt) * (0.75 + random / 2);
}

/**
 * What a close means for whoever wants to go on: "done", "refused" (the key), "policy", "full",
 * "draining" or "lost". 1008 on a session that had begun is a policy, not a key.
 */
export function meaningOf(code, begun) {
  if (code === 1000) return "done";
  if (code === 1008) return begun ? "policy" : "refused";
  if (code === 1012) return "draining";
  if (code === 1013) return "full";
  return "lost";
}

/**
 * One session, on one carrier: made once, closed once. A carrier has kind, open, waitingBytes,
 * send(text), close(code), and begin(told), after which it tells opened(), message(text),
 * closed({code, reason}) and, where it could not be set up at all, unavailable(reason).
 *
 * Handlers are told every server event by its type, all of them as "*", and three of our own:
 * "opened", "closed" ({code, reason, begun}) and "unavailable" ({reason}).
 */
export class Wire {
  droppedAppends = 0;
  carrier;
  #begins;
  #handlers = new Map();
  #begun = false;
  #over = false; // the server has said that the session is
  #sent = 0;

  /** `begins`: the type of the event with which the session is there. */
  constructor(carrier, begins) {
    this.carrier = carrier;
    this.#begins = begins;
  }

  /** Connect; handlers are set before. */
  begin() {
    this.carrier.begin({
      opened: () => this.#tell("opened", {}),
      message: (text) => this.#receive(text),
      closed: ({ code, reason }) =>
        this.#tell("closed", { code: this.#over ? 1000 : code, reason, begun: this.#begun }),
      unavailable: (reason) => this.#tell("unavailable", { reason }),
    });
  }

  on(type, handler) {
    if (!this.#handlers.has(type)) this.#handlers.set(type, []);
    this.#handlers.get(type).push(handler);
    return this;
  }

  get begins() {
    return this.#begins;
  }

  get open() {
    return this.carrier.open;
  }

  #tell(type, event) {
    for (const handler of this.#handlers.get(type) ?? []) handler(event);
  }

  #receive(text) {
    if (typeof text !== "string") return;
    let event;
    try {
      event = JSON.parse(text);
    } catch {
      return;
    }
    if (event.type === this.#begins) this.#begun = true;
    if (event.type === "session.closed" || LAST_ERRORS.includes(event.error?.code)) this.#over = true;
    this.#tell(event.type, event);
    this.#tell("*", event);
  }

  /** Send one client event; returns its event_id, or null when there is no open connection. */
  send(type, fields = {}) {
    if (!this.open) return null;
    this.#sent += 1;
    const eventId = `page_${this.#sent}`;
    this.carrier.send(JSON.stringify({ type, event_id: eventId, ...fields }));
    return eventId;
  }

  /** Append PCM16; on a line that can't keep up, the newest audio is dropped and counted. */
  sendAudio(type, pcm) {
    if (this.carrier.waitingBytes > QUEUED_BYTES_AT_MOST) {
      this.droppedAppends += 1;
      return null;
    }
    return this.send(type, { audio: encodeAudio(pcm) });
  }

  close(code = 1000) {
    this.carrier.close(code);
  }
}

/** A conversation in turns: the Realtime protocol's client events. */
export class Realtime extends Wire {
  constructor(carrier) {
    super(carrier, "session.created");
  }

  updateSession(session) {
    return this.send("session.update", { session });
  }

  append(pcm) {
    return this.sendAudio("input_audio_buffer.append", pcm);
  }

  clearInput() {
    return this.send("input_audio_buffer.clear");
  }

  /** Stop what the server plays out; only where it does. */
  clearOutput() {
    return this.send("output_audio_buffer.clear");
  }

  createItem(item, previousItemId) {
    const place = previousItemId ? { previous_item_id: previousItemId } : {};
    return this.send("conversation.item.create", { item, ...place });
  }

  retrieveItem(itemId) {
    return this.send("conversation.item.retrieve", { item_id: itemId });
  }

  deleteItem(itemId) {
    return this.send("conversation.item.delete", { item_id: itemId });
  }

  /** Tell the server that only the first `playedMs` of an item's audio were heard. */
  truncateItem(itemId, contentIndex, playedMs) {
    return this.send("conversation.item.truncate", {
      item_id: itemId,
      content_index: contentIndex,
      audio_end_ms: playedMs,
    });
  }

  createResponse(response) {
    return this.send("response.create", response ? { response } : {});
  }

  cancelResponse(responseId) {
    return this.send("response.cancel", responseId ? { response_id: responseId } : {});
  }
}
