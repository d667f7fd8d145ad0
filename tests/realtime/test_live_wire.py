"""Live's JSON both ways: each event against OpenAI's types, anything against a session."""

import base64
import json
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from openai.types.live import ConnectServerEvent
from openai.types.live.client_event_param import ClientEventParam
from pydantic import TypeAdapter

from duologue.realtime.live_wire import LIVE_CLIENT_EVENTS, LiveDecoder, LiveEncoder
from duologue.sessions import live_events as live
from duologue.sessions.errors import ProtocolError
from duologue.sessions.live_config import (
    ClientDelegation,
    DataChannelRules,
    LiveConfig,
    LiveFormat,
    ResponsesDelegation,
)
from duologue.sessions.session_config import AudioFormat
from tests.live_bench import LiveBench
from tests.realtime.conftest import ANY_JSON, Json, _places, copied

STRICT: TypeAdapter[ConnectServerEvent] = TypeAdapter(ConnectServerEvent)
QUESTION: Json = {"type": "predicate", "instructions": "Is it urgent?", "name": "urgent"}
TOOL: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather",
    "parameters": {"type": "object"},
    "strict": True,
}
BACKEND: Json = {
    "model": "gpt-5.6-luna",
    "instructions": "Be exact.",
    "max_output_tokens": 500,
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "summary": "auto"},
    "service_tier": "flex",
    "text": {"verbosity": "low"},
    "tool_choice": "auto",
    "tools": [TOOL, {"type": "web_search"}],
}
SESSION: Json = {
    "model": "gpt-live-1",
    "instructions": "Be brief.",
    "audio": {
        "format": {"type": "audio/pcm", "rate": 16000},
        "output": {"voice": {"id": "voice_1"}},
    },
    "client": {
        "data_channel": {
            "allowed_client_events": ["session.close"],
            "allowed_server_events": [
                {"type": "session.started"},
                {"type": "response.event", "response_event": "response.completed"},
            ],
        }
    },
    "delegation": {
        "type": "responses",
        "acknowledgement_delay_ms": 100,
        "responses": BACKEND,
    },
    "input": [
        {"role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "user", "content": [{"text": "b"}], "id": "x", "status": "completed"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "c"}]},
    ],
    "safety_identifier": "somebody",
    "store": True,
    "triggers": [
        {
            "type": "decisions",
            "event_type": "session.input_transcript.delta",
            "decisions": {"questions": [QUESTION]},
        }
    ],
    "duologue": {"turn_marks": True},
}
AUDIO = base64.b64encode(bytes(64)).decode()
EVENTS: list[Json] = [
    {"type": "session.start", "session": SESSION},
    {
        "type": "session.update",
        "session": {
            "delegation": {"type": "responses", "responses": {"tools": []}},
            "triggers": [],
        },
    },
    {"type": "session.input_audio.append", "audio": AUDIO},
    {"type": "session.input_audio.mute"},
    {"type": "session.input_audio.unmute"},
    {"type": "session.output_audio.fixture.play", "audio": AUDIO},
    {"type": "session.instructions.append", "content": "Be kind.", "delegation_id": None},
    {"type": "session.thinking.append", "content": "It is late.", "delegation_id": None},
    {"type": "session.commentary.append", "content": "Say hello.", "delegation_id": None},
    {"type": "decision.create", "event_id": "e"},
    {"type": "decision.item.create", "item": {"role": "user", "content": "I am in a hurry."}},
    {"type": "decision.item.delete", "item_id": "item_1"},
    {"type": "response.item.create", "item": {"role": "user", "content": "Hello."}},
    {"type": "response.create"},
    {"type": "session.close"},
]
CONFIG = LiveConfig(model="m", voice="v", delegation=ResponsesDelegation(shown=BACKEND))
USAGE = live.LiveUsage(4, 3, 1)
RESPONSE = {"type": "response.created", "response": {}}
DECISION = {
    "model": "m",
    "answers": [{"type": "predicate", "probability": 0.5, "name": None}],
    "usage": {
        "input_tokens": 1,
        "input_tokens_details": {"cache_write_tokens": 0, "cached_tokens": 0},
        "output_tokens": 1,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 2,
    },
}
ZEROS = np.zeros(960, np.int16)
SAID: list[live.LiveEvent] = [
    live.Started(CONFIG, "e"),
    live.Updated(CONFIG),
    live.Resumed(),
    live.Paused(),
    live.Muted("e"),
    live.Unmuted(),
    live.FixturePlaying("e"),
    live.FixturePlayed(),
    live.ContextAppended("instructions", 1, 2, "e"),
    live.ContextAppended("thinking", 1, 2),
    live.ContextAppended("commentary", 1, 2),
    live.InputTranscript("a", 1, 2),
    live.OutputTranscript("a", 1, 2),
    live.DelegationCreated("dlg_1", "client", 5),
    live.DelegationCreated("dlg_1", "responses", 5, "resp_1"),
    live.DecisionMade(DECISION, "dlg_1"),
    live.DecisionItemCreated({"id": "i", "role": "user", "content": "x"}, "e"),
    live.DecisionItemDeleted("i", "e"),
    live.ResponseTold(RESPONSE, "dlg_1", "e"),
    live.UsageUpdated(USAGE),
    live.Closed("expired", USAGE, CONFIG),
    live.LiveError(ProtocolError("invalid_value", "no", "session.x", "e", 100)),
    live.Info("a", "b"),
    live.OutputAudio(ZEROS, 40, 80),
    live.InputAudio(ZEROS),
]


def encoder(link: Any = "sideband", **options: Any) -> LiveEncoder:
    made = LiveEncoder(link, "socket", **options)
    made.begin("live_1", 1_800_000_000, LiveFormat())
    return made


def decoder(link: Any = "socket") -> LiveDecoder:
    return LiveDecoder(link, CONFIG)


def test_there_is_an_event_of_every_kind_here() -> None:
    assert {type(event) for event in SAID} == set(get_args(live.LiveEvent)) - {live.TurnMarked}
    assert tuple(event["type"] for event in EVENTS) == LIVE_CLIENT_EVENTS


@pytest.mark.parametrize("event", SAID, ids=lambda event: type(event).__name__)
def test_every_event_is_one_of_openais(event: live.LiveEvent) -> None:
    [text] = encoder().encode(event)
    STRICT.validate_json(text)
    message = json.loads(text)
    if not isinstance(event, live.OutputAudio | live.InputAudio):
        assert message["event_id"]


def test_turns_are_marked_with_events_of_our_own() -> None:
    [text] = encoder().encode(live.TurnMarked("user", "ended", 40))
    message = json.loads(text)
    assert message.pop("event_id")
    assert message == {"type": "duologue.turn.ended", "speaker": "user", "offset_ms": 40}


def test_event_ids_are_unique() -> None:
    made = encoder()
    ids = [json.loads(made.encode(live.Paused())[0])["event_id"] for _ in range(100)]
    assert len(set(ids)) == 100


def test_every_event_of_a_client_is_read() -> None:
    for event in EVENTS:
        reader = LiveDecoder("socket") if event["type"] == "session.start" else decoder()
        command = reader.decode(json.dumps({"event_id": "e", **event}))
        assert command.event_id == "e"  # type: ignore[union-attr]
    TypeAdapter(list[ClientEventParam]).validate_python(EVENTS[2:10])


def test_a_whole_session_is_read_and_shown_back() -> None:
    command = LiveDecoder("socket").decode(json.dumps(EVENTS[0]))
    assert isinstance(command, live.Start)
    config = command.config
    assert config.format == LiveFormat(AudioFormat.PCM, 16_000)
    assert config.voice == "voice_1"
    assert [item.role for item in config.history] == ["system", "user", "assistant"]  # type: ignore[union-attr]
    assert isinstance(config.delegation, ResponsesDelegation)
    assert config.delegation.refused == ("web_search",)
    [text] = encoder().encode(live.Started(config))
    shown = json.loads(text)["session"]
    assert {name: shown[name] for name in SESSION} == SESSION
    STRICT.validate_json(text)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("speed",), 1),
        (("audio", "speed"), 1),
        (("audio", "format", "bits"), 16),
        (("audio", "output", "voice", "name"), "x"),
        (("delegation", "responses", "temperature"), 1),
        (("delegation", "model"), "x"),
        (("client", "data_channel", "x"), 1),
        (("triggers", 0, "x"), 1),
        (("input", 0, "x"), 1),
        (("duologue", "x"), 1),
        (("idle_timeout_s",), 5),
    ],
)
def test_an_unknown_field_is_refused_by_its_name(path: tuple[Any, ...], value: Any) -> None:
    event = copied(EVENTS[0])
    owner: Any = event["session"]
    for key in path[:-1]:
        owner = owner[key]
    owner[path[-1]] = value
    with pytest.raises(ProtocolError) as caught:
        LiveDecoder("socket").decode(json.dumps(event))
    assert caught.value.code == "unknown_parameter"
    assert caught.value.param is not None
    assert caught.value.param.rsplit(".", 1)[-1] == path[-1]


def test_an_unknown_event_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ProtocolError) as caught:
        decoder().decode('{"type": "session.dance", "event_id": "e"}')
    assert caught.value.event_id == "e"
    assert all(kind in caught.value.message for kind in LIVE_CLIENT_EVENTS)


def test_nothing_is_read_before_the_session_starts() -> None:
    with pytest.raises(ProtocolError) as caught:
        LiveDecoder("socket").decode('{"type": "session.close"}')
    assert caught.value.code == "session_not_started"


@pytest.mark.parametrize("link", ["channel", "sideband"])
def test_sound_comes_over_one_way_alone(link: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decoder(link).decode(json.dumps(EVENTS[2]))
    assert caught.value.code == "invalid_event_for_transport"


def test_a_data_channel_passes_what_it_may() -> None:
    rules = DataChannelRules(
        frozenset({"session.close"}),
        frozenset({("session.paused", ""), ("response.event", "response.created")}),
    )
    reader = LiveDecoder("channel", CONFIG, rules=rules)
    assert isinstance(reader.decode('{"type": "session.close"}'), live.Close)
    with pytest.raises(ProtocolError):
        reader.decode('{"type": "response.create"}')
    writer = encoder("channel", rules=rules)
    assert writer.encode(live.Paused())
    assert writer.encode(live.ResponseTold(RESPONSE))
    assert not writer.encode(live.ResponseTold({"type": "response.completed"}))
    assert not writer.encode(live.Resumed())


def test_updates_of_two_clients_are_merged() -> None:
    lead = LiveDecoder("socket", CONFIG)
    beside = LiveDecoder("sideband", lead=lead)
    change: Json = {"type": "responses", "responses": {"instructions": "A"}}
    lead.decode(json.dumps({"type": "session.update", "session": {"delegation": change}}))
    change = {"type": "responses", "responses": {"tools": []}}
    beside.decode(json.dumps({"type": "session.update", "session": {"delegation": change}}))
    assert lead.config is not None
    assert isinstance(lead.config.delegation, ResponsesDelegation)
    assert lead.config.delegation.instructions == "A"
    assert lead.config.delegation.tools == ()
    assert lead.config.delegation.shown["model"] == "gpt-5.6-luna"


def test_the_kind_of_delegation_stays() -> None:
    change = {"delegation": {"type": "client"}}
    with pytest.raises(ProtocolError):
        decoder().decode(json.dumps({"type": "session.update", "session": change}))


@pytest.mark.parametrize(
    ("kind", "rate", "size"),
    [
        (AudioFormat.PCM, 24_000, 1920),
        (AudioFormat.PCM, 16_000, 1280),
        (AudioFormat.PCMU, 8_000, 320),
        (AudioFormat.PCMA, 8_000, 320),
    ],
)
def test_sound_goes_out_as_it_comes_in(kind: AudioFormat, rate: int, size: int) -> None:
    writer = LiveEncoder("socket", "socket")
    writer.begin("live_1", 0, LiveFormat(kind, rate))
    sent = b""
    for _ in range(25):
        [text] = writer.encode(live.OutputAudio(ZEROS, 0, 40))
        message = json.loads(text)
        assert set(message) == {"type", "delta"}
        sent += base64.b64decode(message["delta"])
    assert 24 * size <= len(sent) <= 25 * size
    assert len(set(sent)) == 1


# -- anything at all ------------------------------------------------------------------------


@st.composite
def spoilt(draw: st.DrawFn) -> str:
    """An event of a client, as it should be or with some of it gone or replaced by anything."""
    event = copied(draw(st.sampled_from(EVENTS)))
    for _ in range(draw(st.integers(0, 2))):
        places = _places(event)
        if not places:
            break
        *path, last = draw(st.sampled_from(places))
        owner: Any = event
        for key in path:
            owner = owner[key]
        owner[last] = draw(ANY_JSON)
    try:
        return json.dumps(event)
    except (TypeError, ValueError):
        return "{"


@given(
    st.lists(spoilt() | st.text(max_size=20) | st.sampled_from([json.dumps(e) for e in EVENTS])),
    st.sampled_from([None, ClientDelegation(0), ResponsesDelegation(shown=BACKEND)]),
    st.lists(st.floats(0.0, 3.0), min_size=1),
)
@settings(max_examples=150, deadline=None)
def test_no_order_of_events_breaks_a_session(
    texts: list[str], delegation: Any, waits: list[float]
) -> None:
    config = LiveConfig(model="m", voice="v", delegation=delegation)
    bench = LiveBench(config)
    reader, writer = LiveDecoder("socket", config), encoder()
    for number, text in enumerate(texts):
        try:
            command = reader.decode(text)
        except ProtocolError as error:
            command = live.Refused(error)
        if not isinstance(command, live.AppendAudio):
            bench.command(command)
        bench.pass_time(waits[number % len(waits)])
    for event in bench.events:
        for text in writer.encode(event):
            STRICT.validate_json(text)
    if bench.session.closed is None:
        assert bench.session.next_deadline() > bench.now - 0.001
