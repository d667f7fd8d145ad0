"""Causal convolutions over sound that arrives in pieces.

What a convolution needs of earlier input is carried in a :class:`ConvState`; without one the
input is taken to be whole. Padding is as in EnCodec (Défossez et al. 2022, arXiv:2210.13438).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from duologue.models.moshi.streaming_state import StreamingState, along, update


@dataclass(slots=True, eq=False)
class ConvState(StreamingState):
    """``tail``: ``[slots, channels, samples]``, the last input of a convolution, or what a
    transposed one still has to add to its next output. ``started``: bool ``[slots]``."""

    tail: Tensor
    started: Tensor


class StreamingConv1d(nn.Module):
    """A convolution that looks back ``kernel - stride`` samples and never ahead.

    ``repeat_first``: before the first sample stand copies of it instead of zeros.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        bias: bool = True,
        repeat_first: bool = False,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride, dilation=dilation, bias=bias)
        self.lookback = (kernel - 1) * dilation + 1 - stride
        self.repeat_first = repeat_first

    def new_state(self, slots: int) -> ConvState:
        weight = self.conv.weight
        return ConvState(
            tail=weight.new_zeros(slots, self.conv.in_channels, self.lookback),
            started=torch.zeros(slots, dtype=torch.bool, device=weight.device),
        )

    def forward(self, x: Tensor, state: ConvState | None, active: Tensor | None = None) -> Tensor:
        """``[slots, inputs, samples]`` to ``[slots, outputs, samples / stride]``."""
        if self.lookback == 0:
            return self.conv(x)
        first = x[..., :1].expand(-1, -1, self.lookback)
        if state is None:
            tail = first if self.repeat_first else torch.zeros_like(first)
        elif self.repeat_first:
            tail = torch.where(along(state.started, state.tail), state.tail, first)
        else:
            tail = state.tail
        x = torch.cat([tail, x], dim=-1)
        if state is not None:
            update(state.tail, x[..., -self.lookback :], active)
            update(state.started, torch.ones_like(state.started), active)
        return self.conv(x)


class StreamingConvTranspose1d(nn.Module):
    """A transposed convolution whose outputs overlap by ``kernel - stride`` samples."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.convtr = nn.ConvTranspose1d(inputs, outputs, kernel, stride, groups=groups, bias=bias)
        self.overlap = kernel - stride

    def new_state(self, slots: int) -> ConvState:
        weight = self.convtr.weight
        return ConvState(
            tail=weight.new_zeros(slots, self.convtr.out_channels, self.overlap),
            started=torch.zeros(slots, dtype=torch.bool, device=weight.device),
        )

    def forward(self, x: Tensor, state: ConvState | None, active: Tensor | None = None) -> Tensor:
        """``[slots, inputs, samples]`` to ``[slots, outputs, samples * stride]``."""
        y = self._transposed(x)
        if self.overlap == 0:
            return y
        if state is not None:
            y[..., : self.overlap] += state.tail
            tail = y[..., -self.overlap :]
            if self.convtr.bias is not None:
                tail = tail - self.convtr.bias[:, None]
            update(state.tail, tail, active)
        return y[..., : -self.overlap]

    def _transposed(self, x: Tensor) -> Tensor:
        convtr = self.convtr
        depthwise = convtr.groups == convtr.in_channels == convtr.out_channels
        if not depthwise or x.shape[-1] > 1:
            return convtr(x)
        # One step of each channel by itself: a product, for which there are faster kernels.
        y = x * convtr.weight[:, 0]
        return y if convtr.bias is None else y + convtr.bias[:, None]
