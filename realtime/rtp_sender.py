"""What a client hears: samples in, a packet every 20 ms out.

Nothing is encoded ahead. Each tick of the pacer takes 20 ms from the queue, so that an interruption
is in the very next packet, and what left the pacer is what was heard.
"""

import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from aiortc.clock import current_ntp_time
from aiortc.rtp import AnyRtcpPacket, RtcpReceiverInfo, RtcpRrPacket, RtcpSrPacket

from duologue.codecs.g711 import ALAW_SILENCE, MULAW_SILENCE, encode_alaw, encode_mulaw
from duologue.codecs.media import Int16Samples
from duologue.codecs.opus import OpusEncoder, OpusSettings
from duologue.codecs.pcm import int16_from_bytes
from duologue.codecs.resample import Resampler
from duologue.codecs.rtp import (
    RtpPacket,
    build_bye,
    build_rtp,
    build_sender_report,
    mid_extension,
)
from duologue.codecs.sample_queue import SampleQueue
from duologue.realtime.pacer import PERIOD, SLOTS, Pacer
from duologue.realtime.rtc_media import OPUS, PCMU, AudioCodec, MediaTransport, ReportTarget
from duologue.realtime.slack import Slack
from duologue.sessions.clock import MonotonicClock
from duologue.sessions.ports import Clock

PLAYED_RATE = 24_000
FRAME = PLAYED_RATE // 50
QUEUE_SECONDS = 120
FADE = PLAYED_RATE * 7 // 1000
"""Samples over which sound ends or begins in the middle: 7 ms, neither a click nor a word."""
HANGOVER = 25
"""Frames of silence that are still encoded after sound; then only a sign of life is sent."""
ALIVE = 20
"""Frames between two such signs: 400 ms, as libopus's own DTX."""
DTX_BYTES = 2
OPUS_PAUSE = b"\x48"
"""A packet of 20 ms of nothing: SILK, wideband, mono (RFC 6716, section 3.1)."""
REPORT_SECONDS = 2.0
KEPT_REPORTS = 8
"""Of ours, that an answer may refer to."""
FIRST_LOSS = 5.0
"""Percent of loss that is expected until the client says otherwise."""
MOST_LOSS = 25
"""Percent of loss up to which redundancy is made."""
RISE, FALL = 0.5, 0.1
"""Weights of a report with more loss than before, and with less: loss comes back."""
G711_RATE = 8000


@dataclass(frozen=True, slots=True)
class SenderStats:
    packets: int
    bytes: int
    played_ms: float
    queued_ms: float
    loss_percent: float
    """What the client says it lost, smoothed."""
    jitter_ms: float
    """What the client measured."""
    rtt_ms: float | None
    complexity: int
    """Of Opus; 0 for G.711."""


class _Encoder(Protocol):
    def encode(self, samples: Int16Samples) -> bytes: ...


class AudioSender(ReportTarget):
    """One audio section's outgoing stream.

    `on_played(ms, now)` tells, after each packet that carried something of it, how much of all
    that `play` was given has left since the sender was made. It never goes back; what `flush`
    dropped does not count. While the connection is not up, nothing is spent.
    """

    def __init__(
        self,
        transport: MediaTransport,
        codec: AudioCodec,
        pacer: Pacer,
        *,
        ssrc: int,
        cname: str,
        on_played: Callable[[float, float], None],
        mid: tuple[int, str] | None = None,
        settings: OpusSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`mid`: number of the header extension and name of the section, if they were agreed on."""
        super().__init__(ssrc)
        self._transport = transport
        self._codec = codec
        self._pacer = pacer
        self._cname = cname
        self._on_played = on_played
        self._extension = mid_extension(*mid) if mid is not None else b""
        self._clock = clock or MonotonicClock()
        self._opus: OpusEncoder | None = None
        if codec.name.lower() == OPUS:
            self._opus = OpusEncoder(PLAYED_RATE, settings or OpusSettings())
            self._encoder: _Encoder = self._opus
            self._quiet = OPUS_PAUSE
        else:
            self._encoder = _G711Encoder(codec.name)
            silence = MULAW_SILENCE if codec.name.upper() == PCMU else ALAW_SILENCE
            self._quiet = bytes([silence]) * (G711_RATE // 50)
        self._step_ticks = codec.clock_rate // 50 // SLOTS
        self._queue = SampleQueue(QUEUE_SECONDS * PLAYED_RATE)
        self._slack = Slack()
        self._withheld = False
        self._ending: Int16Samples | None = None
        self._ducked = False
        self._fade_in = False
        self._played = 0
        # Below the middle, so that SRTP's roll-over counter starts without doubt (RFC 3711, 3.3.1).
        self._sequence = secrets.randbelow(0x8000)
        self._timestamp = secrets.randbits(32)
        self._stamp = self._timestamp - codec.clock_rate // 50
        self._step = 0
        # The first tick says that there is nothing to hear yet. A browser whose first packet is
        # speech plays that at once, with nothing behind it, and has to make up the next.
        self._silent = 2 * ALIVE - 1
        self._in_dtx = True
        self._packets = 0
        self._bytes = 0
        self._next_report = 0.0
        self._sent_reports: deque[tuple[int, float]] = deque(maxlen=KEPT_REPORTS)
        self._loss = FIRST_LOSS
        self._jitter = 0
        self._rtt: float | None = None
        self._started = False

    def start(self) -> None:
        """Idempotent."""
        if not self._started:
            self._started = True
            self._step = self._pacer.step - SLOTS
            self._transport.route_sender(self, self._ssrc)
            self._pacer.join(self)

    def stop(self) -> None:
        """Says good-bye, where the connection is up. Idempotent."""
        if self._started:
            self._started = False
            self._pacer.leave(self)
            self._transport.unroute_sender(self)
            self._transport.send_report(build_bye(self._ssrc, self._cname))
            self._queue.clear()

    # -- what is played -----------------------------------------------------------------------

    def play(self, pcm: bytes) -> None:
        """Queue int16 mono at 24 kHz. RingFullError, and nothing of it is queued, if there is not
        `room_ms` for it; MediaValueError or MalformedDataError for half a sample.

        What comes after a pause does not wait for the phase that the stream had before."""
        waiting, samples = len(self._queue), int16_from_bytes(pcm)
        self._queue.write(samples)
        if not len(samples) or self._ducked:
            return
        now = self._clock.now()
        if self._silent and not waiting:
            if self._silent > HANGOVER:
                self._slack.begin(now)
            else:
                self._slack.starve(now)
            self._pacer.hasten(self)
            return
        seconds = len(samples) / PLAYED_RATE
        needed = self._pacer.next_tick(self) + waiting // FRAME * PERIOD
        if not self._withheld:
            self._slack.note(needed - now, seconds, now)
        elif waiting + len(samples) >= FRAME:
            self._slack.note(needed - PERIOD - now, seconds, now)
            self._send_next(now)

    @property
    def queued_ms(self) -> float:
        """What waits to be played."""
        return len(self._queue) * 1000 / PLAYED_RATE

    @property
    def room_ms(self) -> float:
        return self._queue.room * 1000 / PLAYED_RATE

    @property
    def played_ms(self) -> float:
        """As `on_played` tells."""
        return self._played * 1000 / PLAYED_RATE

    def flush(self) -> float:
        """End what is being played: the next packet fades it out and is silent from there on.

        Returns how many ms were dropped. What is played after this begins behind that packet.
        """
        audible = self._silent == 0 and not self._ducked
        ending = self._queue.read(FADE if audible else 0)
        dropped = self._queue.clear()
        if len(ending):
            self._ending = ending
        self._ducked = False
        self._fade_in = False
        self._slack.end()
        return dropped * 1000 / PLAYED_RATE

    def duck(self) -> None:
        """Fade out and hold what is queued: nothing of it is spent. Idempotent."""
        if not self._ducked:
            self._ducked = True
            self._slack.end()
            if self._silent == 0 and self._ending is None:
                ending = self._queue.read(FADE)
                self._ending = ending if len(ending) else None

    def restore(self) -> None:
        """Go on where `duck` stopped, faded in. Idempotent."""
        if self._ducked:
            self._ducked = False
            self._fade_in = True

    # -- the pacer's side ---------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Send the next 20 ms, or let them pass in silence."""
        # Time that the pacer skipped has passed for the listener too.
        step, self._step = self._step, self._pacer.step
        self._timestamp += (self._step - step) * self._step_ticks
        if not self._transport.ready:
            return
        if self._late():
            # What is made as time passes goes out when it comes; silence would make all later.
            self._withheld = True
        else:
            self._send_next(now)
        if now >= self._next_report:
            self._report(now)
        steps = self._slack.steps(now)
        if steps:
            self._pacer.shift(self, steps)

    def _late(self) -> bool:
        """Whether the next frame is to come any moment."""
        missing = len(self._queue) < FRAME and self._ending is None and not self._ducked
        return missing and self._slack.live and not self._silent and not self._withheld

    def _send_next(self, now: float) -> None:
        """The next frame, whatever there is of it."""
        self._withheld = False
        ends = self._ending is not None
        frame, played = self._next_frame()
        if frame is None:
            self._send_silence()
        else:
            self._adapt()
            encode = self._opus.hush if self._opus is not None and ends else self._encoder.encode
            self._send(encode(frame), marker=self._silent > 0)
            self._silent = 0
            self._in_dtx = False
        if played:
            self._played += played
            self._on_played(self.played_ms, now)

    def _next_frame(self) -> tuple[Int16Samples | None, int]:
        """What to encode, None for silence, and how much of the queue is in it."""
        if self._ending is not None:
            ending, self._ending = self._ending, None
            frame = np.zeros(FRAME, np.int16)
            ramp = np.linspace(1, 0, len(ending), dtype=np.float32)
            frame[: len(ending)] = np.rint(ending * ramp)
            return frame, len(ending)
        if self._ducked or not len(self._queue):
            return None, 0
        samples = self._queue.read(FRAME)
        played = len(samples)
        if played < FRAME:
            samples = np.concatenate((samples, np.zeros(FRAME - played, np.int16)))
        if self._fade_in:
            self._fade_in = False
            ramp = np.linspace(0, 1, FADE, dtype=np.float32)
            samples = samples.copy()
            samples[:FADE] = np.rint(samples[:FADE] * ramp)
        return samples, played

    def _send_silence(self) -> None:
        """Nothing to say: DTX, after what the encoder needs to come to rest."""
        self._silent += 1
        if self._opus is None:
            # The first frame takes along what the resampler holds of the sound.
            first = self._encoder.encode(_QUIET) if self._silent == 1 else b""
            self._send(first or self._quiet, marker=False)
        elif self._silent <= HANGOVER:
            packet = self._opus.hush(_QUIET)
            tiny = len(packet) <= DTX_BYTES
            if not (tiny and self._in_dtx):
                # The first tiny packet tells the decoder of the pause.
                self._send(packet, marker=False)
            self._in_dtx = tiny
        elif self._silent % ALIVE == 0:
            self._send(self._quiet, marker=False)

    def _send(self, payload: bytes, marker: bool) -> None:
        self._sequence += 1
        # What was sent last lasts for a period, a sign of life just before speech as well.
        self._stamp = max(self._timestamp, self._stamp + self._step_ticks * SLOTS)
        packet = RtpPacket(
            self._codec.payload_type,
            marker,
            self._sequence,
            self._stamp,
            self._ssrc,
            payload,
        )
        if self._transport.send_media(build_rtp(packet, self._extension)):
            self._packets += 1
            self._bytes += len(payload)

    def _adapt(self) -> None:
        opus = self._opus
        if opus is None:
            return
        loss = min(MOST_LOSS, round(self._loss))
        complexity = self._pacer.complexity
        settings = opus.settings
        if settings.complexity != complexity or settings.loss_percent != loss:
            # At the very least of effort, what is above 8 kHz is what to do without.
            opus.adapt(loss_percent=loss, complexity=complexity, wideband=complexity == 0)

    # -- reports ------------------------------------------------------------------------------

    def reported(self, packet: AnyRtcpPacket) -> None:
        if isinstance(packet, RtcpRrPacket | RtcpSrPacket):
            for block in packet.reports:
                if block.ssrc == self._ssrc:
                    self._learn(block)

    def _learn(self, block: RtcpReceiverInfo) -> None:
        """What the client says of this stream."""
        loss = block.fraction_lost * 100 / 256
        self._loss += (loss - self._loss) * (RISE if loss > self._loss else FALL)
        self._jitter = block.jitter
        for middle, sent in self._sent_reports:
            if block.lsr == middle:
                self._rtt = max(0.0, self._clock.now() - sent - block.dlsr / 65536)

    def _report(self, now: float) -> None:
        self._next_report = now + REPORT_SECONDS * (0.5 + secrets.randbelow(1000) / 1000)
        ntp = current_ntp_time()
        self._sent_reports.append((ntp >> 16 & 0xFFFFFFFF, now))
        self._transport.send_report(
            build_sender_report(
                self._ssrc, self._cname, ntp, self._timestamp, self._packets, self._bytes
            )
        )

    @property
    def stats(self) -> SenderStats:
        return SenderStats(
            packets=self._packets,
            bytes=self._bytes,
            played_ms=self.played_ms,
            queued_ms=self.queued_ms,
            loss_percent=self._loss,
            jitter_ms=self._jitter * 1000 / self._codec.clock_rate,
            rtt_ms=self._rtt * 1000 if self._rtt is not None else None,
            complexity=self._opus.settings.complexity if self._opus is not None else 0,
        )


class _G711Encoder:
    def __init__(self, name: str) -> None:
        self._law = encode_mulaw if name.upper() == PCMU else encode_alaw
        self._resampler = Resampler(PLAYED_RATE, G711_RATE, np.int16)
        # More than the resampler ever holds back, so that each frame is complete.
        self._ready = np.zeros(G711_RATE // 250, np.int16)

    def encode(self, samples: Int16Samples) -> bytes:
        """Exactly 20 ms, 4 ms after they were given."""
        self._ready = np.concatenate((self._ready, self._resampler.push(samples)))
        frame, self._ready = self._ready[: G711_RATE // 50], self._ready[G711_RATE // 50 :]
        return self._law(frame)


_QUIET = np.zeros(FRAME, np.int16)
