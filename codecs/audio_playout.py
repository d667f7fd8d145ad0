"""A network's packets as a steady stream: 20 ms for whoever asks every 20 ms.

The delay is brought to the target by stretching what is played, a period of the voice at a time,
and in pauses without a trace. As the target is measured on the packets themselves, a sender whose
clock runs faster or slower is followed by the same means, for hours.
"""

import numpy as np

from duologue.codecs.audio_packet import AudioPacket, Play
from duologue.codecs.jitter_buffer import JitterBuffer
from duologue.codecs.media import Int16Samples
from duologue.codecs.time_stretch import grow, shrink
from duologue.codecs.voice_decoder import VoiceDecoder

TOO_LATE = 0.015
"""Seconds above the target at which speech is shortened, and
TOO_SOON, below it, at which it is lengthened."""
TOO_SOON = 0.01
FAR_TOO_LATE = 0.1
"""Seconds above the target at which anything is shortened, like or not."""
MOST = 0.0125
"""Seconds that one change takes out or puts in at most."""
REST = 1
"""Packets that are left alone after one that was changed."""
_MOST_STEPS = 100
"""For one pull; bounds the work if packets last for nothing."""


class AudioPlayout:
    """One source, decoded by `decoder`, int16 mono at its rate."""

    def __init__(self, decoder: VoiceDecoder) -> None:
        self.buffer = JitterBuffer(decoder.clock_rate)
        self.delay = 0.0
        """Seconds from the fastest possible arrival of what was played last to its playing."""
        self.shortened = 0
        """Samples taken out, and
        lengthened, put in, so far."""
        self.lengthened = 0
        self._decoder = decoder
        self._rate = decoder.rate
        self._frame = decoder.rate // 50
        self._ready = np.zeros(0, np.int16)
        self._rest = 0

    @property
    def late(self) -> int:
        return self.buffer.late

    def push(self, packet: AudioPacket, now: float, redundant: bool = False) -> None:
        """A packet has arrived."""
        self.buffer.push(packet, now, redundant)

    def restart(self) -> None:
        """The source numbers anew."""
        self.buffer.restart()

    def pull(self, now: float) -> Int16Samples:
        """The next 20 ms. Silence before the first packet and in pauses."""
        for _ in range(_MOST_STEPS):
            if len(self._ready) >= self._frame:
                break
            self._decode(now)
        else:
            self._ready = np.concatenate((self._ready, np.zeros(self._frame, np.int16)))
        frame, self._ready = self._ready[: self._frame], self._ready[self._frame :]
        return frame

    def _decode(self, now: float) -> None:
        """Add what is to be heard after what is ready.

        What counts against the target is the delay at which a packet is needed, not the one at
        which it is heard: up to a frame may be ready before it.
        """
        ready = len(self._ready)
        step = self.buffer.take(now)
        samples = self._decoder.perform(step)
        joined = np.concatenate((self._ready, samples)) if ready else samples
        if isinstance(step, Play):
            age = self.buffer.target.age(step.packet.timestamp, now)
            self.delay = age + ready / self._rate
            joined = self._stretch(joined, age - self.buffer.target.seconds)
        self._ready = joined

    def _stretch(self, samples: Int16Samples, excess: float) -> Int16Samples:
        if self._rest > 0:
            self._rest -= 1
            return samples
        most = int(MOST * self._rate)
        if excess > TOO_LATE:
            most = min(most, int(excess * self._rate))
            changed = shrink(samples, self._rate, most, force=excess > FAR_TOO_LATE)
            self.shortened += len(samples) - len(changed)
        elif excess < -TOO_SOON:
            changed = grow(samples, self._rate, most)
            self.lengthened += len(changed) - len(samples)
        else:
            return samples
        if len(changed) != len(samples):
            self._rest = REST
        return changed
