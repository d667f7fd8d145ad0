"""What a network carries from one frame to the next, outside of the network.

Every tensor of a state has the slot as its first dimension: one slot holds one session, and a
slot can be emptied, copied, put away and put back without touching the others.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


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
        """What one slot holds, as views. Where a view is shorter than its place, the slot's own
        tensors before it say by how much."""
        for tensor in self.own_tensors():
            yield tensor[slot]
        for part in self.parts():
            yield from part.tensors_of(slot)

    def copy_slot(self, source: int, target: int) -> None:
        """Make one slot a copy of another one."""
        self._fill(target, self.tensors_of(source))

    def save(self, slot: int) -> list[Tensor]:
        """A copy of one slot in host memory, for :meth:`restore`."""
        return [tensor.to("cpu", copy=True) for tensor in self.tensors_of(slot)]

    def restore(self, slot: int, saved: Sequence[Tensor]) -> None:
        """Put back what :meth:`save` gave, in the same or another slot."""
        self._fill(slot, saved)

    def _fill(self, slot: int, values: Iterable[Tensor]) -> None:
        # An offset is written before the views that depend on it are taken.
        for place, value in zip(self.tensors_of(slot), values, strict=True):
            place.copy_(value)

    def nbytes(self) -> int:
        """The size of all tensors, in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors())


def along(slots: Tensor, like: Tensor) -> Tensor:
    """``[slots]`` shaped to broadcast over ``[slots, ...]``."""
    return slots.view(-1, *([1] * (like.dim() - 1)))


def update(tensor: Tensor, value: Tensor, active: Tensor | None) -> None:
    """Write ``value`` into the slots that are active, bool ``[slots]``; ``None``: into all."""
    if active is None:
        tensor.copy_(value)
    else:
        tensor.copy_(torch.where(along(active, tensor), value, tensor))
