"""A model's text with the calls of functions told apart, as pieces of an answer; pure."""

import logging
from collections.abc import Iterator, Sequence

from duologue.engines.language import (
    CallDelta,
    CallEnded,
    CallStarted,
    Generated,
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


class CallReader:
    """Push text; what comes out is what is said and what is called.

    ``over``: one call was all that was wanted, and it has ended. What follows says nothing.
    """

    def __init__(self, offered: Sequence[str], parallel: bool) -> None:
        """`offered` are the functions that the model was told of; `parallel`: several calls may
        come in one answer."""
        self._parser = ToolCallParser(offered)
        self._parallel = parallel
        self._ids: dict[int, str] = {}
        self.over = False

    def push(self, text: str) -> list[Generated]:
        """More of the text."""
        return list(self._read(self._parser.push(text)))

    def finish(self) -> list[Generated]:
        """The text is over: what was held back."""
        return list(self._read(self._parser.finish()))

    def _read(self, events: Sequence[ToolCallEvent]) -> Iterator[Generated]:
        for event in events:
            if self.over:
                return
            match event:
                case Speech():
                    yield TextPiece(event.text)
                case ParsedStart():
                    call_id = self._ids[event.index] = new_call_id()
                    yield CallStarted(call_id, event.name)
                case ArgumentsDelta():
                    yield CallDelta(self._ids[event.index], event.text)
                case ParsedEnd():
                    if not event.complete:
                        log.info("the model broke off in a call of %s", event.name)
                    yield CallEnded(self._ids[event.index], event.arguments)
                    self.over = not self._parallel
                case CallRejected():
                    log.info("the model called a function that was not offered")
