"""The JSON of the HTTP routes beside the protocol: errors, models, client secrets.

Source: ``openai.types.realtime.client_secret_create_response``, ``openai.types.model``, and the
error body that the ``openai`` package reads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from duologue.engines.engine import EngineSpec
from duologue.realtime.json_fields import Fields, Json
from duologue.realtime.session_wire import decode_patch, encode_session
from duologue.sessions.errors import ProtocolError
from duologue.sessions.session_config import SessionConfig, Transcription

LEAST_SECRET_SECONDS: Final = 10
MOST_SECRET_SECONDS: Final = 7_200
DEFAULT_SECRET_SECONDS: Final = 600
LARGEST_BODY: Final = 1024 * 1024
"""Bytes of a request's body."""

HttpErrorType = Literal["invalid_request_error", "authentication_error", "server_error"]


@dataclass(frozen=True, slots=True)
class SecretRequest:
    """``seconds`` until the secret expires; ``config``: what its sessions start with."""

    seconds: int
    config: SessionConfig


def session_defaults(
    transcription: bool, spec: EngineSpec, instructions: str, voice: str | None
) -> SessionConfig:
    """What a session is before its client has said anything."""
    if transcription:
        recognizer = Transcription(model=spec.recognizer or spec.model)
        return SessionConfig(kind="transcription", model=spec.model, transcription=recognizer)
    return SessionConfig(
        model=spec.model, instructions=instructions, voice=voice or spec.default_voice
    )


def decode_secret_request(
    body: bytes, realtime: SessionConfig, transcription: SessionConfig
) -> SecretRequest:
    """The body of ``POST /v1/realtime/client_secrets``, over the defaults of either kind.

    Raises ProtocolError.
    """
    try:
        message: Json = msgspec.json.decode(body or b"{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProtocolError("invalid_json", "The body is not JSON.") from None
    request = Fields(message)
    seconds = DEFAULT_SECRET_SECONDS
    expires_after = request.object("expires_after")
    if expires_after is not None:
        expires_after.choice("anchor", ("created_at",))
        given = expires_after.integer("seconds", LEAST_SECRET_SECONDS, MOST_SECRET_SECONDS)
        seconds = DEFAULT_SECRET_SECONDS if given is None else given
    session = request.object("session")
    if session is None:
        return SecretRequest(seconds, realtime)
    return SecretRequest(seconds, _session_config(session, realtime, transcription))


def _session_config(
    session: Fields, realtime: SessionConfig, transcription: SessionConfig
) -> SessionConfig:
    kind = session.choice("type", ("realtime", "transcription"))
    config = transcription if kind == "transcription" else realtime
    return config.merged(decode_patch(session, config))


def decode_call_session(
    text: str, base: SessionConfig, transcription: SessionConfig
) -> SessionConfig:
    """The ``session`` that came with an offer, over what its sender starts with.

    Raises ProtocolError.
    """
    try:
        message: Json = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise ProtocolError("invalid_json", "The session is not JSON.", "session") from None
    if not isinstance(message, dict):
        raise ProtocolError("invalid_type", "The session is a JSON object.", "session")
    return _session_config(Fields(message, "session"), base, transcription)


def encode_secret(value: str, session_id: str, expires_at: int, config: SessionConfig) -> bytes:
    """The reply: the secret and the configuration of its sessions."""
    session = encode_session(config, session_id, expires_at)
    return msgspec.json.encode({"value": value, "expires_at": expires_at, "session": session})


def encode_http_error(
    message: str, error_type: HttpErrorType, code: str, param: str | None = None
) -> bytes:
    error = {"message": message, "type": error_type, "param": param, "code": code}
    return msgspec.json.encode({"error": error})


def encode_protocol_error(error: ProtocolError) -> bytes:
    shown = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    return msgspec.json.encode({"error": shown})


def encode_models(spec: EngineSpec, kind: str, voice: str, created: int) -> bytes:
    """``GET /v1/models``: one model, and under ``duologue`` what a page needs to know of it."""
    model = {
        "id": spec.model,
        "object": "model",
        "created": created,
        "owned_by": "duologue",
        "duologue": {
            "kind": kind,
            "voices": list(spec.voices),
            "default_voice": voice,
            "sees": spec.sees,
            "context_tokens": spec.context_tokens,
            "description": spec.description,
        },
    }
    return msgspec.json.encode({"object": "list", "data": [model]})


class IceServer(msgspec.Struct, frozen=True, omit_defaults=True):
    """As ``RTCIceServer`` of a browser has it."""

    urls: str
    username: str | None = None
    credential: str | None = None


def encode_ice_servers(servers: Sequence[IceServer]) -> bytes:
    """``GET /v1/realtime/ice_servers``."""
    return msgspec.json.encode({"ice_servers": servers})


def encode_status(status: str, sessions: int, detail: str | None = None) -> bytes:
    """``/health`` and ``/ready``."""
    shown: dict[str, object] = {"status": status, "sessions": sessions}
    if detail is not None:
        shown["detail"] = detail
    return msgspec.json.encode(shown)
