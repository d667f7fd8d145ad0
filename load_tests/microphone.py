"""A microphone: 20 ms of sound at a time, on one schedule that never drifts."""

import base64
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio
import numpy as np

from load_tests.clock import now
from load_tests.recordings import RATE, Recording, Samples

FRAME_SECONDS = 0.02
FRAME = int(RATE * FRAME_SECONDS)
ROOM_DB = -66.0
"""Level of the noise of the room, in dB below full scale: no real microphone is silent."""

_PREFIX = '{"type":"input_audio_buffer.append","audio":"'


def room_noise(samples: int, seed: int = 1) -> Samples:
    """White noise at :data:`ROOM_DB`."""
    level = 32768 * 10 ** (ROOM_DB / 20)
    noise = np.random.default_rng(seed).normal(0.0, level, samples)
    return noise.round().astype(np.int16)


def append_event(samples: Samples) -> str:
    """An ``input_audio_buffer.append`` event as it goes over the wire."""
    return f'{_PREFIX}{base64.b64encode(samples.astype("<i2").tobytes()).decode()}"}}'


def append_events(samples: Samples) -> list[str]:
    """Sound with the noise of the room, as one event for every 20 ms."""
    count = -(-len(samples) // FRAME)
    mixed = room_noise(count * FRAME).astype(np.int32)
    mixed[: len(samples)] += samples
    clipped = np.clip(mixed, -32768, 32767).astype(np.int16)
    return [append_event(frame) for frame in clipped.reshape(count, FRAME)]


@dataclass(frozen=True, slots=True)
class Clip:
    """A recording, ready to be said."""

    recording: Recording
    events: list[str]

    @classmethod
    def of(cls, recording: Recording) -> "Clip":
        return cls(recording, append_events(recording.samples))


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
    """Sends the noise of the room, and what is said, in real time.

    Frame *n* is sent at the start plus *n* times 20 ms; a late one does not make the next late.
    """

    def __init__(self) -> None:
        second = room_noise(RATE, seed=2)
        self._room = [append_event(frame) for frame in second.reshape(-1, FRAME)]
        self._waiting: deque[Utterance] = deque()
        self._left: deque[str] = deque()
        self.said: list[Utterance] = []
        self.late: list[float] = []
        """Seconds by which each frame was sent after its time."""

    def say(self, clip: Clip) -> Utterance:
        """Say a clip from the next free frame on."""
        utterance = Utterance(clip)
        self._waiting.append(utterance)
        return utterance

    def fall_silent(self) -> None:
        """Stop in the middle of a word."""
        self._left.clear()

    def next_event(self, frame: int, due: float) -> str:
        """The event of a frame that is due to be sent at ``due``."""
        if not self._left and self._waiting:
            utterance = self._waiting.popleft()
            self._left.extend(utterance.clip.events)
            utterance.start(due - FRAME_SECONDS)
            self.said.append(utterance)
        if self._left:
            return self._left.popleft()
        return self._room[frame % len(self._room)]

    async def run(self, send: Callable[[str], Awaitable[None]]) -> None:
        """Send frames until cancelled."""
        begin = now()
        frame = 0
        while True:
            frame += 1
            due = begin + frame * FRAME_SECONDS
            await anyio.sleep(max(0.0, due - now()))
            self.late.append(now() - due)
            await send(self.next_event(frame, due))
