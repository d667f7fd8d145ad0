"""The convolutions between sound and latents."""

from types import ModuleType

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.moshi_config import SeanetConfig
from duologue.models.moshi.seanet import SeanetDecoder, SeanetEncoder

CONFIG = SeanetConfig(dimension=8, n_filters=4, n_residual_layers=2, ratios=(3, 2))


def test_a_latent_is_a_hop_of_samples(torch: ModuleType) -> None:
    encoder = SeanetEncoder(CONFIG).requires_grad_(False)
    decoder = SeanetDecoder(CONFIG).requires_grad_(False)
    latent = encoder(torch.randn(2, 1, 5 * CONFIG.hop), None)
    assert latent.shape == (2, 8, 5)
    assert decoder(latent, None).shape == (2, 1, 5 * CONFIG.hop)


def test_a_stream_of_steps_is_the_whole_with_deeper_blocks_too(torch: ModuleType) -> None:
    encoder = SeanetEncoder(CONFIG).requires_grad_(False)
    decoder = SeanetDecoder(CONFIG).requires_grad_(False)
    pcm = torch.randn(2, 1, 20 * CONFIG.hop)
    latent = encoder(pcm, None)
    states = encoder.new_states(2)
    pieces = [encoder(piece, states) for piece in pcm.split(CONFIG.hop, dim=2)]
    assert torch.allclose(torch.cat(pieces, dim=2), latent, atol=1e-5)
    states = decoder.new_states(2)
    sound = [decoder(piece, states) for piece in latent.split(1, dim=2)]
    assert torch.allclose(torch.cat(sound, dim=2), decoder(latent, None), atol=1e-5)
