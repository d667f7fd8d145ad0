// When somebody stopped speaking, and what the wait for the answer was made of. No DOM, no clock.

const FRAME_MS = 20;
const FRAMES_KEPT = 500; // ten seconds
const UTTERANCE_MS = 4000;
const VOICED = 0.05; // of the utterance's loudest frame, 26 dB below it

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
   * the server names, which may or may not lie after its patience.
   */
  endOfSpeech(audioEndMs, now) {
    const end = this.#frames.find((frame) => frame.ms >= audioEndMs)?.at ?? now;
    const utterance = this.#frames.filter(({ at }) => at <= end && at > end - UTTERANCE_MS);
    const loudest = Math.max(0, ...utterance.map((frame) => frame.level));
    const voiced = utterance.findLast((frame) => frame.level > loudest * VOICED);
    return loudest > 0 && voiced ? voiced.at : end;
  }
}

/**
 * A turn's wait in milliseconds, or null while nothing can be said.
 *
 * `turn` has the times endedAt, transcriptAt, textAt, audioAt (null when not so far, or never). The
 * three parts follow one another and add up to the total: an answer that began before the final
 * transcript was shown counts as thought of in no time.
 */
export function figuresOf(turn) {
  const { endedAt, transcriptAt, textAt, audioAt } = turn;
  const last = audioAt ?? textAt;
  if (endedAt === null || last === null) return null;
  const text = Math.max(endedAt, Math.min(textAt ?? last, last));
  const transcript = Math.max(endedAt, Math.min(transcriptAt ?? text, text));
  return {
    heard: turn.typed ? null : Math.round(transcript - endedAt),
    thought: Math.round(text - transcript),
    spoke: audioAt === null ? null : Math.round(last - text),
    total: Math.round(last - endedAt),
  };
}
