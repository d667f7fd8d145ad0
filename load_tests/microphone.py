"""A microphone: 20 ms of sound at a time, on one schedule that never drifts."""

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import numpy as np

from duologue.codecs.resample import Resampler
from load_tests.clock import now
from load_tests.recordings import RATE, Recording, Samples

FRAME_SECONDS = 0.02
FRAME = int(RATE * FRAME_SECONDS)
ROOM_DB = -66.0
"""Level of the noise of the room, in dB below full scale: no real microphone is silent."""


def room_noise(samples: int, seed: int = 1) -> Samples:
    """White noise at :data:`ROOM_DB`."""
    level = 32768 * 10 ** (ROOM_DB / 20)
    noise = np.random.default_rng(seed).normal(0.0, level, samples)
    return noise.round().astype(np.int16)


def frames_of(samples: Samples, rate: int = RATE) -> list[Samples]:
    """Sound at `rate` with the noise of the room, 20 ms a frame."""
    size = int(rate * FRAME_SECONDS)
    count = -(-len(samples) // size)
    mixed = room_noise(count * size).astype(np.int32)
    mixed[: len(samples)] += samples
    clipped = np.clip(mixed, -32768, 32767).astype(np.int16)
    return list(clipped.reshape(count, size))


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording, ready to be said by a microphone of some rate."""

    recording: Recording
    frames: list[Samples]

    @classmethod
    def of(cls, recording: Recording, rate: int = RATE) -> "Clip":
        samples = recording.samples
        if rate != RATE:
            resampler = Resampler(RATE, rate, np.int16)
            samples = np.concatenate((resampler.push(samples), resampler.flush()))
        return cls(recording, frames_of(samples, rate))


@dataclass(slots=True)
class Utterance:
    """A clip that is, or will be, said. Times are those of its sound, not of its packets.

    The sound of a frame is made in the 20 ms before the frame is sent.
    """

    clip: Clip
    started: float | None = None
    _begun: anyio.Event = field(default_factory=anyio.Event)

    async def begin(self) -> None:
        """Wait until its first frame is sent."""
        await self._begun.wait()

    def spoken_at(self, sample: int) -> float:
        """When a sample was spoken. The utterance must have begun."""
        assert self.started is not None
        return self.started + sample / RATE

    @property
    def first_voiced_at(self) -> float:
        return self.spoken_at(self.clip.recording.voiced[0])

    @property
    def last_voiced_at(self) -> float:
        return self.spoken_at(self.clip.recording.voiced[1])

    def start(self, at: float) -> None:
        self.started = at
        self._begun.set()


class Microphone:
    """Hears the noise of the room, and what is said, in real time.

    Frame *n* is given at the start plus *n* times 20 ms; a late one does not make the next late.
    """

    def __init__(self, rate: int = RATE) -> None:
        self._room = frames_of(np.zeros(rate, np.int16), rate)
        self._waiting: deque[Utterance] = deque()
        self._left: deque[Samples] = deque()
        self.said: list[Utterance] = []
        self.late: list[float] = []
        """Seconds by which each frame was given after its time."""

    def say(self, clip: Clip) -> Utterance:
        """Say a clip from the next free frame on."""
        utterance = Utterance(clip)
        self._waiting.append(utterance)
        return utterance

    def fall_silent(self) -> None:
        """Stop in the middle of a word."""
        self._left.clear()

    def next_frame(self, number: int, due: float) -> Samples:
        """The frame that is due to be given at ``due``."""
        if not self._left and self._waiting:
            utterance = self._waiting.popleft()
            self._left.extend(utterance.clip.frames)
            utterance.start(due - FRAME_SECONDS)
            self.said.append(utterance)
        if self._left:
            return self._left.popleft()
        return self._room[number % len(self._room)]

    async def run(self, give: Callable[[Samples], Awaitable[None]]) -> None:
        """Give frames until cancelled."""
        begin = now()
        number = 0
        while True:
            number += 1
            due = begin + number * FRAME_SECONDS
            await anyio.sleep(max(0.0, due - now()))
            self.late.append(now() - due)
            await give(self.next_frame(number, due))
