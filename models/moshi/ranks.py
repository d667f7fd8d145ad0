"""The ranks that have a transformer together, each with some heads and some of each feed-forward
layer (Shoeybi et al. 2019, arXiv:1909.08053).
"""

from typing import Protocol

from torch import Tensor, nn


class Peers(Protocol):
    """All ranks make the same calls in the same order; each call ends when all have made it."""

    def share(self, x: Tensor) -> None:
        """Let ``x`` be, on all ranks, what it is on the first."""

    def add(self, x: Tensor) -> None:
        """Let ``x`` be, on all ranks, the sum of what it is on each."""


class Summed(nn.Module):
    """A linear layer whose input channels are shared out: each rank has a part of the sum."""

    def __init__(self, part: nn.Module, peers: Peers) -> None:
        super().__init__()
        self.part = part
        self._peers = peers

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.part(x)
        self._peers.add(y)
        return y
