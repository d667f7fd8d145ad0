"""Linear layers in 8 bits."""

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

import torch
from torch.nn import functional

from duologue.models.moshi.narrow_weights import (
    Narrow,
    NarrowLinear,
    narrow_layers,
)
from duologue.models.moshi.transformer import GatedMlp

KINDS: list[Narrow] = ["int8", "fp8"]


@pytest.fixture
def linear() -> Any:
    layer = torch.nn.Linear(64, 48, bias=False)
    generator = torch.Generator().manual_seed(2)
    sizes = torch.logspace(-3, 3, 48)[:, None]
    layer.weight.data = torch.randn(48, 64, generator=generator) * sizes
    return layer.requires_grad_(False)


@pytest.fixture
def x() -> Any:
    return torch.randn(5, 64, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize(("kind", "near"), [("int8", 0.02), ("fp8", 0.06)])
def test_every_output_channel_is_near_though_they_differ_a_million_times_in_size(
    linear: Any, kind: Narrow, near: float
) -> None:
    x = torch.randn(400, 64, generator=torch.Generator().manual_seed(3))
    expected, found = linear(x), NarrowLinear(linear, kind, "cpu")(x)
    error = (found - expected).norm(dim=0) / expected.norm(dim=0)
    assert 0 < error.max() < near


@pytest.mark.parametrize("kind", KINDS)
def test_weights_take_a_byte_and_are_at_most_half_a_step_off(linear: Any, kind: Narrow) -> None:
    narrow = NarrowLinear(linear, kind, "cpu")
    assert narrow.weight.element_size() == 1
    assert narrow.scale.shape == (48,)
    back = narrow.weight.float() * narrow.scale[:, None]
    largest = linear.weight.abs().amax(dim=1, keepdim=True)
    # An eighth of its own size apart above 2**-6, in E4M3; 254 steps from end to end as a number.
    step = linear.weight.abs() / 8 + largest / 448 / 512 if kind == "fp8" else largest / 127
    assert ((back - linear.weight).abs() <= step / 2 * 1.001).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_result_is_of_the_inputs_type_and_shape(
    linear: Any, x: Any, kind: Narrow, dtype: Any
) -> None:
    narrow = NarrowLinear(linear, kind, "cpu")
    y = narrow(x.to(dtype)[:, None])
    assert (y.dtype, y.shape) == (dtype, (5, 1, 48))
    assert torch.isfinite(y).all()


def test_an_input_of_zeros_gives_zeros(linear: Any) -> None:
    for kind in KINDS:
        assert (NarrowLinear(linear, kind, "cpu")(torch.zeros(1, 64)) == 0).all()


def test_all_linear_layers_of_a_module_are_replaced() -> None:
    mlp = GatedMlp(16, 32).requires_grad_(False)
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(1))
    expected = mlp(x)
    narrow_layers([mlp], "int8", "cpu")
    assert isinstance(mlp.linear_in, NarrowLinear)
    assert isinstance(mlp.linear_out, NarrowLinear)
    assert functional.mse_loss(mlp(x), expected) < 1e-3 * expected.square().mean()


def test_a_layer_with_a_bias_is_refused() -> None:
    with pytest.raises(ValueError, match="bias"):
        NarrowLinear(torch.nn.Linear(4, 4), "int8", "cpu")
