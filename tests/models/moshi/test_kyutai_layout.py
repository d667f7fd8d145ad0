"""Kyutai's configurations and names."""

from types import ModuleType
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.kyutai_layout import (
    LanguageSettings,
    MimiSettings,
    UnsupportedCheckpoint,
    gated_width,
    language_config,
    language_tensors,
    mimi_config,
    mimi_tensors,
    settings_7b,
)


def test_the_7b_model_has_its_published_sizes() -> None:
    config = language_config(settings_7b())
    assert (config.n_q, config.agent_codebooks, config.max_delay) == (16, 8, 1)
    assert (config.temporal.d_model, config.temporal.hidden, config.temporal.context) == (
        4096,
        11264,
        3000,
    )
    assert config.depth.hidden == (2816,) * 8


def test_a_gated_layer_has_about_the_weights_of_a_plain_one() -> None:
    assert gated_width(64, 4 * 64) == 168
    assert gated_width(4096, 16896) == 11264


def test_stacked_and_separate_projections_are_the_same(
    torch: ModuleType, language: Any, language_settings: Any
) -> None:
    """Published files stack the steps' projections; newer ones hold them one by one."""
    config = language.ours.config
    tensors = language.theirs.state_dict()
    stacked, parts = {}, dict[str, list[Any]]()
    for name, tensor in tensors.items():
        head, projection, tail = name.partition("_projs.")
        if not projection:
            stacked[name] = tensor
            continue
        suffix = "_weight" if head.endswith(".in") else ".weight"
        parts.setdefault(f"{head}_proj{suffix}", []).append(tensor)
        assert tail.endswith(".weight")
    stacked |= {name: torch.cat(tensors) for name, tensors in parts.items()}
    assert len(stacked) < len(tensors)
    expected, found = language_tensors(tensors, config), language_tensors(stacked, config)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_steps_that_make_the_users_codes_are_left_out(make_language: Any) -> None:
    pair = make_language(dep_q=8)
    config = pair.ours.config
    assert (config.agent_codebooks, config.user_codebooks) == (4, 4)
    assert "linears.7.weight" in pair.theirs.state_dict()
    named = language_tensors(pair.theirs.state_dict(), config)
    assert named.keys() == pair.ours.state_dict().keys()


def test_old_names_of_codebooks_are_known(torch: ModuleType, mimi: Any) -> None:
    old = {
        name.replace("embedding_sum", "embed_avg")
        .replace("cluster_usage", "cluster_size")
        .replace("_initialized", "inited"): tensor
        for name, tensor in mimi.theirs.state_dict().items()
    }
    expected, found = mimi_tensors(mimi.theirs.state_dict()), mimi_tensors(old)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


UNSUPPORTED = {
    "quantized weights": {"quantize": True},
    "LoRA": {"lora": True},
    "cross-attention": {"cross_attention": True},
    "two streams": {"demux_second_stream": True},
    "normalized": {"norm_emb": True},
    "conditions": {"conditioners": {"description": {}}},
    "no depth transformer": {"dep_q": 0},
    "shares its weights": {"depformer_weights_per_step": False},
    "layer scales": {"depformer_layer_scale": 0.1},
    "gelu gating": {"gating": "gelu", "depformer_gating": "silu"},
    "gating in the depth": {"depformer_gating": "gelu"},
    "sin positions": {"positional_embedding": "sin"},
    "positions in the depth": {"depformer_pos_emb": "rope"},
}


@pytest.mark.parametrize("reason", UNSUPPORTED)
def test_what_the_networks_do_not_have_is_refused(reason: str, language_settings: Any) -> None:
    settings = {**language_settings.language, **UNSUPPORTED[reason]}
    with pytest.raises(UnsupportedCheckpoint, match=reason):
        language_config(msgspec.convert(settings, LanguageSettings))


def test_another_codec_is_refused(language_settings: Any) -> None:
    other = language_settings.mimi | {
        "transformer": language_settings.mimi["transformer"] | {"gating": "silu"}
    }
    with pytest.raises(UnsupportedCheckpoint, match="Mimi"):
        mimi_config(msgspec.convert(other, MimiSettings))
