"""What a client hears of a conversation, as values instead of JSON.

Names are those of OpenAI's Realtime API (``openai.types.realtime``); what has no type here arrives
as :class:`OtherEvent` with all its fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SessionCreated:
    """``session``: the session as the server tells it."""

    session_id: str
    model: str
    session: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    """The user is heard speaking. ``audio_start_ms``: in the sound that was sent."""

    item_id: str
    audio_start_ms: int


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    item_id: str
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class UserTranscript:
    """What the user said; ``final``: all of it, else what is new of it."""

    item_id: str
    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class ResponseCreated:
    response_id: str


@dataclass(frozen=True, slots=True)
class AssistantText:
    """What the assistant says; ``final``: all of the item's text, else what is new of it."""

    item_id: str
    text: str
    final: bool


@dataclass(frozen=True, slots=True)
class ResponseDone:
    """``status``: ``completed``, ``cancelled``, ``incomplete`` or ``failed``; ``reason``: the
    server's word for why, or its message where it failed."""

    response_id: str
    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The assistant's item was cut. ``audio_end_ms``: how much of it was heard."""

    item_id: str
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """``arguments``: the JSON text that the model wrote."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ErrorReceived:
    """``event_id``: of the client's event that is at fault, where it had one."""

    code: str
    message: str
    event_id: str = ""


@dataclass(frozen=True, slots=True)
class OtherEvent:
    type: str
    fields: Mapping[str, Any]


ConversationEvent = (
    SessionCreated
    | SpeechStarted
    | SpeechStopped
    | UserTranscript
    | ResponseCreated
    | AssistantText
    | ResponseDone
    | Interrupted
    | ToolCalled
    | ErrorReceived
    | OtherEvent
)

_AUDIO_TRANSCRIPT = "response.output_audio_transcript"
_OUTPUT_TEXT = "response.output_text"
_INPUT_TRANSCRIPT = "conversation.item.input_audio_transcription"


def read_event(event: Event) -> ConversationEvent:
    """A server event as a value. What lacks the fields of its type is an :class:`OtherEvent`."""
    try:
        return _read(event)
    except (KeyError, TypeError, AttributeError):
        return OtherEvent(str(event.get("type", "")), event)


def _read(event: Event) -> ConversationEvent:
    match event["type"]:
        case "session.created":
            session = event["session"]
            return SessionCreated(session["id"], session.get("model") or "", session)
        case "input_audio_buffer.speech_started":
            return SpeechStarted(event["item_id"], event["audio_start_ms"])
        case "input_audio_buffer.speech_stopped":
            return SpeechStopped(event["item_id"], event["audio_end_ms"])
        case kind if kind == f"{_INPUT_TRANSCRIPT}.delta":
            return UserTranscript(event["item_id"], event["delta"], final=False)
        case kind if kind == f"{_INPUT_TRANSCRIPT}.completed":
            return UserTranscript(event["item_id"], event["transcript"], final=True)
        case "response.created":
            return ResponseCreated(event["response"]["id"])
        case kind if kind in (f"{_AUDIO_TRANSCRIPT}.delta", f"{_OUTPUT_TEXT}.delta"):
            return AssistantText(event["item_id"], event["delta"], final=False)
        case kind if kind == f"{_AUDIO_TRANSCRIPT}.done":
            return AssistantText(event["item_id"], event["transcript"], final=True)
        case kind if kind == f"{_OUTPUT_TEXT}.done":
            return AssistantText(event["item_id"], event["text"], final=True)
        case "response.done":
            response = event["response"]
            details = response.get("status_details") or {}
            error = details.get("error") or {}
            reason = error.get("message") or details.get("reason") or ""
            return ResponseDone(response["id"], response["status"], reason)
        case "conversation.item.truncated":
            return Interrupted(event["item_id"], event["audio_end_ms"])
        case "response.function_call_arguments.done":
            return ToolCalled(event["call_id"], event["name"], event["arguments"])
        case "error":
            error = event["error"]
            return ErrorReceived(
                error.get("code") or error["type"], error["message"], error.get("event_id") or ""
            )
        case kind:
            return OtherEvent(str(kind), event)
