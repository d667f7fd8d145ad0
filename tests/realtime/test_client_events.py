"""Server events as values."""

from typing import Any

import pytest

from duologue.realtime.client_events import (
    AssistantText,
    ErrorReceived,
    Interrupted,
    OtherEvent,
    ResponseDone,
    SessionCreated,
    ToolCalled,
    UserTranscript,
    read_event,
)

CASES: list[tuple[dict[str, Any], object]] = [
    (
        {"type": "session.created", "session": {"id": "sess_1", "model": "m"}},
        SessionCreated("sess_1", "m", {"id": "sess_1", "model": "m"}),
    ),
    (
        {
            "type": "conversation.item.input_audio_transcription.completed",
            "item_id": "i",
            "transcript": "hello",
        },
        UserTranscript("i", "hello", final=True),
    ),
    (
        {"type": "response.output_audio_transcript.delta", "item_id": "i", "delta": "he"},
        AssistantText("i", "he", final=False),
    ),
    (
        {"type": "response.output_text.done", "item_id": "i", "text": "hello"},
        AssistantText("i", "hello", final=True),
    ),
    (
        {
            "type": "response.done",
            "response": {
                "id": "r",
                "status": "failed",
                "status_details": {"error": {"message": "no room"}},
            },
        },
        ResponseDone("r", "failed", "no room"),
    ),
    (
        {
            "type": "response.done",
            "response": {
                "id": "r",
                "status": "cancelled",
                "status_details": {"reason": "turn_detected"},
            },
        },
        ResponseDone("r", "cancelled", "turn_detected"),
    ),
    (
        {"type": "conversation.item.truncated", "item_id": "i", "audio_end_ms": 120},
        Interrupted("i", 120),
    ),
    (
        {
            "type": "response.function_call_arguments.done",
            "call_id": "c",
            "name": "f",
            "arguments": "{}",
        },
        ToolCalled("c", "f", "{}"),
    ),
    (
        {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}},
        ErrorReceived("invalid_request_error", "no"),
    ),
]


@pytest.mark.parametrize(("event", "value"), CASES)
def test_an_event_becomes_a_value(event: dict[str, Any], value: object) -> None:
    assert read_event(event) == value


@pytest.mark.parametrize(
    "event",
    [
        {"type": "rate_limits.updated"},
        {"type": "response.done"},
        {"type": "error", "error": None},
        {"type": 7},
        {},
    ],
)
def test_what_is_unknown_or_broken_is_passed_on_as_it_is(event: dict[str, Any]) -> None:
    assert read_event(event) == OtherEvent(str(event.get("type", "")), event)
