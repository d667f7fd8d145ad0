"""Tools, voices, formats and limits, as sessions and responses carry them."""

from typing import Any

import pytest

from duologue.realtime.json_fields import Fields
from duologue.realtime.tool_wire import (
    decode_format,
    decode_max_output_tokens,
    decode_modality,
    decode_tool_choice,
    decode_tools,
    decode_voice,
    encode_format,
    encode_max_output_tokens,
    encode_tool,
    encode_tool_choice,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.session_config import AudioFormat, FunctionTool


def fields(**values: Any) -> Fields:
    return Fields(values, "session")


@pytest.mark.parametrize("form", AudioFormat)
def test_a_format_comes_back_as_it_was(form: AudioFormat) -> None:
    assert decode_format(fields(format=encode_format(form))) is form


def test_pcm_may_leave_out_its_rate_and_its_name() -> None:
    assert decode_format(fields(format={"type": "audio/pcm"})) is AudioFormat.PCM
    assert decode_format(fields(format={"rate": 24000})) is AudioFormat.PCM
    assert decode_format(fields()) is None


def test_pcm_at_another_rate_is_refused() -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_format(fields(format={"type": "audio/pcm", "rate": 16000}))
    assert (caught.value.code, caught.value.param) == ("invalid_value", "session.format.rate")


@pytest.mark.parametrize("form", ["pcm16", {"type": "audio/opus"}, {"type": 3}, []])
def test_another_format_is_refused(form: Any) -> None:
    with pytest.raises(ProtocolError):
        decode_format(fields(format=form))


def test_output_is_audio_or_text_but_not_both() -> None:
    assert decode_modality(fields(output_modalities=["audio"])) == "audio"
    assert decode_modality(fields(output_modalities=["text"])) == "text"
    for wrong in (["text", "audio"], [], ["video"]):
        with pytest.raises(ProtocolError):
            decode_modality(fields(output_modalities=wrong))


def test_a_voice_has_a_name_or_an_id() -> None:
    assert decode_voice(fields(voice="marin")) == "marin"
    assert decode_voice(fields(voice={"id": "voice_1"})) == "voice_1"
    assert decode_voice(fields(voice=None)) is None
    for wrong in ("", 7, {}, {"id": 7}, "x" * 1000):
        with pytest.raises(ProtocolError):
            decode_voice(fields(voice=wrong))


@pytest.mark.parametrize("limit", [1, 4096, None])
def test_a_limit_comes_back_as_it_was(limit: int | None) -> None:
    given = fields(max_output_tokens=encode_max_output_tokens(limit))
    assert decode_max_output_tokens(given) == limit


@pytest.mark.parametrize("limit", [0, 4097, -1, "infinite", True, 1.5, []])
def test_a_limit_is_from_1_to_4096_or_inf(limit: Any) -> None:
    with pytest.raises(ProtocolError):
        decode_max_output_tokens(fields(max_output_tokens=limit))


def test_a_tool_comes_back_as_it_was() -> None:
    tool = {
        "type": "function",
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {}},
    }
    (decoded,) = decode_tools(fields(tools=[tool])) or ()
    assert encode_tool(decoded) == tool


def test_a_tool_needs_only_its_name() -> None:
    assert decode_tools(fields(tools=[{"name": "f"}])) == (FunctionTool("f"),)
    assert decode_tools(fields(tools=[])) == ()
    assert decode_tools(fields()) is None


@pytest.mark.parametrize(
    ("tool", "code", "param"),
    [
        ({"type": "mcp", "server_label": "s"}, "unsupported", "session.tools[0].type"),
        ({"type": "web", "name": "f"}, "invalid_value", "session.tools[0].type"),
        ({"type": "function"}, "missing_required_parameter", "session.tools[0].name"),
        ({"name": ""}, "missing_required_parameter", "session.tools[0].name"),
        ({"name": "f", "parameters": []}, "invalid_type", "session.tools[0].parameters"),
        ({"name": "f", "description": 1}, "invalid_type", "session.tools[0].description"),
        (7, "invalid_type", "session.tools[0]"),
    ],
)
def test_a_wrong_tool_is_named(tool: Any, code: str, param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_tools(fields(tools=[tool]))
    assert (caught.value.code, caught.value.param) == (code, param)


@pytest.mark.parametrize("choice", ["auto", "none", "required", "function:f"])
def test_a_tool_choice_comes_back_as_it_was(choice: str) -> None:
    assert decode_tool_choice(fields(tool_choice=encode_tool_choice(choice))) == choice


@pytest.mark.parametrize(
    ("choice", "code"),
    [
        ("function:f", "invalid_value"),
        (7, "invalid_type"),
        ({"type": "mcp", "server_label": "s"}, "unsupported"),
        ({"type": "function"}, "missing_required_parameter"),
        ({"type": "other", "name": "f"}, "invalid_value"),
    ],
)
def test_a_wrong_tool_choice_is_refused(choice: Any, code: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_tool_choice(fields(tool_choice=choice))
    assert caught.value.code == code
