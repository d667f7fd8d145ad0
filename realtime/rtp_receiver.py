"""A client's microphone: its packets in, its samples out.

`AudioReceiver` decides whose packets count and in what order; `codecs` does what is to be done
with them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from aiortc.rtp import AnyRtcpPacket, RtcpSrPacket

from duologue.codecs.arrival_order import ArrivalOrder
from duologue.codecs.audio_packet import AudioPacket, Step
from duologue.codecs.audio_playout import AudioPlayout
from duologue.codecs.clock_drift import ClockDrift
from duologue.codecs.media import MalformedDataError
from duologue.codecs.red import split_red
from duologue.codecs.rtp import Place, Reception, RtpPacket, build_receiver_report
from duologue.codecs.voice_decoder import VoiceDecoder
from duologue.realtime.pacer import PERIOD, Pacer
from duologue.realtime.reception_totals import ReceptionTotals
from duologue.realtime.rtc_media import AudioCodec, MediaTarget, MediaTransport
from duologue.sessions.clock import MonotonicClock
from duologue.sessions.ports import Clock

HEARD_RATE = 16_000
REPORT_SECONDS = 1.0
SWITCH_SECONDS = 0.2
"""Another source is listened to when the present one has been silent for this long: a browser that
replaces its track, or a peer that goes on under a new number. Until then it is a stray."""
PACKETS_PER_SECOND = 250.0
"""What one source may send: packets of 5 ms, and some. What is beyond is dropped."""
BURST = 200.0
"""Packets that may come at once, after a network has held them back."""


@dataclass(frozen=True, slots=True)
class ReceiverStats:
    """Since the beginning of the present source, except where it says otherwise."""

    received: int
    lost: int
    """Never below 0."""
    late: int
    """Packets that came too late or twice."""
    malformed: int
    strays: int
    """Packets of other sources, or far from all others, or beyond the rate: of the whole call."""
    decoded_ms: float
    concealed_ms: float
    recovered_ms: float
    jitter_ms: float
    delay_ms: float
    """What the buffer adds to what was played last; where packets are handed on at arrival, what
    each waited on average for those before it."""
    drift_ppm: float
    """How much faster the sender's clock is than ours."""


class PacketBudget:
    """A token bucket: `rate` packets a second, `burst` at once."""

    def __init__(self, rate: float = PACKETS_PER_SECOND, burst: float = BURST) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._filled = -math.inf

    def take(self, now: float) -> bool:
        """Whether there is room for one packet more."""
        elapsed = min(now - self._filled, self._burst / self._rate)
        self._tokens = min(self._burst, self._tokens + elapsed * self._rate)
        self._filled = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


class _Source:
    """One synchronisation source in one codec, from its first packet on."""

    def __init__(self, ssrc: int, codec: AudioCodec, rate: int, lockstep: bool) -> None:
        self.ssrc = ssrc
        self.codec = codec
        self.decoder = VoiceDecoder(codec.name, rate)
        self.reception = Reception(ssrc, self.decoder.clock_rate)
        self.order = ArrivalOrder(self.decoder.clock_rate)
        self.playout = AudioPlayout(self.decoder) if lockstep else None
        self.drift = ClockDrift(self.decoder.clock_rate)
        self.last_packet = -math.inf
        self.counted = ReceptionTotals()

    @property
    def counts(self) -> ReceptionTotals:
        """Since its beginning."""
        decoder = self.decoder
        return ReceptionTotals(
            received=self.reception.received,
            lost=max(0, self.reception.lost),
            decoded=decoder.decoded / decoder.rate,
            concealed=decoder.concealed / decoder.rate,
            recovered=decoder.recovered / decoder.rate,
            waited=self.order.waited,
        )

    @property
    def mean_wait(self) -> float:
        """Seconds that a packet was held behind gaps, on average."""
        return self.order.waited / max(1, self.reception.received)

    def push(self, packet: RtpPacket, place: Place, now: float) -> list[Step]:
        """What to do now. MalformedDataError."""
        if packet.payload_type != self.codec.red_payload_type:
            return self._push(place.sequence, place.timestamp, packet.payload, now, False)
        steps: list[Step] = []
        blocks = split_red(packet.payload)
        for index, block in enumerate(blocks):
            # Blocks say when, not which: the one before is of the packet before.
            back = len(blocks) - 1 - index
            timestamp = place.timestamp - block.timestamp_offset
            if block.payload_type == self.codec.payload_type and (block.payload or not back):
                steps += self._push(place.sequence - back, timestamp, block.payload, now, back > 0)
        return steps

    def _push(
        self, sequence: int, timestamp: int, payload: bytes, now: float, redundant: bool
    ) -> list[Step]:
        packet = AudioPacket(sequence, timestamp, payload, self.decoder.ticks(payload))
        if self.playout is not None:
            self.playout.push(packet, now, redundant)
            return []
        return self.order.push(packet, now, redundant)

    def restart(self) -> list[Step]:
        if self.playout is not None:
            self.playout.restart()
        return self.order.restart()


class AudioReceiver(MediaTarget):
    """The sound of one audio section, int16 mono at `rate`.

    `on_audio(pcm, now)` gets it on the event loop, in order. With `lockstep` it is called with
    exactly 20 ms every 20 ms, from an adaptive buffer, from the first packet on; else whenever
    packets arrive, with what they complete, and not at all while the client sends nothing.
    """

    def __init__(
        self,
        transport: MediaTransport,
        codecs: Sequence[AudioCodec],
        on_audio: Callable[[bytes, float], None],
        pacer: Pacer,
        *,
        ssrc: int,
        cname: str,
        rate: int = HEARD_RATE,
        lockstep: bool = False,
        clock: Clock | None = None,
        totals: ReceptionTotals | None = None,
    ) -> None:
        """`ssrc` and `cname` are what our reports go by. `rate` is one of Opus's. `totals` are
        counted up once a second."""
        self._transport = transport
        self._codecs = {codec.payload_type: codec for codec in codecs}
        for codec in codecs:
            if codec.red_payload_type is not None:
                self._codecs[codec.red_payload_type] = codec
        self._on_audio = on_audio
        self._pacer = pacer
        self._ssrc = ssrc
        self._cname = cname
        self._rate = rate
        self._lockstep = lockstep
        self._clock = clock or MonotonicClock()
        self._totals = totals or ReceptionTotals()
        self._budget = PacketBudget()
        self._source: _Source | None = None
        self._strays = 0
        self._reported = -math.inf
        self._their_report: tuple[int, float] | None = None
        self._started = False

    def start(self) -> None:
        """Idempotent."""
        if not self._started:
            self._started = True
            self._transport.listen(list(self._codecs), self._receive)
            self._pacer.join(self)

    def stop(self) -> None:
        """Idempotent; `on_audio` is not called any more."""
        self._started = False
        self._count()
        self._transport.unlisten(self._receive)
        self._transport.unroute_source(self)
        self._pacer.leave(self)

    @property
    def last_packet(self) -> float:
        """When a packet of the source came last; -infinity before the first."""
        return self._source.last_packet if self._source is not None else -math.inf

    @property
    def stats(self) -> ReceiverStats:
        source = self._source
        if source is None:
            return ReceiverStats(0, 0, 0, 0, self._strays, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        decoder, playout = source.decoder, source.playout
        ms = 1000 / self._rate
        return ReceiverStats(
            received=source.reception.received,
            lost=max(0, source.reception.lost),
            late=playout.late if playout is not None else source.order.late,
            malformed=decoder.malformed,
            strays=self._strays,
            decoded_ms=decoder.decoded * ms,
            concealed_ms=decoder.concealed * ms,
            recovered_ms=decoder.recovered * ms,
            jitter_ms=source.reception.jitter * 1000,
            delay_ms=1000 * (playout.delay if playout is not None else source.mean_wait),
            drift_ppm=source.drift.ppm,
        )

    def tick(self, now: float) -> None:
        """The pacer's beat: a gap may have been waited for long enough, and a buffer plays out."""
        source = self._source
        if source is None:
            return
        if source.playout is not None:
            self._on_audio(source.playout.pull(now).tobytes(), now)
        # A gap that would be over by the next tick is over now: HOLD is what it waits at most.
        elif len(source.order):
            self._perform(source, source.order.handle_timer(now + PERIOD), now)

    def reported(self, packet: AnyRtcpPacket) -> None:
        if isinstance(packet, RtcpSrPacket):
            middle = packet.sender_info.ntp_timestamp >> 16 & 0xFFFFFFFF
            self._their_report = (middle, self._clock.now())

    def _receive(self, packet: RtpPacket) -> None:
        now = self._clock.now()
        source = self._source
        if not self._budget.take(now):
            self._strays += 1
            return
        codec = self._codecs[packet.payload_type]
        if source is None or packet.ssrc != source.ssrc or codec is not source.codec:
            source = self._switch(source, packet.ssrc, codec, now)
            if source is None:
                self._strays += 1
                return
        place = source.reception.place(packet.sequence, packet.timestamp, now)
        if place is None:
            self._strays += 1
            return
        source.last_packet = now
        steps = source.restart() if place.restarted else []
        try:
            steps += source.push(packet, place, now)
        except MalformedDataError:
            source.decoder.malformed += 1
        else:
            source.drift.push(place.timestamp, now)
        if steps:
            self._perform(source, steps, now)
        if now - self._reported >= REPORT_SECONDS:
            self._report(source, now)

    def _switch(
        self, source: _Source | None, ssrc: int, codec: AudioCodec, now: float
    ) -> _Source | None:
        """The source that is listened to now, None for a stray's packet."""
        same = source is not None and source.ssrc == ssrc
        if source is not None and not same and now - source.last_packet < SWITCH_SECONDS:
            return None
        if source is not None:
            self._perform(source, source.order.restart(), now)
            self._count()
        self._source = _Source(ssrc, codec, self._rate, self._lockstep)
        self._transport.route_source(self, ssrc, source.ssrc if source is not None else None)
        self._their_report = None
        return self._source

    def _perform(self, source: _Source, steps: list[Step], now: float) -> None:
        pieces = [source.decoder.perform(step) for step in steps]
        if len(pieces) == 1:
            self._on_audio(pieces[0].tobytes(), now)
        elif pieces:
            self._on_audio(np.concatenate(pieces).tobytes(), now)

    def _count(self) -> None:
        """Add to the process's figures what has come since the last time."""
        if self._source is not None:
            counts = self._source.counts
            self._totals.add(counts, self._source.counted)
            self._source.counted = counts

    def _report(self, source: _Source, now: float) -> None:
        self._reported = now
        self._count()
        last, delay = 0, 0
        if self._their_report is not None:
            last, delay = self._their_report[0], int((now - self._their_report[1]) * 65536)
        block = source.reception.report(last, delay)
        self._transport.send_report(build_receiver_report(self._ssrc, self._cname, block))
