"""What a client of ``POST /v1/chat/completions`` is told when it gets no answer, or not its end."""

from dataclasses import dataclass
from typing import Literal

import msgspec

from duologue.engines.engine import EngineFailure
from duologue.sessions.errors import ProtocolError

HttpErrorType = Literal["invalid_request_error", "rate_limit_error", "server_error"]


# Not frozen: whatever passes an exception on may set its traceback.
@dataclass(slots=True, unsafe_hash=True)
class ChatRefusal(Exception):
    """No answer, or none to its end. ``retry_after`` is in seconds."""

    status: int
    type: HttpErrorType
    code: str
    message: str
    param: str | None = None
    retry_after: float | None = None

    @classmethod
    def of(cls, error: ProtocolError) -> "ChatRefusal":
        status = 413 if error.code == "event_too_large" else 400
        code = "unsupported_parameter" if error.code == "unsupported" else error.code
        return cls(status, "invalid_request_error", code, error.message, error.param)

    def encode(self) -> bytes:
        """The error's body, in the shape that the ``openai`` package reads."""
        shown = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": shown})


def refusal_of(failure: EngineFailure | None) -> ChatRefusal:
    """What a failed answer is told as."""
    code = failure.code if failure is not None else "engine_error"
    words = failure.message if failure is not None else "The engine failed on this answer."
    match code:
        case "context_too_long":
            code = "context_length_exceeded"
            return ChatRefusal(400, "invalid_request_error", code, words, "messages")
        case "upstream_error":
            return ChatRefusal(502, "server_error", code, words)
        case "engine_unavailable" | "engine_overloaded":
            return ChatRefusal(503, "server_error", code, words)
        case _:
            return ChatRefusal(500, "server_error", code, words)
