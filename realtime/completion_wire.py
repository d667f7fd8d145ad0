"""The JSON of chat completions: whole, or in chunks as server-sent events.

Source: ``openai.types.chat`` of the ``openai`` package.
"""

from dataclasses import dataclass

import msgspec

from duologue.engines.engine import ResponseEnded, ToolInvocation, Usage
from duologue.realtime.json_fields import Json


@dataclass(frozen=True, slots=True)
class Naming:
    """What a completion is called. ``created`` is in wall-clock seconds."""

    id: str
    model: str
    created: int


def finish_reason(ended: ResponseEnded, called: bool) -> str:
    """Why an answer that did not fail is over. ``called``: it has tool calls."""
    match ended.reason:
        case "max_output_tokens":
            return "length"
        case "content_filter":
            return "content_filter"
        case _:
            return "tool_calls" if called else "stop"


def encode_completion(
    naming: Naming, text: str, calls: list[ToolInvocation], ended: ResponseEnded
) -> bytes:
    """A whole answer, ``chat.completion``."""
    message: dict[str, Json] = {
        "role": "assistant",
        "content": text if text or not calls else None,
        "refusal": None,
    }
    if calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ]
    choice: dict[str, Json] = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason(ended, bool(calls)),
    }
    return msgspec.json.encode(
        {**_head(naming, "chat.completion"), "choices": [choice], "usage": _usage(ended.usage)}
    )


class Chunks:
    """Encodes the chunks of a stream, ``chat.completion.chunk``, as server-sent events."""

    def __init__(self, naming: Naming, include_usage: bool) -> None:
        self._head = _head(naming, "chat.completion.chunk")
        self._include_usage = include_usage
        self._indices: dict[str, int] = {}

    def first(self) -> bytes:
        return self._delta({"role": "assistant", "content": "", "refusal": None})

    def text(self, text: str) -> bytes:
        return self._delta({"content": text})

    def call_started(self, call_id: str, name: str) -> bytes:
        index = self._indices[call_id] = len(self._indices)
        function: Json = {"name": name, "arguments": ""}
        call: Json = {"index": index, "id": call_id, "type": "function", "function": function}
        return self._delta({"tool_calls": [call]})

    def call_delta(self, call_id: str, delta: str) -> bytes:
        call: Json = {"index": self._indices[call_id], "function": {"arguments": delta}}
        return self._delta({"tool_calls": [call]})

    def last(self, ended: ResponseEnded) -> bytes:
        """The end, the usage if it is wanted, and the mark that nothing follows."""
        events = self._delta({}, finish_reason(ended, bool(self._indices)))
        if self._include_usage:
            usage = {**self._head, "choices": [], "usage": _usage(ended.usage)}
            events += event(msgspec.json.encode(usage))
        return events + event(b"[DONE]")

    def _delta(self, delta: dict[str, Json], finish: str | None = None) -> bytes:
        choice: dict[str, Json] = {
            "index": 0,
            "delta": delta,
            "logprobs": None,
            "finish_reason": finish,
        }
        chunk: dict[str, Json] = {**self._head, "choices": [choice]}
        if self._include_usage:
            chunk["usage"] = None
        return event(msgspec.json.encode(chunk))


def event(data: bytes) -> bytes:
    """A server-sent event of one line."""
    return b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    """What keeps a stream alive and is read by people only."""
    return f": {text}\n\n".encode()


def _head(naming: Naming, kind: str) -> dict[str, Json]:
    return {
        "id": naming.id,
        "object": kind,
        "created": naming.created,
        "model": naming.model,
        "service_tier": None,
        "system_fingerprint": None,
    }


def _usage(usage: Usage) -> Json:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
    }
