"""Products with weights in 8 bits on a CUDA device give what widened weights give."""

from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

import torch

from duologue.models.moshi.narrow_weights import Narrow, NarrowLinear

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZES = [(48, 64), (200, 296), (12288, 4096), (4096, 11264)]


def layer(channels: int, width: int, kind: Narrow, dtype: Any) -> NarrowLinear:
    torch.manual_seed(1)
    linear = torch.nn.Linear(width, channels, bias=False).requires_grad_(False).to(dtype)
    return NarrowLinear(linear, kind, "cuda")


@pytest.mark.parametrize("kind", ["int8", "fp8"])
@pytest.mark.parametrize("rows", [1, 16, 17, 64, 160])
@pytest.mark.parametrize(("channels", "width"), SIZES)
def test_the_product_is_the_one_with_widened_weights(
    kind: Narrow, rows: int, channels: int, width: int
) -> None:
    narrow = layer(channels, width, kind, torch.bfloat16)
    x = torch.randn(rows, 1, width, device="cuda", dtype=torch.bfloat16)
    fast = narrow(x).float()
    assert narrow.fast
    narrow.fast = False
    slow = narrow(x).float()
    assert fast.shape == slow.shape == (rows, 1, channels)
    assert (fast - slow).norm() < 0.01 * slow.norm()


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_a_row_does_not_depend_on_the_others(kind: Narrow) -> None:
    narrow = layer(4096, 11264, kind, torch.bfloat16)
    x = torch.randn(64, 11264, device="cuda", dtype=torch.bfloat16)
    others = torch.randn(64, 11264, device="cuda", dtype=torch.bfloat16)
    others[7] = x[7]
    assert torch.equal(narrow(x)[7], narrow(others)[7])
    assert torch.equal(narrow(x), narrow(x))


def test_numbers_of_the_other_kind_of_16_bits_are_multiplied_as_well() -> None:
    narrow = layer(200, 296, "int8", torch.float16)
    x = torch.randn(3, 296, device="cuda", dtype=torch.float16)
    fast = narrow(x)
    narrow.fast = False
    assert (fast - narrow(x)).norm() < 0.01 * fast.norm()
