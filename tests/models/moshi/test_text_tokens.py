"""Text from a token a frame."""

import json
from pathlib import Path
from typing import Any

import pytest

from duologue.models.moshi.text_tokens import TextStream, TextTokens, load_text_tokens

PIECES = ["<unk>", "<s>", "</s>", "<pad>", "▁Hel", "lo", "▁you", "<0xC3>", "<0xA9>", "<0x41>"]


@pytest.fixture
def stream() -> TextStream:
    tokens = TextTokens(lambda text: [PIECES.index(text)], PIECES.__getitem__)
    return TextStream(tokens, silent=frozenset({0, 3}))


def test_pieces_become_text_and_padding_says_nothing(stream: TextStream) -> None:
    said = [stream.push(token) for token in (3, 4, 5, 3, 0, 6)]
    assert said == ["", " Hel", "lo", "", "", " you"]


def test_a_frame_without_a_token_says_nothing(stream: TextStream) -> None:
    assert stream.push(-2) == ""


def test_bytes_wait_until_they_are_a_character(stream: TextStream) -> None:
    assert [stream.push(token) for token in (7, 3, 8)] == ["", "", "é"]
    assert stream.push(9) == "A"


def test_bytes_that_never_become_one_are_marked(stream: TextStream) -> None:
    assert [stream.push(token) for token in (7, 5)] == ["", "\ufffdlo"]


def test_a_tokenizer_of_transformers_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(
        json.dumps(
            {
                "version": "1.0",
                "pre_tokenizer": {
                    "type": "Metaspace",
                    "replacement": "▁",
                    "prepend_scheme": "always",
                    "split": True,
                },
                "model": {
                    "type": "WordLevel",
                    "vocab": {"<unk>": 0, "▁hello": 1, "▁you": 2},
                    "unk_token": "<unk>",
                },
            }
        )
    )
    tokens = load_text_tokens(path)
    assert tokens.encode("hello you") == [1, 2]
    assert tokens.piece(1) == "▁hello"
    assert tokens.piece(99) == ""


def test_a_sentencepiece_model_is_read(tmp_path: Path) -> None:
    sentencepiece: Any = pytest.importorskip(
        "sentencepiece", reason="sentencepiece comes with duologue[moshi]"
    )
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["hello you", "how are you", "hello there"] * 20),
        model_prefix=str(tmp_path / "pieces"),
        vocab_size=16,
        minloglevel=2,
    )
    tokens = load_text_tokens(tmp_path / "pieces.model")
    ids = tokens.encode("hello you")
    assert "".join(tokens.piece(token) for token in ids) == "▁hello▁you"
