"""Client secrets, models and errors, as the ``openai`` package reads them."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st
from openai.types import Model
from openai.types.realtime import ClientSecretCreateResponse

from duologue.engines.engine import EngineSpec
from duologue.realtime.http_wire import (
    decode_secret_request,
    encode_http_error,
    encode_models,
    encode_protocol_error,
    encode_secret,
    encode_status,
    session_defaults,
)
from duologue.sessions.errors import CODES, ProtocolError
from duologue.sessions.session_config import SessionConfig

SPEC = EngineSpec(
    model="ours", voices=("low", "high"), default_voice="low", context_tokens=4096, sees=True
)
REALTIME = session_defaults(False, SPEC, "Be kind.", None)
LISTENER = session_defaults(True, SPEC, "Be kind.", None)


def request(body: object) -> tuple[int, SessionConfig]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    wanted = decode_secret_request(raw, REALTIME, LISTENER)
    return wanted.seconds, wanted.config


def test_a_session_starts_with_the_servers_own_defaults() -> None:
    assert (REALTIME.model, REALTIME.voice, REALTIME.instructions) == ("ours", "low", "Be kind.")
    assert session_defaults(False, SPEC, "", "high").voice == "high"
    assert LISTENER.kind == "transcription"
    assert LISTENER.transcription is not None and LISTENER.transcription.model == "ours"


def test_a_transcription_session_names_what_writes_down_speech() -> None:
    spec = msgspec.structs.replace(SPEC, recognizer="whisper-tiny.en")
    config = session_defaults(True, spec, "", None)
    assert config.transcription is not None
    assert config.transcription.model == "whisper-tiny.en"
    assert LISTENER.transcription is not None


@pytest.mark.parametrize("body", [b"", b"{}", b'{"session": null}'])
def test_a_secret_may_be_asked_for_without_a_word(body: bytes) -> None:
    assert request(body) == (600, REALTIME)


def test_a_secret_lives_as_long_as_asked_and_has_its_session() -> None:
    seconds, config = request(
        {
            "expires_after": {"anchor": "created_at", "seconds": 30},
            "session": {"type": "realtime", "instructions": "Sing.", "model": "gpt-realtime"},
        }
    )
    assert (seconds, config.instructions, config.model) == (30, "Sing.", "ours")
    assert request({"session": {"type": "transcription"}})[1].kind == "transcription"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b"\xff", "invalid_json"),
        ([], "invalid_type"),
        ({"expires_after": {"seconds": 9}}, "invalid_value"),
        ({"expires_after": {"seconds": 7201}}, "invalid_value"),
        ({"expires_after": {"anchor": "now"}}, "invalid_value"),
        ({"session": {"type": "live"}}, "invalid_value"),
        ({"session": {"tools": [{"type": "mcp"}]}}, "unsupported"),
    ],
)
def test_a_wrong_request_gets_its_code(body: object, code: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        request(body)
    assert caught.value.code == code


@pytest.mark.parametrize("config", [REALTIME, LISTENER], ids=["realtime", "transcription"])
def test_the_reply_is_one_that_openai_knows(config: SessionConfig) -> None:
    reply = json.loads(encode_secret("ek_1", "sess_1", 1_800_000_000, config))
    ClientSecretCreateResponse.model_validate(reply, strict=True)
    assert (reply["value"], reply["session"]["id"]) == ("ek_1", "sess_1")


@settings(max_examples=100)
@given(st.binary(max_size=40))
def test_any_body_raises_nothing_but_a_protocol_error(body: bytes) -> None:
    try:
        request(body)
    except ProtocolError as error:
        assert error.code in CODES


def test_the_models_are_a_list_that_openai_knows() -> None:
    listed = json.loads(encode_models(SPEC, "cascade", "high", 1_700_000_000))
    (model,) = listed["data"]
    Model.model_validate(model, strict=True)
    assert listed["object"] == "list"
    assert model["duologue"]["voices"] == ["low", "high"]
    assert (model["duologue"]["default_voice"], model["duologue"]["sees"]) == ("high", True)


def test_an_error_has_the_shape_that_openai_reads() -> None:
    expected: dict[str, Any] = {
        "message": "No.",
        "type": "authentication_error",
        "param": None,
        "code": "invalid_api_key",
    }
    shown = encode_http_error("No.", "authentication_error", "invalid_api_key")
    assert json.loads(shown) == {"error": expected}
    shown = encode_protocol_error(ProtocolError("invalid_type", "No.", "session.tools"))
    assert json.loads(shown)["error"]["param"] == "session.tools"


def test_a_status_says_how_many_sessions_there_are() -> None:
    assert json.loads(encode_status("ok", 3)) == {"status": "ok", "sessions": 3}
    assert json.loads(encode_status("starting", 0, "why"))["detail"] == "why"
