"""What comes out of llama.cpp, read: text, and the calls of functions in it."""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.engines.engine import ResponseRequest, Usage
from duologue.engines.language import (
    Began,
    CallDelta,
    CallEnded,
    CallStarted,
    Finished,
    Generated,
    LanguageError,
    TextPiece,
    new_call_id,
)
from duologue.models.tool_calls import (
    ArgumentsDelta,
    CallEnded as ParsedEnd,
    CallRejected,
    CallStarted as ParsedStart,
    Speech,
    ToolCallEvent,
    ToolCallParser,
)

log = logging.getLogger(__name__)


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
        self._parser = ToolCallParser(offered)
        self._parallel = request.parallel_tool_calls
        self._ids: dict[int, str] = {}
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
                    self._take(self._parser.push(item))
                case Began():
                    self._began = item
                    self._ready.append(item)
                case Finished():
                    self._take(self._parser.finish())
                    self._ready.append(item)
                case Failed():
                    raise item.error
        return self._ready.popleft()

    def _take(self, events: Sequence[ToolCallEvent]) -> None:
        for event in events:
            match event:
                case Speech():
                    self._ready.append(TextPiece(event.text))
                case ParsedStart():
                    call_id = self._ids[event.index] = new_call_id()
                    self._ready.append(CallStarted(call_id, event.name))
                case ArgumentsDelta():
                    self._ready.append(CallDelta(self._ids[event.index], event.text))
                case ParsedEnd():
                    self._end_call(event)
                    if not self._parallel:
                        return
                case CallRejected():
                    log.info("the model called a function that was not offered")

    def _end_call(self, event: ParsedEnd) -> None:
        if not event.complete:
            log.info("the model broke off in a call of %s", event.name)
        self._ready.append(CallEnded(self._ids[event.index], event.arguments))
        if not self._parallel:
            began = self._began or Began()
            usage = Usage(
                input_tokens=began.input_tokens,
                cached_tokens=began.cached_tokens,
                output_tokens=self._generated,
            )
            self._ready.append(Finished("completed", usage))
