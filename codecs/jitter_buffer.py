"""Packets between a network that delays them unevenly and a listener with a steady beat.

`take` says what to decode next when the listener needs more: a packet, or what stands for one that
was lost, for one that is late, or for a pause. Time passes in the listener's beats only; how much
delay there should be is `DelayTarget`'s to say, and whoever plays out makes it so by stretching.
"""

from duologue.codecs.audio_packet import AudioPacket, Conceal, Play, Quiet, Recover, Step
from duologue.codecs.delay_target import MOST, DelayTarget

MAX_HELD = 100
"""Packets: two seconds of the usual ones. With one more, the oldest goes."""
STARVED = 0.12
"""Seconds without packets after which the sender is taken to be silent, not delayed."""
DTX_BYTES = 2
"""A packet of no more than this announces a pause (RFC 6716, section 2.1.9)."""
SLACK = 0.01
"""Seconds by which a pause may end early or late: half a packet, the beat's own grain."""


class JitterBuffer:
    """One source. Every sequence is given out at most once, in order."""

    def __init__(self, clock_rate: int) -> None:
        self.target = DelayTarget(clock_rate)
        self.late = 0
        """Packets that came after their turn, or twice."""
        self.lost = 0
        """Packets whose turn passed without them."""
        self.dropped = 0
        """Packets given up since too many were held or the delay had grown beyond all bounds."""
        self._clock_rate = clock_rate
        self._held: dict[int, AudioPacket] = {}
        self._next: int | None = None
        self._timestamp = 0
        self._ticks = clock_rate // 50
        self._guessed = 0
        self._paused = True
        self._rejoin = False

    def __len__(self) -> int:
        """Packets held."""
        return len(self._held)

    def push(self, packet: AudioPacket, now: float, redundant: bool = False) -> None:
        """A packet has arrived. A `redundant` copy says nothing about the network's delay, and
        never starts a stream."""
        if not redundant:
            self.target.push(packet.timestamp, now)
        if self._next is None or self._rejoin:
            if redundant:
                return
            self._join(packet)
        assert self._next is not None
        if packet.sequence < self._next or packet.sequence in self._held:
            self.late += not redundant
            return
        self._held[packet.sequence] = packet
        if len(self._held) > MAX_HELD:
            self._drop_before(sorted(self._held)[len(self._held) - MAX_HELD])

    def restart(self) -> None:
        """The source numbers anew: the next packet begins another stream, after a pause."""
        self._held.clear()
        self.target = DelayTarget(self._clock_rate)
        self._rejoin = True

    def take(self, now: float) -> Step:
        """What to decode next, needed at `now`."""
        if self._next is None or self._rejoin:
            return Quiet(self._ticks)
        self._catch_up(now)
        if not self._held:
            return self._starve()
        packet = self._held[min(self._held)]
        wait = self.target.seconds - self.target.age(packet.timestamp, now)
        early = SLACK < wait <= 2 * MOST
        missing = packet.timestamp - self._timestamp
        if packet.sequence == self._next:
            self._paused = self._paused or missing > 0
        elif missing > STARVED * self._clock_rate:
            # Nobody guesses that much: until the packet's turn comes it is as if it were not there.
            if early:
                return self._starve()
            self._paused = True
        if self._paused and early:
            # Only here may what is there wait: a pause is made longer and shorter without a trace.
            return Quiet(self._ticks)
        return self._play() if packet.sequence == self._next else self._fill(packet)

    def _join(self, packet: AudioPacket) -> None:
        self._next, self._timestamp = packet.sequence, packet.timestamp
        self._ticks = packet.ticks
        self._guessed = 0
        self._paused = True
        self._rejoin = False

    def _play(self) -> Play:
        assert self._next is not None
        packet = self._held.pop(self._next)
        self._next = packet.sequence + 1
        self._timestamp = packet.timestamp + packet.ticks
        self._ticks = packet.ticks
        self._guessed = 0
        self._paused = len(packet.payload) <= DTX_BYTES
        return Play(packet)

    def _fill(self, following: AudioPacket) -> Step:
        """The next packet is missing and a later one is there: its turn has come."""
        assert self._next is not None
        while self._next < following.sequence:
            ticks = min(self._ticks, following.timestamp - self._timestamp)
            if ticks <= 0:
                break
            self._next += 1
            self._timestamp += ticks
            self.lost += 1
            if self._guessed >= ticks:
                # It was guessed already, while it could still have come.
                self._guessed -= ticks
                continue
            self._guessed = 0
            if self._next == following.sequence:
                return Recover(following, ticks)
            if not self._paused:
                return Conceal(ticks)
        self.lost += following.sequence - self._next
        self._next = following.sequence
        return self._play()

    def _starve(self) -> Step:
        """Nothing is there. The stream stands still while its last sound is drawn out."""
        if not self._paused:
            self._guessed += self._ticks
            self._paused = self._guessed > STARVED * self._clock_rate
        return Quiet(self._ticks) if self._paused else Conceal(self._ticks)

    def _catch_up(self, now: float) -> None:
        """What is older than any delay allowed is skipped."""
        if not self._held:
            return
        oldest = min(self._held)
        if self.target.age(self._held[oldest].timestamp, now) <= 2 * MOST:
            return
        fresh = [
            sequence
            for sequence, packet in sorted(self._held.items())
            if self.target.age(packet.timestamp, now) <= self.target.seconds
        ]
        self._drop_before(fresh[0] if fresh else max(self._held))

    def _drop_before(self, sequence: int) -> None:
        for held in [held for held in self._held if held < sequence]:
            del self._held[held]
            self.dropped += 1
        self._next = sequence
        self._timestamp = self._held[sequence].timestamp
        self._guessed = 0
