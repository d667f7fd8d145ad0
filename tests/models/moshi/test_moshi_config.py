"""Sizes that make sense, and those that do not."""

from dataclasses import replace

import pytest

from duologue.models.moshi.moshi_config import (
    GREEDY,
    DepthConfig,
    MimiConfig,
    MoshiConfig,
    SamplingChoice,
    SeanetConfig,
    TransformerConfig,
)

TEMPORAL = TransformerConfig(d_model=8, num_heads=2, num_layers=1, hidden=16, context=4)
DEPTH = DepthConfig(d_model=8, num_heads=2, num_layers=1, hidden=(8, 8), schedule=(0, 1))
MOSHI = MoshiConfig(
    n_q=4,
    agent_codebooks=2,
    card=8,
    text_card=8,
    text_card_out=8,
    delays=(0, 0, 1, 0, 1),
    temporal=TEMPORAL,
    depth=DEPTH,
)


def test_mimi_has_80_ms_frames_at_24_khz() -> None:
    config = MimiConfig()
    assert (config.frame_samples, config.frame_rate) == (1920, 12.5)


def test_half_the_codebooks_may_be_the_users() -> None:
    assert (MOSHI.user_codebooks, MOSHI.max_delay) == (2, 1)


def test_channels_split_into_heads() -> None:
    with pytest.raises(ValueError, match="3 heads"):
        replace(TEMPORAL, num_heads=3)
    with pytest.raises(ValueError, match="2 heads"):
        replace(TEMPORAL, kv_repeat=3)
    with pytest.raises(ValueError, match="context"):
        replace(TEMPORAL, context=0)


def test_every_set_of_weights_has_a_width() -> None:
    with pytest.raises(ValueError, match="2 widths for 3 sets"):
        replace(DEPTH, schedule=(0, 2))


def test_every_stream_has_a_delay_and_every_code_a_step() -> None:
    with pytest.raises(ValueError, match="3 delays for 5 streams"):
        replace(MOSHI, delays=(0, 0, 1))
    with pytest.raises(ValueError, match="5 of 4"):
        replace(MOSHI, agent_codebooks=5)
    with pytest.raises(ValueError, match="one step"):
        replace(MOSHI, agent_codebooks=3)


def test_mimis_transformers_are_as_wide_as_its_latents() -> None:
    with pytest.raises(ValueError, match="as wide"):
        MimiConfig(seanet=SeanetConfig(dimension=8))


def test_greedy_is_temperature_zero() -> None:
    assert GREEDY.text_temperature == GREEDY.audio_temperature == 0
    with pytest.raises(ValueError, match="temperature"):
        SamplingChoice(text_temperature=-1)
    with pytest.raises(ValueError, match="fewer than 0"):
        SamplingChoice(audio_top_k=-1)
