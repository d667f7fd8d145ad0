"""What the cascade asks of a language model, wherever that runs."""

import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal, Protocol

from duologue.engines.engine import EngineFailure, ResponseRequest, Usage
from duologue.engines.fairness import Rank

FinishReason = Literal["completed", "max_output_tokens", "content_filter"]


@dataclass(frozen=True, slots=True)
class Began:
    """The prompt has been read; it comes first, where the model tells."""

    input_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More of what the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    call_id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallDelta:
    call_id: str
    delta: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """`arguments` is all of the call's deltas, one JSON object."""

    call_id: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The last piece."""

    reason: FinishReason
    usage: Usage


Generated = Began | TextPiece | CallStarted | CallDelta | CallEnded | Finished


class LanguageError(Exception):
    """A model could not answer; `failure` says why in words for a client."""

    def __init__(self, failure: EngineFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @classmethod
    def of(cls, code: str, message: str) -> "LanguageError":
        return cls(EngineFailure(code, message))


class LanguageStage(Protocol):
    """A language model for several sessions at once. Requests hold texts and pictures only."""

    @property
    def model(self) -> str:
        """What it is called."""

    @property
    def context_tokens(self) -> int:
        """Bounds prompt and answer together. Known once loaded."""

    @property
    def sees(self) -> bool:
        """Whether it takes pictures."""

    @property
    def remote(self) -> bool:
        """Whether it is somewhere else: it may cost money, or be away for now."""

    async def load(self) -> None:
        """Get ready, off the event loop. Raises what the model's library or files raise."""

    def answer(
        self, session: str, request: ResponseRequest, rank: Callable[[], Rank]
    ) -> AbstractAsyncContextManager[AsyncIterator[Generated]]:
        """The answer as it comes, at the reader's pace; the last piece is :class:`Finished`.

        `rank` says how urgent the next piece is; it is asked on other threads too. Leaving the
        context stops the model at its next step. Iterating raises LanguageError.
        """

    async def warm(self, session: str, request: ResponseRequest) -> None:
        """An answer to the request's beginning will be asked for soon. Never raises for it."""

    def forget(self, session: str) -> None:
        """The session is over."""

    async def aclose(self) -> None:
        """Let go of everything. Idempotent."""


def new_call_id() -> str:
    """An identifier for a function call."""
    return f"call_{secrets.token_hex(12)}"
