"""Prompts as frames of forced tokens."""

from dataclasses import replace

import pytest

from duologue.models.moshi.moshi_config import DepthConfig, MoshiConfig, TransformerConfig
from duologue.models.moshi.prompting_frames import (
    PAUSE_FRAMES,
    SILENCE,
    SINE,
    ForcedFrame,
    PromptCodes,
    prompt_frames,
    wrap_role,
)

CONFIG = MoshiConfig(
    n_q=4,
    agent_codebooks=2,
    card=8,
    text_card=8,
    text_card_out=8,
    delays=(0, 0, 1, 0, 1),
    text_padding=3,
    temporal=TransformerConfig(d_model=8, num_heads=2, num_layers=1, hidden=16, context=4),
    depth=DepthConfig(d_model=8, num_heads=2, num_layers=1, hidden=(8, 8), schedule=(0, 1)),
)
CODES = PromptCodes(silence=(1, 2), user=(5, 6))
PAUSE = [ForcedFrame((3, 1, 2), (5, 6))] * PAUSE_FRAMES


def test_first_the_voice_then_the_role_and_a_pause_after_each() -> None:
    frames = prompt_frames(CONFIG, [[4, 5], [6, 7]], [7, 0], CODES)
    assert frames == [
        ForcedFrame((3, 4, 5), (5, 6)),
        ForcedFrame((3, 6, 7), (5, 6)),
        *PAUSE,
        ForcedFrame((7, 1, 2), (5, 6)),
        ForcedFrame((0, 1, 2), (5, 6)),
        *PAUSE,
    ]


def test_either_part_may_be_missing() -> None:
    assert prompt_frames(CONFIG, [], [], CODES) == []
    assert len(prompt_frames(CONFIG, [], [7], CODES)) == 1 + PAUSE_FRAMES
    assert len(prompt_frames(CONFIG, [[4, 5]], [], CODES)) == 1 + PAUSE_FRAMES


def test_a_frame_has_the_models_number_of_codes() -> None:
    with pytest.raises(ValueError, match="3 codes in a frame of 2"):
        prompt_frames(CONFIG, [[1, 2, 3]], [], CODES)
    with pytest.raises(ValueError, match="1 codes in a frame of 2"):
        prompt_frames(CONFIG, [], [7], replace(CODES, user=(1,)))


def test_the_default_codes_are_of_a_mimi_with_8_codebooks() -> None:
    assert len(SILENCE) == len(SINE) == 8
    assert all(0 <= code < 2048 for code in SILENCE + SINE)


def test_a_role_is_marked_once() -> None:
    assert wrap_role(" You are kind. ") == "<system> You are kind. <system>"
    assert wrap_role("<system> You are kind. <system>") == "<system> You are kind. <system>"
    assert wrap_role("  ") == ""
