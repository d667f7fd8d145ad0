"""From packets and gaps to samples: Opus and G.711, with what was lost made up for."""

from typing import Protocol

import numpy as np

from duologue.codecs.audio_packet import Conceal, Play, Quiet, Recover, Step
from duologue.codecs.g711 import decode_alaw, decode_mulaw
from duologue.codecs.media import Int16Samples, MalformedDataError, MediaValueError
from duologue.codecs.opus import CLOCK_RATE, OpusDecoder, packet_ticks
from duologue.codecs.pitch import repeat_period
from duologue.codecs.resample import Resampler

G711_RATE = 8000
FADE_FROM = 0.06
"""Seconds of guessing in a row after which it fades, and
FADE_TO, when it is silent: no voice goes on for longer by itself."""
FADE_TO = 0.12
_MAX_G711_TICKS = 960
"""120 ms, as Opus."""


class PacketDecoder(Protocol):
    """One codec's state. Lengths are samples at the output's rate."""

    def decode(self, payload: bytes) -> Int16Samples:
        """MalformedDataError if it can't be."""

    def recover(self, payload: bytes, samples: int) -> Int16Samples:
        """What was lost before this packet, of which it may know something."""

    def conceal(self, samples: int) -> Int16Samples:
        """A guess of what was lost."""


class VoiceDecoder:
    """One stream of steps to int16 mono samples at `rate`, with nothing missing."""

    def __init__(self, codec: str, rate: int) -> None:
        """`codec` is opus, PCMU or PCMA in any case; MediaValueError for another."""
        self.rate = rate
        name = codec.lower()
        if name == "opus":
            self.clock_rate = CLOCK_RATE
            self._decoder: PacketDecoder = _Opus(rate)
        elif name in ("pcmu", "pcma"):
            self.clock_rate = G711_RATE
            self._decoder = _G711(name, rate)
        else:
            raise MediaValueError(f"no decoder for {codec}")
        self._guessed = 0
        self.decoded = 0
        """Samples given so far, of all kinds."""
        self.concealed = 0
        """Samples that were guessed."""
        self.recovered = 0
        """Samples that came out of a later packet."""
        self.malformed = 0
        """Packets that were none."""

    def ticks(self, payload: bytes) -> int:
        """How long a packet lasts, in ticks of `clock_rate`; MalformedDataError if it is none."""
        if self.clock_rate == CLOCK_RATE:
            return packet_ticks(payload)
        if not 0 < len(payload) <= _MAX_G711_TICKS:
            raise MalformedDataError(f"a G.711 packet of {len(payload)} samples")
        return len(payload)

    def perform(self, step: Step) -> Int16Samples:
        """The samples of one step. A packet that can't be decoded is concealed."""
        match step:
            case Play():
                try:
                    samples = self._decoder.decode(step.packet.payload)
                    self._guessed = 0
                except MalformedDataError:
                    self.malformed += 1
                    samples = self._conceal(step.packet.ticks)
            case Recover():
                try:
                    samples = self._decoder.recover(step.packet.payload, self._samples(step.ticks))
                    self.recovered += len(samples)
                    self._guessed = 0
                except MalformedDataError:
                    self.malformed += 1
                    samples = self._conceal(step.ticks)
            case Conceal():
                samples = self._conceal(step.ticks)
            case Quiet():
                samples = np.zeros(self._samples(step.ticks), np.int16)
                self._guessed = 0
        self.decoded += len(samples)
        return samples

    def _samples(self, ticks: int) -> int:
        return ticks * self.rate // self.clock_rate

    def _conceal(self, ticks: int) -> Int16Samples:
        count = self._samples(ticks)
        start, end = FADE_FROM * self.rate, FADE_TO * self.rate
        if self._guessed >= end:
            samples = np.zeros(count, np.int16)
        else:
            samples = self._decoder.conceal(count)
            if self._guessed + count > start:
                ramp = (end - self._guessed - np.arange(count)) / (end - start)
                samples = (samples * np.clip(ramp, 0, 1)).astype(np.int16)
        self._guessed += count
        self.concealed += count
        return samples


class _Opus:
    """libopus takes lengths in steps of 2.5 ms, at most 120 ms."""

    def __init__(self, rate: int) -> None:
        self._decoder = OpusDecoder(rate)
        self._step = rate // 400
        self._longest = rate * 120 // 1000

    def decode(self, payload: bytes) -> Int16Samples:
        return self._decoder.decode(payload)

    def recover(self, payload: bytes, samples: int) -> Int16Samples:
        whole = min(samples // self._step * self._step, self._longest)
        if not whole:
            return np.zeros(samples, np.int16)
        return _padded(self._decoder.recover(payload, whole), samples)

    def conceal(self, samples: int) -> Int16Samples:
        whole = min(samples // self._step * self._step, self._longest)
        if not whole:
            return np.zeros(samples, np.int16)
        return _padded(self._decoder.conceal(whole), samples)


class _G711:
    """G.711 has no concealment of its own: the last period of the voice is repeated."""

    def __init__(self, law: str, rate: int) -> None:
        self._decode = decode_mulaw if law == "pcmu" else decode_alaw
        self._resampler = Resampler(G711_RATE, rate, np.int16)
        self._rate = rate
        self._history = np.zeros(G711_RATE * 40 // 1000, np.int16)
        self._owed = 0

    def decode(self, payload: bytes) -> Int16Samples:
        return self._give(self._decode(payload))

    def recover(self, payload: bytes, samples: int) -> Int16Samples:
        return self.conceal(samples)

    def conceal(self, samples: int) -> Int16Samples:
        # Counted at the codec's rate, what does not divide is owed to the next guess.
        self._owed += samples * G711_RATE
        count, self._owed = divmod(self._owed, self._rate)
        return self._give(repeat_period(self._history, count, G711_RATE))

    def _give(self, samples: Int16Samples) -> Int16Samples:
        self._history = np.concatenate((self._history, samples))[-len(self._history) :]
        return self._resampler.push(samples)


def _padded(samples: Int16Samples, count: int) -> Int16Samples:
    if len(samples) == count:
        return samples
    return np.concatenate((samples, np.zeros(count - len(samples), np.int16)))
