"""Words put into an agent's mouth at the pace of speech: a token a frame, and padding between."""

from collections.abc import Sequence

from duologue.models.moshi.moshi_config import MoshiConfig
from duologue.models.moshi.prompting_frames import ForcedFrame

GENERATE = -2
"""In a column: the model decides. Here it makes the sound of the words."""

FRAMES_A_CHARACTER = 0.85
"""English speech has about 15 characters a second, and Moshi 12.5 frames."""


def word_frames(
    config: MoshiConfig, words: Sequence[tuple[str, Sequence[int]]]
) -> list[ForcedFrame]:
    """The frames that say ``words``, each with its tokens.

    In the model's own text a word's tokens follow each other, padding lasts until the word is
    said, and the frame before the next word has the token for the padding's end (Défossez et al.
    2024, arXiv:2410.00037, section 3.4.4).
    """
    frames: list[ForcedFrame] = []
    for word, tokens in words:
        if not tokens:
            continue
        lasts = max(len(tokens) + 1, round(FRAMES_A_CHARACTER * len(word)))
        padding = [config.text_padding] * (lasts - len(tokens) - 1)
        row = [*tokens, *padding, config.text_end_padding]
        frames += [_frame(config, token) for token in row]
    if frames:
        # Nothing follows the last word.
        frames[-1] = _frame(config, config.text_padding)
    return frames


def _frame(config: MoshiConfig, text: int) -> ForcedFrame:
    return ForcedFrame((text, *[GENERATE] * config.agent_codebooks))
