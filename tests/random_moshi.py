"""A folder with a small Moshi of random weights, in Kyutai's layout, at 24 kHz."""

import importlib
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from load_tests.small_moshi import SMALL, SMALL_CODEC

WORDS = (
    "the quick brown fox jumps over a lazy dog and says that all is well with you and me",
    "when winter comes we walk under bright stars along frozen rivers singing old songs",
    "bring your own coffee because everything here costs money except kindness and time",
)
TEXT_CARD = 48

LANGUAGE: dict[str, Any] = {
    **SMALL,
    "dim": 32,
    "text_card": TEXT_CARD,
    "existing_text_padding_id": 3,
    "context": 32,
    "depformer_dim": 16,
    "depformer_dim_feedforward": 66,
}

MIMI: dict[str, Any] = dict(SMALL_CODEC)


def make_random_moshi(folder: Path) -> None:
    """Skips the test where torch, sentencepiece or the ``moshi`` package is missing."""
    torch = pytest.importorskip("torch", reason="torch comes with duologue[moshi]")
    pieces = pytest.importorskip("sentencepiece", reason="it comes with duologue[moshi]")
    os.environ.setdefault("NO_TORCH_COMPILE", "1")
    pytest.importorskip("moshi.models", reason="pip install --no-deps moshi einops")
    from safetensors.torch import save_file

    loaders: Any = importlib.import_module("moshi.models.loaders")
    language: Any = importlib.import_module("moshi.models.lm")
    networks = {
        "lm.safetensors": language.LMModel(**LANGUAGE, dtype=torch.float32),
        "codec.safetensors": loaders.get_mimi(None, MIMI, num_codebooks=4),
    }
    for seed, (name, network) in enumerate(networks.items()):
        randomize(network, seed)
        if name == "codec.safetensors":
            # Its sound would be beyond full scale.
            network.decoder.model[-1].conv.conv.weight.data *= 0.01
        tensors = {key: tensor.clone() for key, tensor in network.state_dict().items()}
        save_file(tensors, folder / name)
    model = io.BytesIO()
    pieces.SentencePieceTrainer.train(
        sentence_iterator=iter(WORDS * 20),
        model_writer=model,
        vocab_size=TEXT_CARD,
        pad_id=3,
        minloglevel=2,
    )
    (folder / "pieces.model").write_bytes(model.getvalue())
    (folder / "codec.json").write_text(json.dumps(MIMI))
    names = {
        "moshi_name": "lm.safetensors",
        "mimi_name": "codec.safetensors",
        "mimi_config_name": "codec.json",
        "tokenizer_name": "pieces.model",
        "model_type": "moshi",
    }
    (folder / "config.json").write_text(json.dumps(LANGUAGE | names))


def randomize(network: Any, seed: int, *, scales: bool = False) -> None:
    """Weights that keep signals alive, and make every part of the network matter.

    ``scales``: those of layers' residuals are near a third, not near 0.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        if not tensor.dtype.is_floating_point or "nitialized" in name or "inv_freq" in name:
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if "usage" in name:
            tensor.data.copy_(0.5 + noise.abs())
        elif "embed" in name and "sum" in name:
            tensor.data.copy_(noise)
        elif "norm" in name and ("alpha" in name or "weight" in name):
            tensor.data.copy_(1 + 0.1 * noise)
        elif scales and "scale" in name:
            tensor.data.copy_(0.3 + 0.3 * noise.abs())
        elif tensor.dim() == 1:
            tensor.data.copy_(0.05 * noise)
        else:
            tensor.data.copy_(noise * 1.3 / tensor[0].numel() ** 0.5)
