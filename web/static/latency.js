// When somebody stopped speaking, and what the wait for the answer was made of. No DOM, no clock.

const FRAME_MS = 20;
const FRAMES_KEPT = 500; // ten seconds
const UTTERANCE_MS = 4000;
const VOICED = 0.05; // of the utterance's loudest frame, 26 dB below it
const TOGETHER_MS = 150; // words and sound that came so close together came at once

/** Remembers when each frame was captured, to date the end of speech by the sound itself. */
export class SpeechClock {
  #frames = [];
  #sentMs = 0;

  /** A frame that was sent: its level (RMS, 0 to 1) and when it was captured (ms). */
  sent(level, capturedAt) {
    this.#sentMs += FRAME_MS;
    this.#frames.push({ ms: this.#sentMs, at: capturedAt, level });
    if (this.#frames.length > FRAMES_KEPT) this.#frames.shift();
  }

  /** A new session counts its audio from zero. */
  reset() {
    this.#frames = [];
    this.#sentMs = 0;
  }

  /**
   * When the user fell silent: the last voiced frame before the place in the session's audio that
   * the server names, which may or may not lie after its patience; null for the last of all.
   */
  endOfSpeech(audioEndMs, now) {
    const named = audioEndMs === null ? null : this.#frames.find(({ ms }) => ms >= audioEndMs);
    const end = named?.at ?? now;
    const utterance = this.#frames.filter(({ at }) => at <= end && at > end - UTTERANCE_MS);
    const loudest = Math.max(0, ...utterance.map((frame) => frame.level));
    const voiced = utterance.findLast((frame) => frame.level > loudest * VOICED);
    return loudest > 0 && voiced ? voiced.at : end;
  }
}

/**
 * A turn's wait in milliseconds, or null while nothing can be said.
 *
 * `turn` has the times endedAt, transcriptAt, textAt, audioAt and cancelledAt (null when not so far,
 * or never). The parts heard, thought and spoke follow one another and add up to the total: an
 * answer that began before the final transcript was shown counts as thought of in no time. Where
 * words came only with their sound, `answered` stands for thought and spoke, which can't be told
 * apart. An answer that was cancelled before it made a sound has `cancelled` for its last part.
 */
export function figuresOf(turn) {
  const { endedAt, transcriptAt, textAt, audioAt, cancelledAt } = turn;
  const cancelled = audioAt === null && cancelledAt !== null;
  const last = cancelled ? cancelledAt : (audioAt ?? textAt);
  if (endedAt === null || last === null || last < endedAt) return null;
  const text = Math.max(endedAt, Math.min(textAt ?? last, last));
  const transcript = Math.max(endedAt, Math.min(transcriptAt ?? text, text));
  const parts = { heard: turn.typed ? null : Math.round(transcript - endedAt) };
  const rest = Math.round(last - transcript);
  const none = { thought: null, spoke: null, answered: null, cancelled: null };
  const total = Math.round(last - endedAt);
  if (cancelled) {
    // Without a transcript, nobody knows how long hearing took.
    if (transcriptAt === null) return { ...none, heard: null, cancelled: total, total };
    return { ...parts, ...none, cancelled: rest, total };
  }
  if (audioAt === null) return { ...parts, ...none, thought: rest, total };
  if (audioAt - text < TOGETHER_MS) return { ...parts, ...none, answered: rest, total };
  const thought = Math.round(text - transcript);
  return { ...parts, ...none, thought, spoke: Math.round(last - text), total };
}
