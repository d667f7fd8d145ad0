"""Packets in order as soon as they are there, for those who listen rather than play out.

A voice detector and a recogniser need order, not a steady beat, so nothing waits here except behind
a gap, and there not longer than HOLD. What has not come by then is recovered or concealed.
"""

import math

from duologue.codecs.audio_packet import AudioPacket, Conceal, Play, Quiet, Recover, Step

HOLD = 0.04
"""Seconds that the packets behind a gap wait for what is missing."""
MAX_HELD = 50
"""Packets; one more, and the gap before them is given up."""
MAX_CONCEALED = 0.12
"""Seconds of a loss that are guessed; the rest of it is silence."""
MAX_QUIET = 1.0
"""Seconds of silence that a pause of the sender gives: listeners count a pause by the clock when
nothing comes, and hours of zeros help nobody."""


class ArrivalOrder:
    """One source. `push` and `handle_timer` return what to do, in order.

    The order is by sequence; each sequence is played at most once.
    """

    def __init__(self, clock_rate: int, hold: float = HOLD) -> None:
        self._hold = hold
        self._max_concealed = int(MAX_CONCEALED * clock_rate)
        self._max_quiet = int(MAX_QUIET * clock_rate)
        self._next: int | None = None
        self._timestamp = 0
        self._ticks = clock_rate // 50
        self._held: dict[int, tuple[AudioPacket, float]] = {}
        self.late = 0
        """Packets that came after they were given up, or twice."""
        self.lost = 0
        """Packets that were given up."""
        self.waited = 0.0
        """Seconds that packets were held, together."""
        self._now = 0.0

    def __len__(self) -> int:
        """Packets held."""
        return len(self._held)

    def push(self, packet: AudioPacket, now: float, redundant: bool = False) -> list[Step]:
        """A packet has arrived. A `redundant` copy does not count as late when it is not needed,
        and never starts a stream."""
        self._now = now
        if self._next is None:
            if redundant:
                return []
            self._next, self._timestamp = packet.sequence, packet.timestamp
        if packet.sequence == self._next and not self._held:
            steps: list[Step] = []
            self._play(packet, steps)
            return steps
        if packet.sequence < self._next or packet.sequence in self._held:
            self.late += not redundant
            return []
        self._held[packet.sequence] = (packet, now)
        steps = []
        self._release(steps)
        while len(self._held) > MAX_HELD:
            self._give_up(steps)
        return steps + self.handle_timer(now)

    def handle_timer(self, now: float) -> list[Step]:
        """Time has passed: gaps that were waited for long enough are given up."""
        self._now = now
        steps: list[Step] = []
        while self._held and now >= self.next_deadline():
            self._give_up(steps)
        return steps

    def next_deadline(self) -> float:
        """When a gap is given up; infinite without one."""
        if not self._held:
            return math.inf
        return min(arrival for _, arrival in self._held.values()) + self._hold

    def restart(self) -> list[Step]:
        """The source numbers anew: what is held is played, and any packet may be the next."""
        steps: list[Step] = []
        while self._held:
            self._give_up(steps)
        self._next = None
        return steps

    def _release(self, steps: list[Step]) -> None:
        while self._next in self._held:
            self._play(self._take(self._next), steps)

    def _give_up(self, steps: list[Step]) -> None:
        """Fill the gap and play on behind it."""
        assert self._next is not None
        packet = self._take(min(self._held))
        missing = packet.sequence - self._next
        self.lost += missing
        span = packet.timestamp - self._timestamp
        if 0 < span:
            # Lost packets are as long as the one before, if there is time for them; time beyond
            # them is a pause of the sender, which comes before its next packets or after the last.
            guessed = min(span, missing * self._ticks, self._max_concealed)
            before = min(span - guessed, self._max_quiet)
            if guessed > self._ticks:
                steps.append(Conceal(guessed - self._ticks))
            if before:
                steps.append(Quiet(before))
            steps.append(Recover(packet, min(guessed, self._ticks)))
        self._timestamp = packet.timestamp
        self._play(packet, steps)
        self._release(steps)

    def _take(self, sequence: int) -> AudioPacket:
        packet, arrival = self._held.pop(sequence)
        self.waited += self._now - arrival
        return packet

    def _play(self, packet: AudioPacket, steps: list[Step]) -> None:
        pause = packet.timestamp - self._timestamp
        if pause > 0:
            steps.append(Quiet(min(pause, self._max_quiet)))
        steps.append(Play(packet))
        self._next = packet.sequence + 1
        self._timestamp = packet.timestamp + packet.ticks
        self._ticks = packet.ticks
