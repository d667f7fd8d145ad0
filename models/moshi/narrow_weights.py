"""Weights of large linear layers in 8 bits, with a scale for each output channel.

``int8``: the weights alone (arXiv:2208.07339, 2.1, by output channel). ``fp8``: E4M3
(arXiv:2209.05433), and the layer's input is rounded to it as well, with a scale for each row.
"""

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from duologue.models.moshi.paged_kv import FP8, FP8_MAX, LEAST_SCALE

Narrow = Literal["int8", "fp8"]

INT8_MAX = 127.0
_PROBED_ROWS = (1, 17)
_NEAR = 0.02
"""Of the norm of a product: more than its rounding to bfloat16, less than any mistake."""


class NarrowLinear(nn.Module):
    """A linear layer without bias. ``weight``: int8 or E4M3 ``[out, in]``; ``scale``: float32
    ``[out]``.

    ``fast``: multiply in 8 bits, where the device has been seen to do so rightly (``fp8`` alone).
    Elsewhere weights are widened for each product: that saves memory, not time.
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear, kind: Narrow, device: str) -> None:
        """Raises ValueError for a layer with a bias."""
        super().__init__()
        if linear.bias is not None:
            raise ValueError("a layer with a bias")
        wide = linear.weight.to(device)
        most = INT8_MAX if kind == "int8" else FP8_MAX
        weight, scale = _rounded(wide, torch.int8 if kind == "int8" else FP8, most)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale[:, 0])
        self.fast = wide.is_cuda and wide.dtype == torch.bfloat16 and self._is_right_when_fast()

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dtype != FP8:
            return self._product(x, self.scale)
        narrow, scale = _rounded(x, FP8, FP8_MAX)
        if self.fast:
            rows, row_scale = narrow.flatten(0, -2), scale.flatten(0, -2)
            y = scaled_product(rows, row_scale, self.weight, self.scale)
            return y.unflatten(0, x.shape[:-1])
        return self._product(narrow.to(x.dtype), scale * self.scale)

    def _product(self, x: Tensor, scale: Tensor) -> Tensor:
        """Whole numbers and E4M3 are exact in bfloat16; sums may be too large for float16."""
        wide = torch.float32 if x.dtype == torch.float16 else x.dtype
        y = functional.linear(x.to(wide), self.weight.to(wide))
        return (y.float() * scale).to(x.dtype)

    def _is_right_when_fast(self) -> bool:
        if self.weight.dtype != FP8:
            return False
        for rows in _PROBED_ROWS:
            x = torch.randn(rows, self.weight.shape[1], device=self.weight.device)
            narrow, scale = _rounded(x.bfloat16(), FP8, FP8_MAX)
            expected = self._product(narrow.bfloat16(), scale * self.scale).float()
            try:
                found = scaled_product(narrow, scale, self.weight, self.scale).float()
            except (RuntimeError, ValueError):
                return False
            # Not a number is not near.
            if not bool((found - expected).norm() <= _NEAR * expected.norm()):
                return False
        return True


def scaled_product(x: Tensor, x_scale: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    """E4M3 ``[rows, in]`` with ``[rows, 1]`` scales times ``[out, in]`` with ``[out]``, to
    bfloat16 ``[rows, out]``.

    Raises RuntimeError or ValueError where the device can't, or not in these sizes.
    """
    return torch._scaled_mm(
        x, weight.t(), scale_a=x_scale, scale_b=scale[None], out_dtype=torch.bfloat16
    )


def _rounded(wide: Tensor, dtype: torch.dtype, most: float) -> tuple[Tensor, Tensor]:
    """``[..., in]`` to the same in 8 bits, and its scales ``[..., 1]``."""
    values = wide.float()
    scale = (values.abs().amax(dim=-1, keepdim=True) / most).clamp(min=LEAST_SCALE)
    values = values / scale
    return (values.round() if dtype == torch.int8 else values).to(dtype), scale


def narrow_layers(layers: Iterable[nn.Module], kind: Narrow, device: str) -> None:
    """Put narrow layers on a device in place of all linear ones in these modules, one by one."""
    for layer in layers:
        for module in list(layer.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(module, name, NarrowLinear(child, kind, device))
