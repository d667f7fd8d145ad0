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

from tests import random_moshi

Tensor = Any

LANGUAGE: dict[str, Any] = random_moshi.LANGUAGE | {"text_card": 40, "context": 8}
"""A Moshi of 4 + 4 codebooks whose window is 8 frames."""

MIMI: dict[str, Any] = random_moshi.MIMI | {
    "sample_rate": 600,
    "seanet": random_moshi.MIMI["seanet"] | {"n_filters": 4, "ratios": [4, 3, 2]},
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
    """As :func:`random_moshi.randomize`, with scales of layers that matter, too."""
    random_moshi.randomize(module, seed, scales=True)


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
