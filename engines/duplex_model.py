"""A frame-locked model as its backend sees it: slots that step, and what prompts are made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from duologue.engines.duplex import BeginDuplex, DuplexChoice, ForcedKind
from duologue.engines.engine import EngineSpec
from duologue.engines.lockstep import Stepper
from duologue.models.moshi.moshi_config import SamplingChoice
from duologue.models.moshi.prompting_frames import ForcedFrame

Saved = TypeVar("Saved")


class DuplexInvalid(ValueError):
    """The model has no such voice, or can't do what is asked. The text may be shown to a client."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a session is told before it begins. ``name``: prompts of one name are one."""

    frames: Sequence[ForcedFrame] = ()
    name: str | None = None


class FrameText(Protocol):
    """A session's tokens as text, one a frame."""

    def push(self, token: int) -> str: ...

    def fork(self) -> "FrameText":
        """One that goes on from here by itself."""


class DuplexModel(Protocol[Saved]):
    """All calls block and come from one thread."""

    @property
    def spec(self) -> EngineSpec:
        """With ``duplex``."""

    @property
    def stepper(self) -> Stepper[Saved]: ...

    @property
    def sizes(self) -> Sequence[int]:
        """Numbers of sessions whose first tick takes longer than others: what is made for it once
        serves smaller ones too."""

    def choice(self, asked: DuplexChoice, base: SamplingChoice | None = None) -> SamplingChoice:
        """The choice with its gaps filled, from `base` or the model's defaults.

        Raises DuplexInvalid.
        """

    def prompt(self, begin: BeginDuplex) -> Prompt:
        """Raises DuplexInvalid."""

    def forced(self, kind: ForcedKind, text: str) -> Sequence[ForcedFrame]:
        """The frames that put a text into the model. Raises DuplexInvalid."""

    def hush(self, frames: int) -> Sequence[ForcedFrame]:
        """Frames in which it is silent and listens."""

    def text(self) -> FrameText:
        """For a session that begins."""
