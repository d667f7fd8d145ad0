"""Moshis with random weights, and what a tick reads of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from duologue.models.moshi.duplex_network import DuplexNetwork
from duologue.models.moshi.kyutai_layout import language_config, settings_7b
from duologue.models.moshi.language_model import LanguageModel
from duologue.models.moshi.mimi import Mimi
from duologue.models.moshi.moshi_config import (
    DepthConfig,
    MimiConfig,
    MoshiConfig,
    QuantizerConfig,
    SeanetConfig,
    TransformerConfig,
)
from duologue.models.moshi.narrow_weights import Narrow, NarrowLinear, narrow_layers
from load_tests.tick_cases import Case

_NARROW: Mapping[str, Narrow] = {"int8": "int8", "fp8": "fp8"}


def full_network(device: str) -> DuplexNetwork:
    """The 7B geometry and Mimi with random weights; bfloat16, the codec float32."""
    return _network(language_config(settings_7b()), MimiConfig(), device, torch.bfloat16)


def small_network(device: str) -> DuplexNetwork:
    """A few thousand weights, to see that all of this runs."""
    acoustic = (1,) * 3
    language = MoshiConfig(
        n_q=8,
        agent_codebooks=4,
        card=32,
        text_card=40,
        text_card_out=40,
        delays=(0, 0, *acoustic, 0, *acoustic),
        temporal=TransformerConfig(d_model=64, num_heads=4, num_layers=2, hidden=64, context=64),
        depth=DepthConfig(
            d_model=32,
            num_heads=2,
            num_layers=2,
            hidden=(32,) * 4,
            schedule=tuple(range(4)),
        ),
    )
    mimi = MimiConfig(
        sample_rate=600,
        seanet=SeanetConfig(dimension=32, n_filters=4, ratios=(4, 3, 2)),
        quantizer=QuantizerConfig(dimension=16, outer_dimension=32, n_q=4, bins=32),
        transformer=TransformerConfig(
            d_model=32,
            num_heads=4,
            num_layers=2,
            hidden=48,
            context=10,
            norm="layer_norm",
            gating=False,
            layer_scale=True,
        ),
    )
    return _network(language, mimi, device, torch.float32)


def _network(
    language: MoshiConfig, mimi: MimiConfig, device: str, dtype: torch.dtype
) -> DuplexNetwork:
    usual = torch.get_default_dtype()
    torch.manual_seed(1)
    try:
        torch.set_default_dtype(dtype)
        with torch.device(device):
            model = LanguageModel(language)
    finally:
        torch.set_default_dtype(usual)
    with torch.device(device):
        codec = Mimi(mimi)
    for name, buffer in codec.named_buffers():
        if name.endswith("codebooks"):
            buffer.normal_()
    return DuplexNetwork(model, codec)


def weight_bytes(network: DuplexNetwork) -> int:
    """What a tick reads of weights: all but the tables, of which it reads a few rows."""
    modules = [*network.language.modules(), *network.mimi.modules()]
    return sum(
        weight.nbytes
        for module in modules
        if not isinstance(module, nn.Embedding)
        for weight in _weights(module)
    )


def _weights(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters(recurse=False)
    if isinstance(module, NarrowLinear):
        yield from module.buffers(recurse=False)


@contextmanager
def narrowed(network: DuplexNetwork, weights: str, device: str) -> Iterator[None]:
    """Keep the layers' weights so meanwhile: ``bf16`` leaves them, as ``int8`` and ``fp8`` do not.
    The wide ones stay beside them, so memory is no less."""
    kind = _NARROW.get(weights)
    layers = list(network.language.transformer.layers)
    modules = [module for layer in layers for module in layer.modules()]
    wide = [
        (module, name, child)
        for module in modules
        for name, child in module.named_children()
        if isinstance(child, nn.Linear)
    ]
    if kind is not None:
        narrow_layers(layers, kind, device)
    try:
        yield
    finally:
        for module, name, child in wide:
            setattr(module, name, child)


def kv_bytes(network: DuplexNetwork, case: Case, steps: int) -> int:
    """What a tick reads of keys and values, for all sessions, each ``steps`` old."""
    temporal = network.language.config.temporal
    width = 1 if case.kv == "fp8" else 2
    values = 2 * temporal.d_model // temporal.kv_repeat * temporal.num_layers
    return case.sessions * min(steps, temporal.context) * values * width
