"""Text to tokens, and tokens back to text one at a time."""

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_BYTE = re.compile(r"^<0x([0-9A-F]{2})>$")
_WORD_START = "▁"


@dataclass(frozen=True, slots=True)
class TextTokens:
    """A vocabulary of pieces, as sentencepiece makes them (arXiv:1808.06226)."""

    encode: Callable[[str], list[int]]
    piece: Callable[[int], str]


def load_text_tokens(path: Path) -> TextTokens:
    """A sentencepiece model, or a ``tokenizer.json``."""
    if path.suffix == ".json":
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(path))
        return TextTokens(
            lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids),
            lambda token: tokenizer.id_to_token(token) or "",
        )
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=str(path))
    return TextTokens(processor.encode, processor.id_to_piece)


class TextStream:
    """A session's text, from a token a frame. ``silent`` tokens say nothing: padding."""

    def __init__(self, tokens: TextTokens, silent: frozenset[int]) -> None:
        self._tokens = tokens
        self._silent = silent
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def fork(self) -> "TextStream":
        """One that goes on from here by itself."""
        other = TextStream(self._tokens, self._silent)
        other._decoder.setstate(self._decoder.getstate())
        return other

    def push(self, token: int) -> str:
        """What the token adds, often nothing. Bytes wait until they are a character."""
        if token < 0 or token in self._silent:
            return ""
        piece = self._tokens.piece(token)
        if byte := _BYTE.match(piece):
            return self._decoder.decode(bytes([int(byte[1], 16)]))
        unfinished = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return unfinished + piece.replace(_WORD_START, " ")
