"""SEANet, the convolutions between sound and latents (Tagliasacchi et al. 2020,
arXiv:2009.02095; as in Mimi, Défossez et al. 2024, arXiv:2410.00037)."""

from collections.abc import Iterator
from itertools import repeat

from torch import Tensor, nn
from torch.nn import functional

from duologue.models.moshi.moshi_config import SeanetConfig
from duologue.models.moshi.streaming_conv import (
    ConvState,
    StreamingConv1d,
    StreamingConvTranspose1d,
)

States = Iterator[ConvState | None]


class Elu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.elu(x)


class ResnetBlock(nn.Module):
    """Two convolutions beside the identity; ``compress`` narrows what is between them."""

    def __init__(self, channels: int, dilation: int, config: SeanetConfig) -> None:
        super().__init__()
        narrow = channels // config.compress
        kernel = config.residual_kernel_size
        self.block = nn.ModuleList(
            [
                Elu(),
                StreamingConv1d(channels, narrow, kernel, dilation=dilation),
                Elu(),
                StreamingConv1d(narrow, channels, 1),
            ]
        )

    def forward(self, x: Tensor, states: States, active: Tensor | None) -> Tensor:
        return x + run(self.block, x, states, active)


def _residual(channels: int, config: SeanetConfig) -> list[nn.Module]:
    return [
        ResnetBlock(channels, config.dilation_base**index, config)
        for index in range(config.n_residual_layers)
    ]


def run(layers: nn.ModuleList, x: Tensor, states: States, active: Tensor | None) -> Tensor:
    """Apply layers in order; each convolution takes the next of the states."""
    for layer in layers:
        if isinstance(layer, ResnetBlock):
            x = layer(x, states, active)
        elif isinstance(layer, StreamingConv1d | StreamingConvTranspose1d):
            x = layer(x, next(states), active)
        else:
            x = layer(x)
    return x


def new_states(layers: nn.ModuleList, slots: int) -> list[ConvState]:
    """Fresh states, in the order in which :func:`run` takes them."""
    states: list[ConvState] = []
    for layer in layers:
        if isinstance(layer, ResnetBlock):
            states.extend(new_states(layer.block, slots))
        elif isinstance(layer, StreamingConv1d | StreamingConvTranspose1d):
            states.append(layer.new_state(slots))
    return states


class _Seanet(nn.Module):
    model: nn.ModuleList

    def new_states(self, slots: int) -> list[ConvState]:
        return new_states(self.model, slots)

    def forward(
        self, x: Tensor, states: list[ConvState] | None, active: Tensor | None = None
    ) -> Tensor:
        return run(self.model, x, repeat(None) if states is None else iter(states), active)


class SeanetEncoder(_Seanet):
    """``[slots, 1, samples]`` to ``[slots, dimension, samples / hop]``."""

    def __init__(self, config: SeanetConfig) -> None:
        super().__init__()
        channels = config.n_filters
        layers: list[nn.Module] = [
            StreamingConv1d(config.channels, channels, config.kernel_size),
        ]
        for ratio in reversed(config.ratios):
            layers.extend(_residual(channels, config))
            layers.append(Elu())
            layers.append(StreamingConv1d(channels, 2 * channels, 2 * ratio, stride=ratio))
            channels *= 2
        layers.append(Elu())
        layers.append(StreamingConv1d(channels, config.dimension, config.last_kernel_size))
        self.model = nn.ModuleList(layers)


class SeanetDecoder(_Seanet):
    """``[slots, dimension, steps]`` to ``[slots, 1, steps * hop]``."""

    def __init__(self, config: SeanetConfig) -> None:
        super().__init__()
        channels = config.n_filters * 2 ** len(config.ratios)
        layers: list[nn.Module] = [
            StreamingConv1d(config.dimension, channels, config.kernel_size),
        ]
        for ratio in config.ratios:
            half = channels // 2
            layers.append(Elu())
            layers.append(StreamingConvTranspose1d(channels, half, 2 * ratio, stride=ratio))
            layers.extend(_residual(half, config))
            channels = half
        layers.append(Elu())
        layers.append(StreamingConv1d(channels, config.channels, config.last_kernel_size))
        self.model = nn.ModuleList(layers)
