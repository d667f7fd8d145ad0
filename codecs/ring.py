"""Bounded rings of samples, with positions that count from the start of the stream."""

import enum
from typing import Generic, cast

import numpy as np
from numpy.typing import NDArray

from duologue.codecs.media import (
    AudioChunk,
    MediaTime,
    MediaValueError,
    RateMismatchError,
    RingFullError,
    Samples,
    SampleType,
)

_FIRST_CAPACITY = 1024
_KEPT_CAPACITY = 8192


class Policy(enum.Enum):
    """What a write does with samples for which there is no room."""

    WAIT = "wait"
    """Takes the first that fit; the writer offers the rest again later."""
    DROP_OLDEST = "drop_oldest"
    """Makes room: `start` moves on."""
    DROP_NEWEST = "drop_newest"
    """Takes the first that fit and loses the rest; they have no position."""
    REFUSE = "refuse"
    """Takes none and raises RingFullError."""


class AudioRing(Generic[SampleType]):
    """At most `bound` samples of one stream, those from `start` up to `end`.

    Written at the end; `read` takes from the start, `slice` copies any part. With DROP_OLDEST and
    no reads it is a history of the last `bound` samples. Memory grows with what is held, by
    doubling, up to the bound, and is given back by `clear` and when a read empties a large ring.
    """

    def __init__(
        self, bound: int, rate: int, policy: Policy, dtype: type[SampleType], start: int = 0
    ) -> None:
        """`start` is the position of the first sample to come. MediaValueError if `bound` or
        `rate` is below 1."""
        if bound < 1:
            raise MediaValueError(f"a ring holds at least one sample, not {bound}")
        self.bound = bound
        self.policy = policy
        self.dropped = 0
        """Samples lost to DROP_OLDEST or DROP_NEWEST so far."""
        self._start = MediaTime(start, rate)
        self._dtype: type[SampleType] = dtype
        self._buffer: NDArray[SampleType] = np.empty(0, dtype)
        self._head = 0  # index of the sample at `start`
        self._depth = 0

    @property
    def start(self) -> MediaTime:
        """The position of the oldest sample held."""
        return self._start

    @property
    def end(self) -> MediaTime:
        """The position that the next sample written will have."""
        return self._start.plus(self._depth)

    @property
    def rate(self) -> int:
        return self._start.rate

    @property
    def room(self) -> int:
        """Samples that fit without dropping any."""
        return self.bound - self._depth

    def __len__(self) -> int:
        """Samples held."""
        return self._depth

    def write(self, samples: Samples) -> int:
        """How many were taken: all with DROP_OLDEST and REFUSE, else what fitted.

        With DROP_OLDEST only the last `bound` of a longer write are held, but all count in the
        positions. MediaValueError unless of the ring's dtype; RingFullError with REFUSE.
        """
        if samples.dtype != self._dtype or samples.ndim != 1:
            raise MediaValueError(f"{samples.dtype} of {samples.shape} in a ring of {self._dtype}")
        excess = len(samples) - self.room
        if excess <= 0:
            self._append(samples)
            return len(samples)
        if self.policy is Policy.REFUSE:
            raise RingFullError(f"{len(samples)} samples do not fit into {self.room}")
        if self.policy is Policy.DROP_OLDEST:
            taken = len(samples)
            skipped = max(taken - self.bound, 0)
            self._advance(excess - skipped)
            self._start = self._start.plus(skipped)
            self._append(samples[skipped:])
        else:
            taken = self.room
            self._append(samples[:taken])
        if self.policy is not Policy.WAIT:
            self.dropped += excess
        return taken

    def read(self, samples: int) -> AudioChunk:
        """The oldest `samples`, or all that are held if fewer, which then leave the ring."""
        if samples < 0:
            raise MediaValueError(f"cannot read {samples} samples")
        chunk = self._copy(0, min(samples, self._depth))
        self._advance(len(chunk))
        if not self._depth and len(self._buffer) > _KEPT_CAPACITY:
            self._buffer = np.empty(0, self._dtype)
        return chunk

    def slice(self, start: MediaTime, end: MediaTime) -> AudioChunk:
        """What is held of [start, end): the chunk says where it really begins and ends.

        Empty if nothing is. MediaValueError if `end` is before `start`, RateMismatchError if they
        are not at the ring's rate.
        """
        if start.rate != self.rate or end.rate != self.rate:
            raise RateMismatchError(f"{start} to {end} of a ring at {self.rate} Hz")
        if end < start:
            raise MediaValueError(f"{end} is before {start}")
        first = min(max((start - self._start).samples, 0), self._depth)
        last = min(max((end - self._start).samples, 0), self._depth)
        return self._copy(first, last)

    def clear(self) -> int:
        """Empty the ring and give its memory back; how many samples it held. Positions go on and
        these samples do not count as dropped."""
        held = self._depth
        self._advance(held)
        self._buffer = np.empty(0, self._dtype)
        return held

    def _advance(self, samples: int) -> None:
        self._start = self._start.plus(samples)
        self._depth -= samples
        self._head = (self._head + samples) % len(self._buffer) if self._depth else 0

    def _append(self, samples: Samples) -> None:
        needed = self._depth + len(samples)
        if needed > len(self._buffer):
            self._grow(needed)
        capacity = len(self._buffer)
        if not capacity:
            return
        tail = (self._head + self._depth) % capacity
        before_wrap = min(len(samples), capacity - tail)
        self._buffer[tail : tail + before_wrap] = samples[:before_wrap]
        self._buffer[: len(samples) - before_wrap] = samples[before_wrap:]
        self._depth = needed

    def _grow(self, needed: int) -> None:
        capacity = max(needed, 2 * len(self._buffer), _FIRST_CAPACITY)
        larger = np.empty(min(capacity, self.bound), self._dtype)
        larger[: self._depth] = self._copy(0, self._depth).samples
        self._buffer = larger
        self._head = 0

    def _copy(self, first: int, last: int) -> AudioChunk:
        """Samples first to last, counted from the oldest."""
        samples = np.empty(last - first, self._dtype)
        if len(samples):
            at = (self._head + first) % len(self._buffer)
            before_wrap = min(len(samples), len(self._buffer) - at)
            samples[:before_wrap] = self._buffer[at : at + before_wrap]
            samples[before_wrap:] = self._buffer[: len(samples) - before_wrap]
        return AudioChunk(cast(Samples, samples), self.rate, self._start.plus(first))
