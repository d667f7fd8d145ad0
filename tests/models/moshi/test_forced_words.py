"""Words at the pace of speech."""

import pytest

pytest.importorskip("msgspec")

from duologue.models.moshi.forced_words import GENERATE, word_frames
from duologue.models.moshi.moshi_config import DepthConfig, MoshiConfig, TransformerConfig

CONFIG = MoshiConfig(
    n_q=4,
    agent_codebooks=2,
    card=8,
    text_card=40,
    text_card_out=40,
    delays=(0, 0, 1, 0, 1),
    temporal=TransformerConfig(d_model=8, num_heads=2, num_layers=1, hidden=8, context=4),
    depth=DepthConfig(
        d_model=8, num_heads=2, num_layers=1, hidden=(8, 8), schedule=(0, 1), low_rank=None
    ),
)


def test_a_word_is_its_tokens_then_padding_and_the_mark_before_the_next() -> None:
    frames = word_frames(CONFIG, [("hello", [7, 8]), ("you", [9])])
    assert [frame.column[0] for frame in frames] == [7, 8, 3, 0, 9, 3, 3]
    assert {frame.column[1:] for frame in frames} == {(GENERATE, GENERATE)}
    assert {frame.heard for frame in frames} == {None}


def test_a_long_word_takes_longer() -> None:
    short, long = (len(word_frames(CONFIG, [(word, [7])])) for word in ("a", "extraordinary"))
    assert short == 2
    assert long == 11


def test_nothing_is_nothing() -> None:
    assert word_frames(CONFIG, []) == []
    assert word_frames(CONFIG, [("…", [])]) == []
