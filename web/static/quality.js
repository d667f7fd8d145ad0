// How good a call's line is, from the browser's own statistics. No DOM, no clock.

const WINDOW = 10; // samples: figures are those of the last seconds, not of the whole call

/** What matters of an RTCStatsReport, as plain running totals. */
export function totalsOf(report) {
  const totals = {};
  for (const entry of report.values()) {
    if (entry.type === "inbound-rtp" && entry.kind === "audio") {
      totals.received = entry.packetsReceived ?? 0;
      totals.lost = entry.packetsLost ?? 0;
      totals.jitterMs = (entry.jitter ?? 0) * 1000;
      totals.samples = entry.totalSamplesReceived ?? 0;
      // Silence that is made up where nothing was said is no loss to anybody.
      totals.concealed = (entry.concealedSamples ?? 0) - (entry.silentConcealedSamples ?? 0);
      totals.waitedMs = (entry.jitterBufferDelay ?? 0) * 1000;
      totals.emitted = entry.jitterBufferEmittedCount ?? 0;
    } else if (entry.type === "remote-inbound-rtp" && entry.kind === "audio") {
      totals.lostOut = entry.fractionLost;
      totals.roundTripMs = entry.roundTripTime && entry.roundTripTime * 1000;
    } else if (entry.type === "candidate-pair" && entry.nominated) {
      totals.checkedMs = entry.currentRoundTripTime && entry.currentRoundTripTime * 1000;
    }
  }
  return totals;
}

/**
 * {lossPercent, jitterMs, roundTripMs, concealedPercent, delayMs} between two totals of a call, each
 * null while it can't be told. Loss is the worse of both ways.
 */
export function qualityOf(before, after) {
  const share = (part, whole) => (whole > 0 ? (100 * Math.max(0, part)) / whole : null);
  const grown = (name) => (after[name] ?? 0) - (before[name] ?? 0);
  const lossIn = share(grown("lost"), grown("lost") + grown("received"));
  const lossOut = after.lostOut === undefined ? null : after.lostOut * 100;
  const losses = [lossIn, lossOut].filter((loss) => loss !== null);
  return {
    lossPercent: losses.length === 0 ? null : Math.max(...losses),
    jitterMs: after.jitterMs ?? null,
    roundTripMs: after.roundTripMs ?? after.checkedMs ?? null,
    concealedPercent: share(grown("concealed"), grown("samples")),
    delayMs: grown("emitted") > 0 ? grown("waitedMs") / grown("emitted") : null,
  };
}

/** The quality of one call; `sample(report)` once a second. */
export class Quality {
  now = qualityOf({}, {});
  #kept = [];

  sample(report) {
    this.#kept.push(totalsOf(report));
    if (this.#kept.length > WINDOW) this.#kept.shift();
    this.now = qualityOf(this.#kept[0], this.#kept.at(-1));
  }
}
