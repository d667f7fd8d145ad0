"""Which slot holds which pages of a pool; pure.

A slot is given a page when it writes its first step into it, and gives all of them back when its
session leaves. Where the pool is smaller than all rings together and runs out, a slot that needs
one more goes round in those it has: from then on it remembers less, and nobody has to wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Holding:
    """``position``: steps made. ``ring``: places before the oldest is written over."""

    ring: int
    position: int = 0
    pages: list[int] = field(default_factory=list)


class PageBook:
    """``each``: pages of a whole ring; ``page``: places in one; ``pages``: those of the pool.

    ``shortened`` counts slots that had to do with less.
    """

    def __init__(self, slots: int, each: int, page: int, pages: int) -> None:
        """Raises ValueError unless every slot can have a page."""
        if pages < slots:
            raise ValueError(f"{pages} pages are too few for {slots} slots")
        self._each = each
        self._page = page
        self._free = list(range(pages - 1, -1, -1))
        self._slots = [Holding(each * page) for _ in range(slots)]
        self.shortened = 0

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def ring(self, slot: int) -> int:
        """Places of a slot's ring."""
        return self._slots[slot].ring

    def position(self, slot: int) -> int:
        """Steps that a slot has made."""
        return self._slots[slot].position

    def held(self, slot: int) -> Sequence[int]:
        """A slot's pages, the first place's page first."""
        return tuple(self._slots[slot].pages)

    def step(self, slot: int) -> int | None:
        """A slot makes a step; the page it begins with it, ``None`` if it has it already."""
        holding = self._slots[slot]
        place = holding.position % holding.ring
        holding.position += 1
        if place < len(holding.pages) * self._page:
            return None
        if not self._available(slot):
            holding.ring = len(holding.pages) * self._page
            self.shortened += 1
            return None
        holding.pages.append(self._free.pop())
        return holding.pages[-1]

    def clear(self, slot: int) -> None:
        """The slot is empty: it holds nothing."""
        holding = self._slots[slot]
        self._free.extend(reversed(holding.pages))
        self._slots[slot] = Holding(self._each * self._page)

    def fill(self, slot: int, position: int, ring: int) -> bool:
        """Give an empty slot the pages of a session that has made ``position`` steps in a ring of
        ``ring`` places. False, and nothing given, where they are not there."""
        count = -(-min(position, ring) // self._page)
        if self._slots[slot].pages or count > len(self._free) - self._kept_for_others(slot):
            return False
        pages = [self._free.pop() for _ in range(count)]
        self._slots[slot] = Holding(ring, position, pages)
        return True

    def copy(self, source: int, target: int) -> bool:
        """Give an empty slot as many pages as another one has. See :meth:`fill`."""
        holding = self._slots[source]
        return self.fill(target, holding.position, holding.ring)

    def _available(self, slot: int) -> bool:
        return not self._slots[slot].pages or len(self._free) > self._kept_for_others(slot)

    def _kept_for_others(self, slot: int) -> int:
        """Who has nothing yet must be able to begin."""
        return sum(not holding.pages for other, holding in enumerate(self._slots) if other != slot)
