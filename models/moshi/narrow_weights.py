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


class NarrowLinear(nn.Module):
    """A linear layer without bias. ``weight``: int8 or E4M3 ``[out, in]``; ``scale``: float32
    ``[out]``.

    ``fast``: multiply by kernels of our own, on a CUDA device that can. Elsewhere weights are
    widened for each product: that saves memory, not time.
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
        self.fast = False
        if wide.is_cuda and wide.dtype != torch.float32:
            # Triton is not there without a CUDA device.
            from duologue.models.moshi.triton_product import multiplies_fp8, narrow_product

            self.fast = kind == "int8" or multiplies_fp8(wide.device)
            self._multiply = narrow_product

    def forward(self, x: Tensor) -> Tensor:
        if self.fast:
            rows = x.flatten(0, -2).contiguous()
            return self._multiply(rows, self.weight, self.scale).unflatten(0, x.shape[:-1])
        if self.weight.dtype != FP8:
            return self._product(x, self.scale)
        narrow, scale = _rounded(x, FP8, FP8_MAX)
        return self._product(narrow.to(x.dtype), scale * self.scale)

    def _product(self, x: Tensor, scale: Tensor) -> Tensor:
        """Whole numbers and E4M3 are exact in bfloat16; sums may be too large for float16."""
        wide = torch.float32 if x.dtype == torch.float16 else x.dtype
        y = functional.linear(x.to(wide), self.weight.to(wide))
        return (y.float() * scale).to(x.dtype)


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
