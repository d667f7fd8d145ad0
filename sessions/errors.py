"""Errors and whose fault they are.

::

    SessionError              ours; the session ends
    ProtocolError             the client's; it is told, the session goes on
        code, param, event_id, retry_after_ms

Every code that is ever sent is in :data:`CODES`. Details of our insides never leave.
"""

from dataclasses import dataclass, replace
from typing import Literal

ErrorType = Literal["invalid_request_error", "server_error", "rate_limit_error"]


@dataclass(frozen=True, slots=True)
class CodeInfo:
    """``type`` as clients know it; ``retryable``: the same request may work later."""

    type: ErrorType
    retryable: bool
    meaning: str


CODES: dict[str, CodeInfo] = {
    "invalid_json": CodeInfo("invalid_request_error", False, "The message is not JSON."),
    "invalid_event": CodeInfo("invalid_request_error", False, "The message is not an event."),
    "unknown_event": CodeInfo("invalid_request_error", False, "No event has this type."),
    "missing_required_parameter": CodeInfo("invalid_request_error", False, "A field is missing."),
    "invalid_type": CodeInfo("invalid_request_error", False, "A field has the wrong type."),
    "invalid_value": CodeInfo("invalid_request_error", False, "A field has a wrong value."),
    "invalid_audio": CodeInfo("invalid_request_error", False, "The audio can't be decoded."),
    "event_too_large": CodeInfo("invalid_request_error", False, "The event is too large."),
    "unknown_parameter": CodeInfo("invalid_request_error", False, "No such field (Live)."),
    "session_not_started": CodeInfo(
        "invalid_request_error", False, "Start the session first (Live)."
    ),
    "session_already_started": CodeInfo(
        "invalid_request_error", False, "The session has started already (Live)."
    ),
    "fixture_active": CodeInfo("invalid_request_error", True, "A fixture is playing (Live)."),
    "delegation_not_found": CodeInfo(
        "invalid_request_error", False, "There is no such delegation (Live)."
    ),
    "unsupported": CodeInfo("invalid_request_error", False, "Not supported by this server."),
    "invalid_sdp": CodeInfo("invalid_request_error", False, "The SDP offer can't be answered."),
    "invalid_event_for_transport": CodeInfo(
        "invalid_request_error", False, "The event has no meaning on this transport."
    ),
    "invalid_event_for_session": CodeInfo(
        "invalid_request_error", False, "The event has no meaning in this kind of session."
    ),
    "input_audio_buffer_commit_empty": CodeInfo(
        "invalid_request_error", False, "There is not enough audio to commit."
    ),
    "input_audio_buffer_full": CodeInfo(
        "invalid_request_error", True, "Commit or clear the input audio buffer first."
    ),
    "item_create_duplicate_item_id": CodeInfo(
        "invalid_request_error", False, "An item has this id already."
    ),
    "item_create_invalid_previous_item_id": CodeInfo(
        "invalid_request_error", False, "There is no such previous item."
    ),
    "item_create_limit_reached": CodeInfo(
        "invalid_request_error", False, "The conversation holds as much as it may."
    ),
    "item_delete_invalid_item_id": CodeInfo("invalid_request_error", False, "No such item."),
    "item_retrieve_invalid_item_id": CodeInfo("invalid_request_error", False, "No such item."),
    "item_truncate_invalid_item_id": CodeInfo("invalid_request_error", False, "No such item."),
    "item_truncate_invalid_audio_end": CodeInfo(
        "invalid_request_error", False, "The item's audio is shorter than that."
    ),
    "cannot_update_voice": CodeInfo(
        "invalid_request_error", False, "The voice is fixed once there was audio."
    ),
    "conversation_already_has_active_response": CodeInfo(
        "invalid_request_error", True, "Wait for the response to be done, or cancel it."
    ),
    "response_cancel_not_active": CodeInfo(
        "invalid_request_error", False, "There is no such active response."
    ),
    "bad_response_create": CodeInfo("invalid_request_error", False, "The response can't be made."),
    "context_too_long": CodeInfo(
        "invalid_request_error", False, "The conversation is longer than the model's context."
    ),
    "upstream_error": CodeInfo("server_error", True, "The model's own server failed."),
    "engine_unavailable": CodeInfo("server_error", True, "The model is starting or restarting."),
    "engine_overloaded": CodeInfo("server_error", True, "The model has too much to do."),
    "engine_error": CodeInfo("server_error", True, "The model failed on this request."),
    "internal_error": CodeInfo("server_error", True, "The server failed."),
    "session_expired": CodeInfo("invalid_request_error", False, "The session's time is over."),
    "session_idle": CodeInfo("invalid_request_error", False, "The session was idle too long."),
    "rate_limit_exceeded": CodeInfo("rate_limit_error", True, "Too many events a second."),
}


# Not frozen: whatever passes an exception on may set its traceback.
@dataclass(slots=True, unsafe_hash=True)
class ProtocolError(Exception):
    """A client's mistake, or a failure that a client is told of; the session goes on."""

    code: str
    message: str
    param: str | None = None
    event_id: str | None = None
    retry_after_ms: int | None = None

    @property
    def type(self) -> ErrorType:
        return CODES[self.code].type

    def answering(self, event_id: str | None) -> "ProtocolError":
        """The same error as the answer to a client's event."""
        return replace(self, event_id=event_id)


class SessionError(Exception):
    """The server's own failure; it ends the session."""
