"""Which of a model's slots holds whose history; pure.

A slot keeps the keys and values of what it saw last, so a session that comes back to its slot has
its history evaluated already.
"""

from collections.abc import Sequence


class Slot:
    """A place for one sequence. ``tokens`` is what it was last asked to evaluate; ``generated``
    is how many tokens it added to that. ``batch``: it is the batch lane's."""

    __slots__ = ("batch", "busy", "generated", "index", "leaving", "owner", "tokens", "used")

    def __init__(self, index: int, batch: bool = False) -> None:
        self.index = index
        self.batch = batch
        self.owner: str | None = None
        self.tokens: Sequence[int] = ()
        self.generated = 0
        self.busy = False
        self.leaving = False
        self.used = 0

    def cached(self, tokens: Sequence[int]) -> int:
        """About how many of these tokens the slot has evaluated already."""
        common = common_prefix(self.tokens, tokens)
        if common == len(self.tokens):
            common = min(common + self.generated, len(tokens))
        return common


class SlotTable:
    """A fixed number of slots, each for one sequence at a time.

    The batch lane has its own: it must not cost a conversation what its slot holds.
    """

    def __init__(self, size: int, batch: int = 0) -> None:
        """`size` slots for conversations, and `batch` more for the batch lane."""
        if size < 1:
            raise ValueError(f"{size} slots")
        self._all = [Slot(index, index >= size) for index in range(size + batch)]
        self._uses = 0

    def take(self, session: str, tokens: Sequence[int], batch: bool = False) -> Slot | None:
        """A slot for the session, busy until given back; ``None``: wait until one is given back.

        Its own slot, also when that must be waited for; else, of those that are nobody's, the one
        that has most of these tokens; else the one that was used least recently.
        """
        slots = [slot for slot in self._all if slot.batch == batch]
        own = [slot for slot in slots if slot.owner == session]
        free = [slot for slot in own if not slot.busy]
        if not free and any(slot.leaving for slot in own):
            return None
        if not free:
            free = [slot for slot in slots if not slot.busy and slot.owner is None]
        if not free and own:
            # Another of its answers is under way; taking a slot of another session's for this one
            # would cost that session its history.
            return None
        if not free:
            free = [slot for slot in slots if not slot.busy]
        if not free:
            return None
        chosen = max(free, key=lambda slot: (slot.cached(tokens), -slot.used))
        if chosen.owner not in (None, session):
            chosen = min(free, key=lambda slot: slot.used)
        self._uses += 1
        chosen.used = self._uses
        chosen.owner = session
        chosen.busy = True
        chosen.leaving = False
        return chosen

    def leave(self, slot: Slot) -> None:
        """The slot's work was cancelled: it will be given back soon."""
        slot.leaving = True

    def give(self, slot: Slot) -> None:
        """The slot's work is over."""
        slot.busy = slot.leaving = False

    def forget(self, session: str) -> None:
        """The session is over; what its slots hold may still serve another one."""
        for slot in self._all:
            if slot.owner == session:
                slot.owner = None


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens are the same."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))
