"""Client events: every one is read, and nothing but a ProtocolError comes of a bad one."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from duologue.realtime.item_wire import MAX_AUDIO_BYTES
from duologue.realtime.wire import CLIENT_EVENTS, LONGEST_EVENT, Decoder
from duologue.sessions import events
from duologue.sessions.errors import CODES, ProtocolError
from duologue.sessions.events import Rejected
from duologue.sessions.ports import AudioBytes, Incoming
from duologue.sessions.session_config import AudioFormat, SessionConfig

Json = dict[str, Any]


def decode(event: object, config: SessionConfig | None = None) -> Incoming:
    return Decoder(config or SessionConfig()).decode(json.dumps(event))


def refused(event: object, config: SessionConfig | None = None) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode(event, config)
    return caught.value


def append(audio: bytes | str, **fields: object) -> str:
    text = audio if isinstance(audio, str) else base64.b64encode(audio).decode()
    return json.dumps({"type": "input_audio_buffer.append", "audio": text, **fields})


def test_every_client_event_has_an_example(whole_events: list[Json]) -> None:
    assert {event["type"] for event in whole_events} == set(CLIENT_EVENTS)
    assert len(CLIENT_EVENTS) == 11


def test_every_example_is_read(whole_events: list[Json]) -> None:
    for event in whole_events:
        kind = event.get("session", {}).get("type", "realtime")
        incoming = decode({**event, "event_id": "mine"}, SessionConfig(kind=kind))
        assert not isinstance(incoming, Rejected)
        assert incoming.event_id == "mine"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("input_audio_buffer.clear", events.ClearAudio("e")),
        ("input_audio_buffer.commit", events.CommitAudio("e")),
        ("output_audio_buffer.clear", events.ClearOutput("e")),
        ("response.cancel", events.CancelResponse("e", None)),
        ("response.create", events.CreateResponse("e", events.ResponseParams())),
    ],
)
def test_an_event_may_have_its_type_and_no_more(kind: str, expected: Incoming) -> None:
    assert decode({"type": kind, "event_id": "e"}) == expected


def test_a_truncation_says_where() -> None:
    event = {
        "type": "conversation.item.truncate",
        "item_id": "i",
        "content_index": 0,
        "audio_end_ms": 1500.0,
    }
    assert decode(event) == events.TruncateItem(None, "i", 0, 1500)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid_json"),
        ("{", "invalid_json"),
        ("\ud800", "invalid_json"),
        ('{"type": "\\ud800"}', "invalid_json"),
        ('{"a": 1e999}', "invalid_json"),
        ("[" * 100_000, "invalid_json"),
        ("{} {}", "invalid_json"),
        ("[]", "invalid_event"),
        ('"session.update"', "invalid_event"),
        ("null", "invalid_event"),
        ("{}", "missing_required_parameter"),
        ('{"type": null}', "missing_required_parameter"),
        ('{"type": 7}', "invalid_type"),
        ('{"type": "session.updated"}', "unknown_event"),
        ('{"type": "response.create", "event_id": 7}', "invalid_type"),
        ('{"type": "response.create", "response": []}', "invalid_type"),
    ],
)
def test_what_is_no_event_gets_its_code(text: str, code: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        Decoder(SessionConfig()).decode(text)
    assert caught.value.code == code


def test_an_error_names_the_event_it_answers() -> None:
    assert refused({"type": "nothing", "event_id": "e1"}).event_id == "e1"
    assert refused({"type": "conversation.item.delete", "event_id": "e2"}).event_id == "e2"
    with pytest.raises(ProtocolError) as caught:
        Decoder(SessionConfig()).decode(append(b"abc", event_id="e3"))
    assert caught.value.event_id == "e3"


def test_an_error_about_a_response_says_that_it_is_about_one() -> None:
    # openai-agents waits for a response until an error names its event, or this one by its type.
    assert "response.create" in refused({"type": "response.create", "response": 7}).message


def test_an_error_names_the_field() -> None:
    error = refused({"type": "conversation.item.retrieve", "item_id": 3})
    assert (error.code, error.param) == ("invalid_type", "item_id")


# -- audio ----------------------------------------------------------------------------------


def audio_of(text: str, config: SessionConfig | None = None) -> AudioBytes:
    incoming = Decoder(config or SessionConfig()).decode(text)
    assert isinstance(incoming, AudioBytes)
    return incoming


@pytest.mark.parametrize("size", [0, 2, 4, 960, 4800])
def test_audio_comes_through_as_it_was_sent(size: int) -> None:
    pcm = bytes(range(256)) * 19
    incoming = audio_of(append(pcm[:size], event_id="e"))
    assert (incoming.data, incoming.event_id) == (pcm[:size], "e")


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"input_audio_buffer.append","audio":"\\u0051UJD"}',
        '{"audio":"QUJD", "x":[1,{}], "type":"input_audio_buffer.append"}',
        '{"type":"input_audio_buffer.append","event_id":null,"audio":"QUJD"}',
        '{"\\u0074ype":"input_audio_buffer.append","audio":"QUJD"}',
    ],
)
def test_audio_is_read_however_its_json_is_written(text: str) -> None:
    assert audio_of(text, SessionConfig(input_format=AudioFormat.PCMU)).data == b"ABC"


def test_an_escaped_slash_is_base64_too() -> None:
    assert audio_of(append(b"\xff\xff").replace("/", "\\/")).data == b"\xff\xff"


@pytest.mark.parametrize(
    "bad", ["A", "AA", "AA=", "AAAAA", "A===", "AA AA", "AAA=AAA=", "A-A_", "é"]
)
def test_audio_that_is_not_base64_is_refused(bad: str) -> None:
    error = refused(json.loads(append(bad, event_id="e")))
    assert (error.code, error.param, error.event_id) == ("invalid_audio", "audio", "e")


@pytest.mark.parametrize("value", [7, [], {}, True])
def test_audio_of_the_wrong_type_is_refused(value: object) -> None:
    event = {"type": "input_audio_buffer.append", "audio": value}
    assert refused(event).code == "invalid_type"


def test_audio_has_to_be_there() -> None:
    assert refused({"type": "input_audio_buffer.append"}).code == "missing_required_parameter"


def test_half_a_sample_is_refused_where_a_sample_has_two_bytes() -> None:
    with pytest.raises(ProtocolError) as caught:
        audio_of(append(b"abc"))
    assert caught.value.code == "invalid_audio"
    assert audio_of(append(b"abc"), SessionConfig(input_format=AudioFormat.PCMA)).data == b"abc"


def test_fifteen_mebibytes_of_audio_are_accepted_and_more_are_not() -> None:
    assert len(audio_of(append(bytes(MAX_AUDIO_BYTES))).data) == MAX_AUDIO_BYTES
    with pytest.raises(ProtocolError) as caught:
        audio_of(append(bytes(MAX_AUDIO_BYTES + 2)))
    assert caught.value.code == "event_too_large"


def test_an_event_that_is_too_long_is_not_even_read() -> None:
    with pytest.raises(ProtocolError) as caught:
        Decoder(SessionConfig()).decode(" " * (LONGEST_EVENT + 1))
    assert caught.value.code == "event_too_large"


# -- what an update means for what follows --------------------------------------------------


def update(**session: object) -> str:
    return json.dumps({"type": "session.update", "session": session})


def test_audio_after_a_change_of_format_is_read_in_the_new_one() -> None:
    decoder = Decoder(SessionConfig())
    decoder.decode(update(audio={"input": {"format": {"type": "audio/pcmu"}}}))
    incoming = decoder.decode(append(b"abc"))
    assert isinstance(incoming, AudioBytes)


def test_a_refused_update_changes_nothing() -> None:
    decoder = Decoder(SessionConfig())
    before = decoder.config
    with pytest.raises(ProtocolError):
        decoder.decode(
            update(instructions="new", audio={"input": {"format": {"type": "audio/pcmu"}}}, tools=7)
        )
    assert decoder.config == before


def test_a_second_update_builds_on_the_first() -> None:
    decoder = Decoder(SessionConfig())
    decoder.decode(update(audio={"input": {"transcription": {"model": "m", "language": "de"}}}))
    decoder.decode(update(audio={"input": {"transcription": {"prompt": "names"}}}))
    transcription = decoder.config.transcription
    assert transcription is not None
    assert (transcription.model, transcription.language, transcription.prompt) == (
        "m",
        "de",
        "names",
    )


# -- anything at all ------------------------------------------------------------------------


def survives(text: str) -> None:
    for kind in ("realtime", "transcription"):
        try:
            Decoder(SessionConfig(kind=kind)).decode(text)  # type: ignore[arg-type]
        except ProtocolError as error:
            assert error.code in CODES
            assert error.message


@settings(max_examples=400)
@given(data=st.data())
def test_a_spoilt_event_raises_nothing_but_a_protocol_error(
    client_events: st.SearchStrategy[Json], data: st.DataObject
) -> None:
    survives(json.dumps(data.draw(client_events)))


@settings(max_examples=300)
@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_any_text_raises_nothing_but_a_protocol_error(text: str) -> None:
    survives(text)


@settings(max_examples=300)
@given(data=st.data())
def test_an_event_cut_or_stirred_raises_nothing_but_a_protocol_error(
    whole_events: list[Json], data: st.DataObject
) -> None:
    text = json.dumps(data.draw(st.sampled_from(whole_events)))
    start, end = sorted(
        (data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text))))
    )
    survives(text[:start] + data.draw(st.text(max_size=3)) + text[end:])
