"""A streamed chat completion, read: server-sent events to pieces of an answer. No I/O.

Servers differ in what they leave out, so little is relied on: calls may come without an index or
an identifier, whole or in parts, and the usage may be missing.
"""

import re
from collections.abc import Iterator

import msgspec

from duologue.engines.chat_messages import Json
from duologue.engines.engine import Usage
from duologue.engines.language import (
    CallDelta,
    CallEnded,
    CallStarted,
    Finished,
    FinishReason,
    Generated,
    LanguageError,
    TextPiece,
    new_call_id,
)

LONGEST_EVENT = 4 * 2**20
"""Bytes of one event; a longer one is taken for nonsense."""

SHOWN_LETTERS = 300

_REASONS: dict[str, FinishReason] = {
    "length": "max_output_tokens",
    "content_filter": "content_filter",
}
_CALL_ID = re.compile(r"[\w-]{1,64}")


class EventLines:
    """Bytes in any pieces to the data of server-sent events (WHATWG HTML, section 9.2).

    Lines end with CR, LF or both, and with nothing else: JSON may hold U+2028.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def push(self, chunk: bytes) -> Iterator[bytes]:
        """The data of the events that are complete. Raises LanguageError for one without end."""
        *lines, self._rest = (self._rest + chunk).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            yield from self._line(line.rstrip(b"\r"))
        if self._size + len(self._rest) > LONGEST_EVENT:
            raise broken("an event without an end")

    def finish(self) -> Iterator[bytes]:
        """What was not closed by an empty line; many servers leave the last one out."""
        yield from self._line(self._rest.rstrip(b"\r"))
        yield from self._line(b"")

    def _line(self, line: bytes) -> Iterator[bytes]:
        if not line:
            if self._data:
                yield b"\n".join(self._data)
            self._data, self._size = [], 0
        elif line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" "))
            self._size += len(line)


class _Call:
    def __init__(self, call_id: str) -> None:
        self.call_id = call_id
        self.name = ""
        self.arguments = ""
        self.started = False


class ChatStream:
    """One completion."""

    def __init__(self) -> None:
        self.done = False
        """The completion said that it is complete; a usage may still follow."""
        self._reason: FinishReason | None = None
        self._usage = Usage()
        self._calls: dict[object, _Call] = {}
        self._current: object = None
        self._pieces = 0

    def take(self, data: bytes) -> list[Generated]:
        """An event's data. Raises LanguageError for an error and for what is no completion."""
        if data.strip() == b"[DONE]":
            self.done = True
            self._reason = self._reason or "completed"
            return []
        try:
            chunk = msgspec.json.decode(data, type=Json)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise broken("an event that is no JSON object") from error
        try:
            return self._read(chunk)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise broken("an event of an unknown form") from error

    def finish(self) -> list[Generated]:
        """The stream is over. Raises LanguageError when the completion was not."""
        if self._reason is None:
            raise broken("a stream that broke off")
        usage = self._usage
        if not usage.output_tokens:
            usage = msgspec.structs.replace(usage, output_tokens=self._pieces)
        return [*self._end_call(), Finished(self._reason, usage)]

    def _read(self, chunk: Json) -> list[Generated]:
        if chunk.get("error"):
            raise upstream(f"The chat endpoint reported: {said_in(chunk)}")
        if chunk.get("usage"):
            self._usage = _usage(chunk["usage"])
        pieces: list[Generated] = []
        for choice in (chunk.get("choices") or [])[:1]:
            delta = choice.get("delta") or choice.get("message") or {}
            text = delta.get("content") or delta.get("refusal")
            if text:
                self._pieces += 1
                pieces += [*self._end_call(), TextPiece(_text(text))]
            for part in delta.get("tool_calls") or []:
                self._pieces += 1
                pieces += self._call(part)
            if choice.get("finish_reason"):
                self._reason = _REASONS.get(choice["finish_reason"], "completed")
                self.done = True
        return pieces

    def _call(self, part: Json) -> list[Generated]:
        function = part.get("function") or {}
        key = self._key(part, function)
        pieces: list[Generated] = []
        call = self._calls.get(key)
        if call is None:
            pieces += self._end_call()
            call = self._calls[key] = _Call(self._call_id(part.get("id")))
            self._current = key
        if call.started is False:
            call.name += function.get("name") or ""
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
        if not call.started and call.name:
            call.started = True
            pieces.append(CallStarted(call.call_id, call.name))
            # What came before the name.
            arguments, call.arguments = call.arguments + arguments, ""
        call.arguments += arguments
        if arguments and call.started:
            pieces.append(CallDelta(call.call_id, arguments))
        return pieces

    def _key(self, part: Json, function: Json) -> object:
        """Which call a part belongs to: by its index; else a new name or identifier begins one."""
        if part.get("index") is not None:
            return part["index"]
        if part.get("id"):
            return part["id"]
        if function.get("name") or self._current is None:
            return f"call {len(self._calls)}"
        return self._current

    def _call_id(self, given: object) -> str:
        taken = {call.call_id for call in self._calls.values()}
        if isinstance(given, str) and _CALL_ID.fullmatch(given) and given not in taken:
            return given
        return new_call_id()

    def _end_call(self) -> list[Generated]:
        call = self._calls.get(self._current)
        self._current = None
        if call is None or not call.started:
            return []
        pieces: list[Generated] = []
        if not call.arguments:
            call.arguments = "{}"
            pieces.append(CallDelta(call.call_id, "{}"))
        return [*pieces, CallEnded(call.call_id, call.arguments)]


def upstream(message: str) -> LanguageError:
    """The endpoint's fault, in words."""
    return LanguageError.of("upstream_error", message)


def broken(what: str) -> LanguageError:
    """The endpoint sent something else than a completion."""
    return upstream(f"The chat endpoint sent {what}.")


def said_in(body: Json) -> str:
    """An error's own words, shortened."""
    error = body.get("error", body)
    words = error.get("message", error) if isinstance(error, dict) else error
    text = " ".join(str(words).split())
    return text if len(text) <= SHOWN_LETTERS else f"{text[:SHOWN_LETTERS]}…"


def _text(content: object) -> str:
    """Some servers send a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    raise TypeError(type(content))


def _usage(usage: Json) -> Usage:
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        input_tokens=int(usage.get("prompt_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        output_tokens=int(usage.get("completion_tokens") or 0),
    )
