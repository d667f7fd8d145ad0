"""What is said to a model before the conversation: its voice and its role, as forced frames.

PersonaPlex (NVIDIA 2026) is prompted through the same step that talks: first the agent's stream
is forced to a recording of the voice, then its text to the role, with half a second of silence
after each. Meanwhile the user's stream holds a sine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from duologue.models.moshi.moshi_config import MoshiConfig

SILENCE = (948, 243, 1178, 546, 1736, 1030, 1978, 2008)
"""Codes of silence, in Kyutai's Mimi."""

SINE = (430, 1268, 381, 1611, 1095, 1495, 56, 472)
"""Codes of the tone that stands in for the user during a prompt."""

PAUSE_FRAMES = 6
"""Half a second at 12.5 frames a second, rounded down."""

_MARK = "<system>"


@dataclass(frozen=True, slots=True)
class ForcedFrame:
    """One step's given tokens. ``column``: text and the agent's codes, -2 where the model
    decides. ``heard``: the user's codes, or ``None`` where the user is listened to."""

    column: tuple[int, ...]
    heard: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PromptCodes:
    """Codes that a prompt is filled up with: the agent's silence, and the user's stream."""

    silence: tuple[int, ...] = SILENCE
    user: tuple[int, ...] = SINE


def wrap_role(text: str) -> str:
    """A role as the model was trained on it; empty stays empty."""
    text = text.strip()
    if not text or (text.startswith(_MARK) and text.endswith(_MARK)):
        return text
    return f"{_MARK} {text} {_MARK}"


def prompt_frames(
    config: MoshiConfig,
    voice: Sequence[Sequence[int]],
    role: Sequence[int],
    codes: PromptCodes,
) -> list[ForcedFrame]:
    """The frames of a prompt. ``voice``: frames of the agent's codes, ``[frames][codes]``.
    ``role``: text tokens. Either may be empty; so is the result if both are.

    Raises :exc:`ValueError` where a frame has not the model's number of codes.
    """
    for frame, count in (
        *((frame, config.agent_codebooks) for frame in (*voice, codes.silence)),
        (codes.user, config.user_codebooks),
    ):
        if len(frame) != count:
            raise ValueError(f"{len(frame)} codes in a frame of {count}")
    padding, user = config.text_padding, tuple(codes.user)
    pause = [ForcedFrame((padding, *codes.silence), user)] * PAUSE_FRAMES
    frames: list[ForcedFrame] = []
    if voice:
        frames += [ForcedFrame((padding, *frame), user) for frame in voice]
        frames += pause
    if role:
        frames += [ForcedFrame((token, *codes.silence), user) for token in role]
        frames += pause
    return frames
