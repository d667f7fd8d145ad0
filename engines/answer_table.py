"""What a model in this process is at work on: answers, and prompts that are warmed for the next."""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Final, Generic, TypeVar

import anyio
from anyio.streams.memory import MemoryObjectSendStream

from duologue.engines.engine import ResponseRequest
from duologue.engines.language import Generated, LanguageError
from duologue.engines.llama_output import Item, Pieces

PIECES_AHEAD: Final = 64
"""Pieces of text that the model may be ahead of its reader; then it waits until that caught up."""

Use = TypeVar("Use")


class AnswerTable(Generic[Use]):
    """Which sessions have answers under way, and which a prompt that is being warmed.

    A session's answer ends its warming. ``stop`` is told of each use of the model that is over or
    not wanted any more, perhaps twice.
    """

    def __init__(self, stop: Callable[[Use], None]) -> None:
        self._stop = stop
        self._answering: Counter[str] = Counter()
        self._warming: dict[str, tuple[anyio.CancelScope, Use]] = {}

    def answers(self, session: str) -> bool:
        """Whether an answer of the session is under way."""
        return self._answering[session] > 0

    def forget(self, session: str) -> None:
        """The session is over."""
        self.stop_warming(session)
        del self._answering[session]

    @asynccontextmanager
    async def answering(
        self,
        session: str,
        use: Use,
        make: Callable[[MemoryObjectSendStream[Item]], Coroutine[None, None, None]],
        offered: Sequence[str],
        request: ResponseRequest,
    ) -> AsyncIterator[AsyncIterator[Generated]]:
        """The answer that `make` writes, at its reader's pace; leaving the context ends `make`.

        ``offered`` are the tools that it may call. Iterating raises LanguageError.
        """
        self._answering[session] += 1
        self.stop_warming(session)
        send, receive = anyio.create_memory_object_stream[Item](PIECES_AHEAD)
        failure: LanguageError | None = None
        async with anyio.create_task_group() as group, receive:
            group.start_soon(make, send)
            try:
                yield Pieces(receive, offered, request)
            except LanguageError as error:
                # Raised in here it would leave as a group of exceptions.
                failure = error
            finally:
                self._answering[session] -= 1
                if self._answering[session] <= 0:
                    del self._answering[session]
                self._stop(use)
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    @contextmanager
    def warming(self, session: str, use: Use) -> Iterator[None]:
        """Warm the session's prompt in here, until an answer cancels it."""
        with anyio.CancelScope() as scope:
            self._warming[session] = (scope, use)
            try:
                yield
            finally:
                self._stop(use)
                if self._warming.get(session) == (scope, use):
                    del self._warming[session]

    def stop_warming(self, session: str) -> None:
        warming = self._warming.pop(session, None)
        if warming is not None:
            scope, use = warming
            self._stop(use)
            scope.cancel()
