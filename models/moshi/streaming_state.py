"""What a network carries from one frame to the next, outside of the network.

Every tensor of a state has the slot as its first dimension: one slot holds one session, and a
slot can be emptied, copied, put away and put back without touching the others.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from duologue.models.moshi.host_bricks import KeptPages

SavedPart: TypeAlias = Tensor | KeptPages
"""Of a slot that is put away: a tensor in host memory, or many."""


@dataclass(slots=True, eq=False)
class StreamingState:
    """A tree of tensors shaped ``[slots, ...]``; zeros are a state that has seen nothing.

    Updates are made in place, so that the tensors' addresses stay the same for a captured graph.
    """

    def parts(self) -> Iterator["StreamingState"]:
        """The states directly below this one."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, StreamingState):
                yield value
            elif isinstance(value, list):
                yield from value

    def own_tensors(self) -> Iterator[Tensor]:
        """The tensors of this state itself."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                yield value

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, this state's own first."""
        yield from self.own_tensors()
        for part in self.parts():
            yield from part.tensors()

    def reset(self, slots: Tensor) -> None:
        """Empty the slots that are true in ``slots``, bool ``[slots]``."""
        for tensor in self.own_tensors():
            tensor.masked_fill_(along(slots, tensor), 0)
        for part in self.parts():
            part.reset(slots)

    def tensors_of(self, slot: int) -> Iterator[Tensor]:
        """What this state itself holds for one slot, as views. Where a view is shorter than its
        place, those before it say by how much."""
        for tensor in self.own_tensors():
            yield tensor[slot]

    def copy_slot(self, source: int, target: int) -> None:
        """Make one slot a copy of another one."""
        self._fill(target, self.tensors_of(source))
        for part in self.parts():
            part.copy_slot(source, target)

    def save(self, slot: int) -> list[SavedPart]:
        """A copy of one slot in host memory, for :meth:`restore`."""
        saved: list[SavedPart] = [tensor.to("cpu", copy=True) for tensor in self.tensors_of(slot)]
        for part in self.parts():
            saved.extend(part.save(slot))
        return saved

    def restore(self, slot: int, saved: Sequence[SavedPart]) -> None:
        """Put back what :meth:`save` gave, in the same or another slot."""
        self.take(slot, iter(saved))

    def take(self, slot: int, saved: Iterator[SavedPart]) -> None:
        """Put back this state's part of what was saved."""
        self._fill(slot, saved)
        for part in self.parts():
            part.take(slot, saved)

    def first(self, slots: int) -> Self:
        """The first slots alone, as views."""
        return replace(self, **{name: _first(value, slots) for name, value in self._named()})

    def _named(self) -> Iterator[tuple[str, Any]]:
        return ((field.name, getattr(self, field.name)) for field in fields(self))

    def _fill(self, slot: int, values: Iterable[SavedPart]) -> None:
        # An offset is written before the views that depend on it are taken.
        remaining = iter(values)
        for place in self.tensors_of(slot):
            value = next(remaining)
            assert isinstance(value, Tensor)
            place.copy_(value)

    def nbytes(self) -> int:
        """The size of all tensors, in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors())


def _first(value: Any, slots: int) -> Any:
    if isinstance(value, Tensor):
        return value[:slots]
    if isinstance(value, StreamingState):
        return value.first(slots)
    if isinstance(value, list):
        return [_first(one, slots) for one in value]
    return value


def along(slots: Tensor, like: Tensor) -> Tensor:
    """``[slots]`` shaped to broadcast over ``[slots, ...]``."""
    return slots.view(-1, *([1] * (like.dim() - 1)))


def update(tensor: Tensor, value: Tensor, active: Tensor | None) -> None:
    """Write ``value`` into the slots that are active, bool ``[slots]``; ``None``: into all."""
    if active is None:
        tensor.copy_(value)
    else:
        tensor.copy_(torch.where(along(active, tensor), value, tensor))
