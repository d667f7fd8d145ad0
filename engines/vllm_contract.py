"""What the language stage needs of vLLM, and in which words; nothing of vLLM is in here."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol

from duologue.engines.chat_messages import Json


class VllmError(Exception):
    """vLLM refused or failed. ``lost``: its process is gone, and the engine with it."""

    def __init__(self, message: str, lost: bool = False) -> None:
        super().__init__(message)
        self.lost = lost


@dataclass(frozen=True, slots=True)
class Delta:
    """What came at once. ``finish`` is vLLM's word for why it is over, "" while it is not.

    ``cached`` tokens of the prompt's ``prompted`` were there from earlier requests.
    """

    text: str
    tokens: list[int]
    prompted: int
    cached: int
    finish: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """What is wanted after a prompt. ``None`` leaves it to the model's own configuration."""

    most: int
    priority: int
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    schema: Json | None = None


Prompt = Any
"""vLLM's own form of a prompt, with its pictures."""


class Generator(Protocol):
    """What the language stage needs of vLLM."""

    context: int
    block: int
    """Tokens of a prompt that are cached together."""
    sees: bool
    knows_tools: bool

    async def prompt(self, messages: list[Json], tools: list[Json], answering: bool) -> Prompt:
        """The messages by the model's template; `answering`: up to where the assistant speaks.
        Raises VllmError."""

    def tokens(self, prompt: Prompt) -> list[int]:
        """The prompt's tokens, those that stand for pictures among them."""

    def generate(self, request: str, prompt: Prompt, ask: Ask) -> AsyncGenerator[Delta, None]:
        """Raises VllmError."""

    async def abort(self, request: str) -> None:
        """Free what a request holds, at once; nothing happens when it is over."""

    def parser(self, tools: list[Json], choice: str) -> "CallParser | None":
        """What tells calls and thoughts from speech, where the stage names a parser."""

    @property
    def lost(self) -> bool:
        """Whether vLLM's process is gone."""

    def close(self) -> None:
        """End vLLM's processes; blocks. Idempotent."""


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A part of a call: ``name`` comes with the first one."""

    index: int
    name: str
    arguments: str


class CallParser(Protocol):
    """Tells what is said from what is called and what is only thought, in one answer."""

    def push(self, delta: Delta, prompt: list[int], over: bool) -> tuple[str, list[ParsedCall]]:
        """What is said, and what is called. `prompt` are the prompt's tokens; `over`: it is the
        last delta."""
