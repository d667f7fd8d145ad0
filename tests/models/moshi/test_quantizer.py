"""Nearest entries, and what is left of them."""

from types import ModuleType

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.moshi_config import QuantizerConfig
from duologue.models.moshi.quantizer import ResidualQuantizer, SplitQuantizer

CONFIG = QuantizerConfig(dimension=2, outer_dimension=2, n_q=3, n_q_semantic=1, bins=4)


def plain(torch: ModuleType, quantizer: ResidualQuantizer) -> None:
    """Projections that change nothing."""
    for projection in (quantizer.input_proj, quantizer.output_proj):
        projection.requires_grad_(False)
        projection.weight.copy_(torch.eye(2)[:, :, None])


def test_each_level_takes_the_entry_nearest_to_what_is_left(torch: ModuleType) -> None:
    quantizer = ResidualQuantizer(2, CONFIG)
    plain(torch, quantizer)
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    quantizer.codebooks.copy_(torch.stack([4 * corners, corners]))
    latent = torch.tensor([[[3.1], [-5.2]], [[-4.9], [4.8]]])
    codes = quantizer.encode(latent, 2)
    assert codes[:, :, 0].tolist() == [[1, 3], [2, 2]]
    assert quantizer.decode(codes)[:, :, 0].tolist() == [[3.0, -5.0], [-5.0, 5.0]]
    assert torch.equal(quantizer.encode(latent, 1), codes[:, :1])


def test_semantic_and_acoustic_quantizers_add_up(torch: ModuleType) -> None:
    quantizer = SplitQuantizer(CONFIG).requires_grad_(False)
    for part in (quantizer.rvq_first, quantizer.rvq_rest):
        part.codebooks.normal_()
    latent = torch.randn(2, 2, 5)
    codes = quantizer.encode(latent, 3)
    assert codes.shape == (2, 3, 5)
    first = quantizer.rvq_first.decode(codes[:, :1])
    assert torch.equal(quantizer.decode(codes), first + quantizer.rvq_rest.decode(codes[:, 1:]))
    assert torch.equal(quantizer.decode(codes[:, :1]), first)
    assert torch.equal(quantizer.encode(latent, 2), codes[:, :2])
