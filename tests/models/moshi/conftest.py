"""Small random checkpoints as the reference implementations write them.

The ``moshi`` package and transformers are oracles here. They, and torch, are not needed to run
the server; tests that need them are skipped where they are missing.
"""

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import msgspec
import pytest

Tensor = Any

LANGUAGE: dict[str, Any] = {
    "dim": 32,
    "text_card": 40,
    "existing_text_padding_id": 3,
    "n_q": 8,
    "dep_q": 4,
    "card": 24,
    "num_heads": 4,
    "num_layers": 2,
    "hidden_scale": 4.125,
    "causal": True,
    "layer_scale": None,
    "context": 8,
    "max_period": 10000,
    "gating": "silu",
    "norm": "rms_norm_f32",
    "positional_embedding": "rope",
    "depformer_dim": 16,
    "depformer_dim_feedforward": 66,
    "depformer_num_heads": 2,
    "depformer_num_layers": 2,
    "depformer_layer_scale": None,
    "depformer_multi_linear": True,
    "depformer_context": 4,
    "depformer_max_period": 10000,
    "depformer_gating": "silu",
    "depformer_pos_emb": "none",
    "depformer_weights_per_step": True,
    "delays": [0, 0, 1, 1, 1, 0, 1, 1, 1],
}
"""A Moshi of 4 + 4 codebooks whose window is 8 frames."""

MIMI: dict[str, Any] = {
    "channels": 1,
    "sample_rate": 600,
    "frame_rate": 12.5,
    "seanet": {
        "channels": 1,
        "dimension": 32,
        "causal": True,
        "n_filters": 4,
        "n_residual_layers": 1,
        "activation": "ELU",
        "compress": 2,
        "dilation_base": 2,
        "disable_norm_outer_blocks": 0,
        "kernel_size": 7,
        "residual_kernel_size": 3,
        "last_kernel_size": 3,
        "norm": "none",
        "pad_mode": "constant",
        "ratios": [4, 3, 2],
        "true_skip": True,
    },
    "quantizer": {
        "dimension": 16,
        "n_q": 6,
        "bins": 24,
        "input_dimension": 32,
        "output_dimension": 32,
    },
    "transformer": {
        "d_model": 32,
        "num_heads": 4,
        "num_layers": 2,
        "causal": True,
        "layer_scale": 0.01,
        "context": 10,
        "conv_layout": True,
        "max_period": 10000,
        "gating": "none",
        "norm": "layer_norm",
        "positional_embedding": "rope",
        "dim_feedforward": 48,
        "input_dimension": 32,
        "output_dimensions": [32],
    },
}
"""A Mimi whose frames are 48 samples and whose transformers see 5 frames."""


@pytest.fixture(scope="session")
def torch() -> Iterator[ModuleType]:
    """torch on one thread: the networks are tiny."""
    module: Any = pytest.importorskip("torch", reason="torch comes with duologue[moshi]")
    threads = module.get_num_threads()
    module.set_num_threads(1)
    yield module
    module.set_num_threads(threads)


@pytest.fixture(scope="session")
def reference(torch: ModuleType) -> ModuleType:
    """``moshi.models``, computing with plain torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_TORCH_COMPILE", "1")
        patch.setenv("NO_CUDA_GRAPH", "1")
        pytest.importorskip("moshi.models", reason="pip install --no-deps moshi einops")
    return importlib.import_module("moshi.models")


def randomize(module: Any, seed: int) -> None:
    """Weights of a size that keeps signals alive and makes every part of the network matter."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not tensor.dtype.is_floating_point or "nitialized" in name or "inv_freq" in name:
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if "usage" in name:
            tensor.data.copy_(0.5 + noise.abs())
        elif "embed" in name and "sum" in name:
            tensor.data.copy_(noise)
        elif "norm" in name and ("alpha" in name or "weight" in name):
            tensor.data.copy_(1 + 0.1 * noise)
        elif "scale" in name:
            tensor.data.copy_(0.3 + 0.3 * noise.abs())
        elif tensor.dim() == 1:
            tensor.data.copy_(0.05 * noise)
        else:
            tensor.data.copy_(noise * 1.3 / tensor[0].numel() ** 0.5)


@dataclass(frozen=True, slots=True)
class Pair:
    """The same network twice: the reference's, and ours with its weights."""

    theirs: Any
    ours: Any


@dataclass(frozen=True, slots=True)
class Settings:
    """What the random checkpoints' configurations say."""

    language: dict[str, Any]
    mimi: dict[str, Any]


@pytest.fixture(scope="session")
def language_settings() -> Settings:
    return Settings(LANGUAGE, MIMI)


MakeLanguage = Callable[..., Pair]


@pytest.fixture(scope="session")
def make_language(reference: ModuleType, torch: ModuleType) -> MakeLanguage:
    """A language model with random weights; keywords replace what LANGUAGE says."""
    from moshi.models.lm import LMModel

    from duologue.models.moshi.kyutai_layout import (
        LanguageSettings,
        language_config,
        language_tensors,
    )
    from duologue.models.moshi.language_model import LanguageModel

    def make(seed: int = 0, **changes: object) -> Pair:
        settings = {**LANGUAGE, **changes}
        theirs = LMModel(**settings, dtype=torch.float32).eval().requires_grad_(False)
        randomize(theirs, seed)
        config = language_config(msgspec.convert(settings, LanguageSettings))
        ours = LanguageModel(config)
        ours.load_state_dict(language_tensors(theirs.state_dict(), config))
        return Pair(theirs, ours)

    return make


@pytest.fixture(scope="session")
def language(make_language: MakeLanguage) -> Pair:
    return make_language()


@pytest.fixture(scope="session")
def mimi(reference: ModuleType) -> Pair:
    """A codec with random weights, its rings as Kyutai's."""
    from dataclasses import replace

    from moshi.models.loaders import get_mimi

    from duologue.models.moshi.kyutai_layout import MimiSettings, mimi_config, mimi_tensors
    from duologue.models.moshi.mimi import Mimi

    theirs = get_mimi(None, MIMI, num_codebooks=4).requires_grad_(False)
    randomize(theirs, 1)
    config = mimi_config(msgspec.convert(MIMI, MimiSettings))
    ours = Mimi(replace(config, extra_keys=0))
    ours.load_state_dict(mimi_tensors(theirs.state_dict()))
    return Pair(theirs, ours)


@pytest.fixture(scope="session")
def hub_mimi(torch: ModuleType) -> Pair:
    """A codec with random weights in transformers' layout."""
    transformers: Any = pytest.importorskip("transformers", reason="pip install transformers")

    from duologue.models.moshi.mimi import Mimi
    from duologue.models.moshi.transformers_layout import MimiSettings, mimi_config, mimi_tensors

    settings = transformers.MimiConfig(
        sampling_rate=600,
        hidden_size=32,
        num_filters=4,
        upsampling_ratios=[4, 3, 2],
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        intermediate_size=48,
        codebook_size=32,
        codebook_dim=16,
        vector_quantization_hidden_dimension=16,
        num_quantizers=6,
        upsample_groups=32,
        sliding_window=10,
    )
    theirs = transformers.MimiModel(settings).eval().requires_grad_(False)
    randomize(theirs, 2)
    config = mimi_config(msgspec.convert(settings.to_dict(), MimiSettings))
    ours = Mimi(config)
    ours.load_state_dict(mimi_tensors(theirs.state_dict(), config))
    return Pair(theirs, ours)


@pytest.fixture(scope="session")
def hub_moshi(torch: ModuleType) -> Any:
    """A Moshi with random weights in transformers' layout, and nothing of ours."""
    transformers: Any = pytest.importorskip("transformers", reason="pip install transformers")
    codec = {
        "sampling_rate": 600,
        "hidden_size": 32,
        "num_filters": 4,
        "upsampling_ratios": [4, 3, 2],
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 8,
        "intermediate_size": 48,
        "codebook_size": 32,
        "codebook_dim": 16,
        "vector_quantization_hidden_dimension": 16,
        "num_quantizers": 4,
        "upsample_groups": 32,
        "sliding_window": 10,
    }
    depth = {
        "vocab_size": 40,
        "hidden_size": 16,
        "input_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "ffn_dim": 66,
        "audio_vocab_size": 32,
        "num_codebooks": 4,
    }
    model = transformers.MoshiForConditionalGeneration(
        transformers.MoshiConfig(
            vocab_size=40,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            audio_vocab_size=32,
            max_position_embeddings=64,
            sliding_window=32,
            ffn_dim=132,
            num_codebooks=4,
            audio_encoder_config=codec,
            depth_decoder_config=depth,
        )
    )
    randomize(model, 4)
    return model.eval().requires_grad_(False)
