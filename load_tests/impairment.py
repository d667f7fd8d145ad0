"""What a bad network does to packets: loss, bursts of it, delay, jitter, reordering, bandwidth.

Seeded and without a clock: the same packets at the same times meet the same fate.
"""

import random
from dataclasses import dataclass
from typing import Final

HELD_BACK: Final = 0.03
"""Seconds by which a reordered packet comes later than it would: one or two others pass it."""
QUEUE_SECONDS: Final = 0.5
"""What a link with a bit rate holds; more is dropped at its entrance."""
OVERHEAD: Final = 28
"""Bytes of IPv4 and UDP headers that count against the bit rate."""


@dataclass(frozen=True, slots=True)
class Impairment:
    """One direction of a path. ``loss`` and ``reorder``: percent of packets; times in ms.

    ``burst``: mean packets lost in a row (Gilbert, 1960); at most 1 for independent losses.
    ``jitter``: each packet is delayed by up to so much more, evenly spread; none overtakes another.
    ``kilobits``: the bit rate in kb/s, 0 for no bound.
    """

    loss: float = 0.0
    burst: float = 1.0
    delay: float = 0.0
    jitter: float = 0.0
    reorder: float = 0.0
    kilobits: float = 0.0

    def __post_init__(self) -> None:
        for name, value, most in (
            ("loss", self.loss, 90.0),
            ("burst", self.burst, 100.0),
            ("delay", self.delay, 10_000.0),
            ("jitter", self.jitter, 10_000.0),
            ("reorder", self.reorder, 100.0),
            ("bit rate", self.kilobits, 1e7),
        ):
            if not 0.0 <= value <= most:
                raise ValueError(f"a network's {name} is 0 to {most:g}, not {value:g}")

    @property
    def name(self) -> str:
        """Its loss and jitter in words."""
        burst = f" in bursts of {self.burst:g}" if self.burst > 1 else ""
        return f"loss {self.loss:g} %{burst}, jitter {self.jitter:g} ms"

    @property
    def clean(self) -> bool:
        """Whether nothing is done to any packet."""
        return not (self.loss or self.delay or self.jitter or self.reorder or self.kilobits)


class Link:
    """One direction, for one call."""

    def __init__(self, impairment: Impairment, seed: int) -> None:
        self._impairment = impairment
        self._chance = random.Random(seed)
        self._losing = False
        self._last_due = 0.0
        self._free_at = 0.0
        self.packets = 0
        self.lost = 0
        """Packets that never arrive, of all `packets`."""

    def admit(self, size: int, now: float) -> float | None:
        """Seconds until a packet of so many bytes arrives; ``None`` if it never does."""
        self.packets += 1
        given = self._impairment
        queued = self._queue(size, now)
        if self._loses() or queued is None:
            self.lost += 1
            return None
        jitter = self._chance.uniform(0.0, given.jitter) if given.jitter else 0.0
        due = max(queued + (given.delay + jitter) / 1000, self._last_due)
        if given.reorder and self._chance.random() * 100 < given.reorder:
            return due + HELD_BACK - now
        self._last_due = due
        return due - now

    def _loses(self) -> bool:
        share = self._impairment.loss / 100
        if self._impairment.burst <= 1.0:
            return share > 0 and self._chance.random() < share
        leave = 1 / self._impairment.burst
        enter = min(1.0, share * leave / (1 - share))
        change = leave if self._losing else enter
        if self._chance.random() < change:
            self._losing = not self._losing
        return self._losing

    def _queue(self, size: int, now: float) -> float | None:
        """When the packet has left the link's entrance."""
        if not self._impairment.kilobits:
            return now
        begin = max(now, self._free_at)
        if begin - now > QUEUE_SECONDS:
            return None
        self._free_at = begin + (size + OVERHEAD) * 8 / (self._impairment.kilobits * 1000)
        return self._free_at
