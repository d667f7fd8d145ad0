"""What comes out of a model's thread, read: text, and the calls of functions in it."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.engines.call_reader import CallReader
from duologue.engines.engine import ResponseRequest, Usage
from duologue.engines.language import Began, Finished, Generated, LanguageError


@dataclass(frozen=True, slots=True)
class Failed:
    """Instead of the end."""

    error: LanguageError


Item = str | Began | Finished | Failed


class Pieces:
    """The reader's end of an answer: text, with the calls told apart from what is said."""

    def __init__(
        self,
        receive: MemoryObjectReceiveStream[Item],
        offered: Sequence[str],
        request: ResponseRequest,
    ) -> None:
        self._receive = receive
        self._calls = CallReader(offered, request.parallel_tool_calls)
        self._ready: deque[Generated] = deque()
        self._began: Began | None = None
        self._generated = 0

    def __aiter__(self) -> "Pieces":
        return self

    async def __anext__(self) -> Generated:
        while not self._ready:
            try:
                item = await self._receive.receive()
            except anyio.EndOfStream:
                raise StopAsyncIteration from None
            match item:
                case str():
                    self._generated += 1
                    self._take(self._calls.push(item))
                case Began():
                    self._began = item
                    self._ready.append(item)
                case Finished():
                    self._take(self._calls.finish())
                    self._ready.append(item)
                case Failed():
                    raise item.error
        return self._ready.popleft()

    def _take(self, pieces: Sequence[Generated]) -> None:
        over = self._calls.over
        self._ready.extend(pieces)
        if over and pieces:
            began = self._began or Began()
            usage = Usage(
                input_tokens=began.input_tokens,
                cached_tokens=began.cached_tokens,
                output_tokens=self._generated,
            )
            self._ready.append(Finished("completed", usage))
