"""Updates of a session, and how it is shown."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from duologue.realtime.json_fields import Fields
from duologue.realtime.server_wire import Encoder
from duologue.realtime.session_wire import decode_patch, encode_session
from duologue.sessions import effects
from duologue.sessions.errors import ProtocolError
from duologue.sessions.session_config import (
    AudioFormat,
    SemanticVad,
    ServerVad,
    SessionConfig,
    TurnPolicy,
)

Json = dict[str, Any]
START = SessionConfig(model="ours", voice="low", instructions="Start.")


def updated(session: Json, config: SessionConfig = START) -> SessionConfig:
    return config.merged(decode_patch(Fields(session, "session"), config))


def refused(session: Json, config: SessionConfig = START) -> tuple[str, str | None]:
    with pytest.raises(ProtocolError) as caught:
        updated(session, config)
    return caught.value.code, caught.value.param


def shown(config: SessionConfig) -> Json:
    session: Json = json.loads(json.dumps(encode_session(config, "sess_1", 1_800_000_000)))
    return session


def listening(**fields: object) -> Json:
    return {"audio": {"input": fields}}


def test_every_field_is_shown_as_it_was_set(full_session: Json) -> None:
    session = shown(updated(full_session))
    expected = json.loads(json.dumps(full_session))
    expected["model"] = "ours"
    expected["audio"]["output"]["voice"] = "voice_1"
    assert session.pop("id") == "sess_1"
    assert session.pop("object") == "realtime.session"
    assert session.pop("expires_at") == 1_800_000_000
    assert session == expected


def test_a_session_shows_itself_whole(validated: Callable[[str], Json]) -> None:
    (text,) = Encoder("sess_1", 1).encode(effects.SessionCreated(START))
    session = validated(text)["session"]
    for name in (
        "id",
        "object",
        "type",
        "model",
        "output_modalities",
        "instructions",
        "tools",
        "tool_choice",
        "max_output_tokens",
        "parallel_tool_calls",
        "prompt",
        "tracing",
        "truncation",
        "expires_at",
        "include",
        "audio",
    ):
        assert name in session
    assert session["max_output_tokens"] == "inf"
    assert session["audio"]["input"]["turn_detection"]["interrupt_response"] is True


def test_an_empty_update_changes_nothing() -> None:
    assert updated({}) == START
    assert updated({"type": "realtime", "audio": {"input": {}, "output": {}}}) == START


def test_only_fields_that_are_there_change() -> None:
    config = updated({"instructions": "New."})
    assert config.instructions == "New."
    assert updated({"instructions": "Start."}, config) == START


def test_empty_values_clear(full_session: Json) -> None:
    config = updated(full_session)
    cleared = updated(
        {
            "instructions": "",
            "tools": [],
            "include": None,
            "tracing": None,
            "max_output_tokens": None,
            "truncation": None,
            "duologue": {"turn_policy": None},
            **listening(turn_detection=None, transcription=None, noise_reduction=None),
        },
        config,
    )
    assert (cleared.instructions, cleared.tools, cleared.include) == ("", (), ())
    assert cleared.turn_detection is None
    assert cleared.transcription is None
    assert cleared.turn_policy is None
    assert shown(cleared)["tracing"] is None
    assert shown(cleared)["audio"]["input"]["noise_reduction"] is None
    assert shown(cleared)["truncation"] == "auto"


@pytest.mark.parametrize(
    "name", ["instructions", "tools", "tool_choice", "output_modalities", "parallel_tool_calls"]
)
def test_null_leaves_alone_what_cannot_be_off(name: str, full_session: Json) -> None:
    config = updated(full_session)
    assert updated({name: None}, config) == config


def test_fields_that_nobody_knows_are_ignored() -> None:
    assert updated({"modalities": ["text"], "temperature": 0.8, "x": {}}) == START


def test_the_model_is_the_sessions_own() -> None:
    assert shown(updated({"model": "gpt-realtime-2.1"}))["model"] == "ours"
    assert refused({"model": 7}) == ("invalid_type", "session.model")


def test_the_same_kind_of_turn_detection_is_merged() -> None:
    config = updated(listening(turn_detection={"type": "server_vad", "threshold": 0.7}))
    config = updated(
        listening(turn_detection={"type": "server_vad", "prefix_padding_ms": 100}), config
    )
    assert config.turn_detection == ServerVad(threshold=0.7, prefix_padding_ms=100)


def test_turn_detection_without_its_kind_keeps_it() -> None:
    config = updated(listening(turn_detection={"type": "semantic_vad"}))
    config = updated(listening(turn_detection={"create_response": False}), config)
    assert config.turn_detection == SemanticVad(create_response=False)


def test_another_kind_of_turn_detection_starts_from_its_defaults() -> None:
    config = updated(listening(turn_detection={"type": "server_vad", "create_response": False}))
    config = updated(
        listening(turn_detection={"type": "semantic_vad", "eagerness": "high"}), config
    )
    assert config.turn_detection == SemanticVad(eagerness="high")


def test_turn_detection_can_be_turned_off_and_on() -> None:
    config = updated(listening(turn_detection=None))
    assert config.turn_detection is None
    assert updated(listening(turn_detection={}), config).turn_detection == ServerVad()


def test_the_idle_time_out_can_be_cleared() -> None:
    config = updated(listening(turn_detection={"idle_timeout_ms": 5000}))
    assert updated(
        listening(turn_detection={"threshold": 0.1}), config
    ).turn_detection == ServerVad(threshold=0.1, idle_timeout_ms=5000)
    config = updated(listening(turn_detection={"idle_timeout_ms": None}), config)
    assert config.turn_detection == ServerVad()


def test_noise_reduction_keeps_its_strength() -> None:
    config = updated(listening(noise_reduction={"type": "near_field"}))
    assert shown(config)["audio"]["input"]["noise_reduction"]["strength"] == 1.0
    config = updated(listening(noise_reduction={"strength": 0.3}), config)
    config = updated(listening(noise_reduction={"type": "far_field"}), config)
    reduction = shown(config)["audio"]["input"]["noise_reduction"]
    assert reduction == {"type": "far_field", "strength": 0.3}


def test_a_field_echoed_without_effect_stays_when_another_is_set() -> None:
    config = updated({"tracing": "auto"})
    config = updated({"prompt": {"id": "p"}}, config)
    assert (shown(config)["tracing"], shown(config)["prompt"]) == ("auto", {"id": "p"})


def test_formats_change_separately() -> None:
    config = updated({"audio": {"output": {"format": {"type": "audio/pcma"}}}})
    assert (config.input_format, config.output_format) == (AudioFormat.PCM, AudioFormat.PCMA)


def test_a_session_may_choose_how_it_yields() -> None:
    config = updated({"duologue": {"turn_policy": "backchannel_aware"}})
    assert config.turn_policy is TurnPolicy.BACKCHANNEL_AWARE
    assert shown(config)["duologue"] == {"turn_policy": "backchannel_aware"}
    assert "duologue" not in shown(START)
    assert refused({"duologue": {"turn_policy": "manual"}})[0] == "invalid_value"


VAD = "session.audio.input.turn_detection"


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"type": "transcription"}, "invalid_value", "session.type"),
        ({"type": "live"}, "invalid_value", "session.type"),
        ({"instructions": 3}, "invalid_type", "session.instructions"),
        ({"tools": {}}, "invalid_type", "session.tools"),
        ({"tools": [{"type": "mcp"}]}, "unsupported", "session.tools[0].type"),
        ({"audio": []}, "invalid_type", "session.audio"),
        ({"max_output_tokens": 5000}, "invalid_value", "session.max_output_tokens"),
        ({"include": ["x"]}, "invalid_value", "session.include[0]"),
        ({"tracing": "on"}, "invalid_value", "session.tracing"),
        ({"tracing": {"group_id": 1}}, "invalid_type", "session.tracing.group_id"),
        ({"reasoning": {"effort": "huge"}}, "invalid_value", "session.reasoning.effort"),
        ({"prompt": {}}, "missing_required_parameter", "session.prompt.id"),
        (
            {"prompt": {"id": "p", "variables": {"a": 1}}},
            "invalid_type",
            "session.prompt.variables.a",
        ),
        ({"truncation": "never"}, "invalid_value", "session.truncation"),
        (
            {"truncation": {"type": "retention_ratio", "retention_ratio": 2}},
            "invalid_value",
            "session.truncation.retention_ratio",
        ),
        ({"audio": {"output": {"speed": 2}}}, "invalid_value", "session.audio.output.speed"),
        (listening(turn_detection=7), "invalid_type", VAD),
        (listening(turn_detection={"type": "none"}), "invalid_value", f"{VAD}.type"),
        (listening(turn_detection={"threshold": "high"}), "invalid_type", f"{VAD}.threshold"),
        (listening(turn_detection={"threshold": 1.1}), "invalid_value", f"{VAD}.threshold"),
        (
            listening(turn_detection={"silence_duration_ms": -1}),
            "invalid_value",
            f"{VAD}.silence_duration_ms",
        ),
        (
            listening(turn_detection={"type": "semantic_vad", "eagerness": "x"}),
            "invalid_value",
            f"{VAD}.eagerness",
        ),
        (
            listening(transcription={"keywords": [1]}),
            "invalid_type",
            "session.audio.input.transcription.keywords[0]",
        ),
        (
            listening(noise_reduction={"type": "none"}),
            "invalid_value",
            "session.audio.input.noise_reduction.type",
        ),
    ],
)
def test_a_wrong_field_is_named(session: Json, code: str, param: str) -> None:
    assert refused(session) == (code, param)


def test_a_prompts_variables_are_texts_images_and_files() -> None:
    variables = {
        "text": "plain",
        "typed": {"type": "input_text", "text": "t"},
        "image": {"type": "input_image", "image_url": "https://x", "detail": "low", "more": 1},
        "file": {"type": "input_file", "file_id": "f"},
    }
    prompt = shown(updated({"prompt": {"id": "p", "variables": variables}}))["prompt"]
    assert prompt["variables"] == {
        "text": "plain",
        "typed": {"type": "input_text", "text": "t"},
        "image": {"type": "input_image", "image_url": "https://x", "detail": "low"},
        "file": {"type": "input_file", "file_id": "f", "detail": "auto"},
    }
    assert refused({"prompt": {"id": "p", "variables": {"a": {"type": "input_text"}}}}) == (
        "missing_required_parameter",
        "session.prompt.variables.a.text",
    )


# -- transcription sessions -----------------------------------------------------------------

LISTENER = SessionConfig(kind="transcription")


def test_a_transcription_session_has_a_shape_of_its_own(validated: Callable[[str], Json]) -> None:
    (text,) = Encoder("sess_1", 1).encode(effects.SessionUpdated(LISTENER))
    session = validated(text)["session"]
    assert session["type"] == "transcription"
    assert set(session["audio"]) == {"input"}
    assert "instructions" not in session


def test_a_transcription_session_takes_its_own_fields_and_ignores_others() -> None:
    config = updated(
        {
            "type": "transcription",
            "instructions": "x",
            "tracing": "auto",
            **listening(transcription={"model": "m"}, turn_detection={"threshold": 0.2}),
        },
        LISTENER,
    )
    assert config.transcription is not None
    assert config.transcription.model == "m"
    assert config.turn_detection == ServerVad(threshold=0.2)
    assert (config.instructions, config.echoed) == ("", {})
    assert refused({"type": "realtime"}, LISTENER) == ("invalid_value", "session.type")


# -- at random ------------------------------------------------------------------------------


@settings(max_examples=300)
@given(data=st.data())
def test_whatever_was_accepted_is_shown_as_openai_knows_it(
    spoilt_sessions: st.SearchStrategy[Json],
    validated: Callable[[str], Json],
    data: st.DataObject,
) -> None:
    session = data.draw(spoilt_sessions)
    for start in (START, LISTENER):
        try:
            config = updated(session, start)
        except ProtocolError:
            continue
        for text in Encoder("s", 1).encode(effects.SessionUpdated(config)):
            validated(text)
        assert shown(updated(shown(config), config)) == shown(config)
