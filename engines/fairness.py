"""Whose turn it is at something that serves one at a time; pure.

A model call can't be shared, so calls queue. The order: the realtime lane before the batch lane;
within a lane the better rank first, within a rank the session that was served least recently,
within a session the older call. Whoever was passed over :data:`PATIENCE` times goes next in its
lane whatever its rank, so that nobody waits for ever for its equals. The batch lane does wait as
long as the realtime lane has something to do: a conversation is never slower for it.
"""

from collections.abc import Hashable
from enum import IntEnum

PATIENCE = 12
"""How often a ticket may be passed over by tickets that came after it."""


class ServiceLane(IntEnum):
    """Whom a call is for. The lower one preempts the other, at its next step, and never waits
    for more of it than that step."""

    REALTIME = 0
    """A conversation that goes on now."""
    BATCH = 1
    """A request whose client waits for the whole of it."""


class Rank(IntEnum):
    """How urgent a call is; the lowest goes first."""

    FIRST = 0
    """Somebody waits in silence for it."""
    DRAFT_FIRST = 1
    """Somebody may be about to wait in silence for it."""
    LATER = 2
    """What follows something that still plays."""
    DRAFT_LATER = 3
    IDLE = 4
    """Useful to a conversation when nothing else is to be done."""
    BATCH = 5
    """Not for a conversation."""

    @property
    def lane(self) -> ServiceLane:
        return ServiceLane.BATCH if self is Rank.BATCH else ServiceLane.REALTIME


class Ticket:
    """A place in the queue. ``key`` names the session."""

    __slots__ = ("key", "number", "passed", "rank")

    def __init__(self, key: Hashable, rank: Rank, number: int) -> None:
        self.key = key
        self.rank = rank
        self.number = number
        self.passed = 0


class FairQueue:
    """Tickets that wait. Bounded by its users: each holds at most a few at a time."""

    def __init__(self) -> None:
        self._waiting: list[Ticket] = []
        self._served: dict[Hashable, int] = {}
        self._numbers = 0
        self._serves = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def best_rank(self) -> Rank | None:
        """The most urgent rank that waits; who waited too long counts as most urgent in its
        lane."""
        ranks = [
            Rank.FIRST
            if ticket.passed >= PATIENCE and ticket.rank.lane is ServiceLane.REALTIME
            else ticket.rank
            for ticket in self._waiting
        ]
        return min(ranks, default=None)

    def add(self, key: Hashable, rank: Rank) -> Ticket:
        """Queue up. The ticket is gone with :meth:`take` or :meth:`discard`."""
        self._numbers += 1
        ticket = Ticket(key, rank, self._numbers)
        self._waiting.append(ticket)
        return ticket

    def discard(self, ticket: Ticket) -> None:
        """Leave the queue; nothing happens when the ticket was taken already."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)

    def forget(self, key: Hashable) -> None:
        """The session is over."""
        self._served.pop(key, None)

    def take(self) -> Ticket | None:
        """The next one, which leaves the queue; ``None`` when nobody waits."""
        if not self._waiting:
            return None
        chosen = min(self._waiting, key=self._order)
        self._waiting.remove(chosen)
        for ticket in self._waiting:
            if ticket.number < chosen.number:
                ticket.passed += 1
        self._serves += 1
        self._served[chosen.key] = self._serves
        return chosen

    def _order(self, ticket: Ticket) -> tuple[ServiceLane, int, int, int]:
        lane = ticket.rank.lane
        if ticket.passed >= PATIENCE:
            return (lane, -1, 0, ticket.number)
        return (lane, ticket.rank, self._served.get(ticket.key, 0), ticket.number)
