"""Events of clients as they come, and answers of the server at random."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from duologue.engines.engine import TokenLogprob, Usage
from duologue.realtime.session_wire import NOISE_REDUCTION
from duologue.sessions import effects
from duologue.sessions.errors import CODES, ProtocolError
from duologue.sessions.items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputAudio,
    InputImage,
    InputText,
    MessageItem,
    OutputAudio,
    OutputText,
)
from duologue.sessions.session_config import (
    LOGPROBS,
    AudioFormat,
    FunctionTool,
    SemanticVad,
    ServerVad,
    SessionConfig,
    Transcription,
    Truncation,
    TurnPolicy,
)

Json = dict[str, Any]

FULL_SESSION: Json = {
    "type": "realtime",
    "model": "gpt-realtime-2.1",
    "output_modalities": ["audio"],
    "instructions": "Be brief.",
    "tools": [
        {
            "type": "function",
            "name": "look_up",
            "description": "Look something up.",
            "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
        }
    ],
    "tool_choice": {"type": "function", "name": "look_up"},
    "parallel_tool_calls": False,
    "max_output_tokens": 1000,
    "truncation": {
        "type": "retention_ratio",
        "retention_ratio": 0.8,
        "token_limits": {"post_instructions": 3000},
    },
    "tracing": {"workflow_name": "w", "group_id": "g", "metadata": {"a": [1]}},
    "prompt": {
        "id": "pmpt_1",
        "version": "2",
        "variables": {"city": "Rome", "text": {"type": "input_text", "text": "t"}},
    },
    "reasoning": {"effort": "low"},
    "include": [LOGPROBS],
    "duologue": {"turn_policy": "backchannel_aware"},
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "transcription": {
                "model": "gpt-4o-mini-transcribe",
                "language": "en",
                "languages": ["en"],
                "prompt": "names",
                "keywords": ["Ada"],
                "delay": "low",
            },
            "noise_reduction": {"type": "near_field", "strength": 0.5},
            "turn_detection": {
                "type": "server_vad",
                "threshold": 0.6,
                "prefix_padding_ms": 200,
                "silence_duration_ms": 400,
                "idle_timeout_ms": 5000,
                "create_response": True,
                "interrupt_response": False,
            },
        },
        "output": {
            "format": {"type": "audio/pcmu"},
            "voice": {"id": "voice_1"},
            "speed": 1.25,
        },
    },
}

MESSAGE: Json = {
    "id": "item_1",
    "type": "message",
    "role": "user",
    "status": "completed",
    "content": [
        {"type": "input_text", "text": "hello"},
        {"type": "input_audio", "audio": "AAAAAAAA", "transcript": "hm"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "low"},
    ],
}
CALL: Json = {"type": "function_call", "call_id": "c", "name": "look_up", "arguments": "{}"}
OUTPUT: Json = {"type": "function_call_output", "call_id": "c", "output": "42"}
ANSWER: Json = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "a"}, {"type": "output_audio", "transcript": "b"}],
}
RULES: Json = {
    "type": "message",
    "role": "system",
    "content": [{"type": "input_text", "text": "s"}],
}

CLIENT_EVENTS: list[Json] = [
    {"type": "conversation.item.create", "previous_item_id": "root", "item": MESSAGE},
    {"type": "conversation.item.create", "item": CALL},
    {"type": "conversation.item.create", "item": OUTPUT},
    {"type": "conversation.item.create", "item": ANSWER},
    {"type": "conversation.item.create", "item": RULES},
    {"type": "conversation.item.delete", "item_id": "item_1"},
    {"type": "conversation.item.retrieve", "item_id": "item_1"},
    {
        "type": "conversation.item.truncate",
        "item_id": "item_1",
        "content_index": 0,
        "audio_end_ms": 10,
    },
    {"type": "input_audio_buffer.append", "audio": "AAAAAAAA"},
    {"type": "input_audio_buffer.clear"},
    {"type": "input_audio_buffer.commit"},
    {"type": "output_audio_buffer.clear"},
    {"type": "response.cancel", "response_id": "resp_1"},
    {
        "type": "response.create",
        "response": {
            "conversation": "none",
            "input": [{"type": "item_reference", "id": "item_1"}, RULES, CALL, OUTPUT],
            "instructions": "i",
            "output_modalities": ["text"],
            "audio": {"output": {"format": {"type": "audio/pcma"}, "voice": "marin"}},
            "tools": [],
            "tool_choice": "required",
            "max_output_tokens": "inf",
            "metadata": {"k": "v"},
            "prompt": {"id": "p"},
            "reasoning": {"effort": "low"},
            "parallel_tool_calls": True,
        },
    },
    {"type": "session.update", "session": FULL_SESSION},
    {"type": "session.update", "session": {"type": "transcription", "include": [LOGPROBS]}},
]


@pytest.fixture
def full_session() -> Json:
    """Every field that a client can set, each to something that is not its default."""
    return copied(FULL_SESSION)


@pytest.fixture(scope="session")
def whole_events() -> list[Json]:
    """Of every event a client can send, one with all its fields."""
    return [copied(event) for event in CLIENT_EVENTS]


def copied(value: Json) -> Json:
    copy: Json = json.loads(json.dumps(value))
    return copy


# -- at random ------------------------------------------------------------------------------

_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["auto", "none", "audio", "AAAA", "server_vad", "mcp", "input_text", "inf"])
)
ANY_JSON = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=6,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    entries = value.items() if isinstance(value, dict) else []
    entries = enumerate(value) if isinstance(value, list) else entries
    for key, inner in entries:
        found += _places(inner, (*path, key))
    return found


@st.composite
def _spoilt(draw: st.DrawFn, wholes: list[Json]) -> Json:
    """One of them, with some of its fields gone or replaced by anything."""
    value = copied(draw(st.sampled_from(wholes)))
    for _ in range(draw(st.integers(0, 4))):
        places = _places(value)
        if not places:
            break
        *path, last = draw(st.sampled_from(places))
        owner: Any = value
        for key in path:
            owner = owner[key]
        if draw(st.booleans()):
            owner[last] = draw(ANY_JSON)
        else:
            del owner[last]
    return value


_TEXT = st.text(max_size=12)
_ID = st.text(min_size=1, max_size=8)
_MS = st.integers(0, 10**9)
_INDEX = st.integers(0, 9)
_PCM = st.binary(max_size=64).map(lambda data: data + data)
_TOOLS = st.builds(
    FunctionTool, _ID, _TEXT, st.dictionaries(_TEXT, st.integers(0, 9), max_size=2).map(json.dumps)
)
_CONTENT: dict[str, st.SearchStrategy[Any]] = {
    "system": st.builds(InputText, _TEXT),
    "user": st.builds(InputText, _TEXT)
    | st.builds(InputAudio, st.none() | _TEXT)
    | st.builds(InputImage, _TEXT, st.sampled_from(["auto", "low", "high"])),
    "assistant": st.builds(OutputText, _TEXT) | st.builds(OutputAudio, _TEXT),
}
_STATUS = st.sampled_from(["completed", "incomplete", "in_progress"])
ITEMS = (
    st.sampled_from(sorted(_CONTENT)).flatmap(
        lambda role: st.builds(
            MessageItem,
            _ID,
            st.just(role),
            st.lists(_CONTENT[role], max_size=3).map(tuple),
            _STATUS,
        )
    )
    | st.builds(FunctionCallItem, _ID, _ID, _TEXT, _TEXT, _STATUS)
    | st.builds(FunctionOutputItem, _ID, _ID, _TEXT, _STATUS)
)
CONFIGS = st.builds(
    SessionConfig,
    kind=st.sampled_from(["realtime", "transcription"]),
    model=_TEXT,
    instructions=_TEXT,
    modality=st.sampled_from(["audio", "text"]),
    voice=_TEXT,
    speed=st.floats(0.25, 1.5),
    turn_detection=st.none()
    | st.builds(
        ServerVad,
        st.floats(0, 1),
        _MS,
        _MS,
        st.none() | _MS,
        st.booleans(),
        st.booleans(),
    )
    | st.builds(SemanticVad),
    transcription=st.none()
    | st.builds(
        Transcription,
        _TEXT,
        _TEXT,
        _TEXT,
        st.fixed_dictionaries({}, optional={"delay": st.just("low"), "keywords": st.just(["a"])}),
    ),
    tools=st.lists(_TOOLS, max_size=2).map(tuple),
    tool_choice=st.sampled_from(["auto", "none", "required", "function:f"]),
    max_output_tokens=st.none() | st.integers(1, 4096),
    truncation=st.builds(
        Truncation,
        st.sampled_from(["auto", "disabled", "retention_ratio"]),
        st.floats(0, 1),
        st.none() | _MS,
    ),
    include=st.sampled_from([(), (LOGPROBS,)]),
    turn_policy=st.sampled_from([None, *TurnPolicy]),
    echoed=st.fixed_dictionaries(
        {},
        optional={
            "tracing": st.sampled_from([None, "auto", {"group_id": "g"}]),
            "prompt": st.sampled_from([None, {"id": "p"}]),
            "reasoning": st.sampled_from([None, {"effort": "high"}]),
            NOISE_REDUCTION: st.sampled_from([None, {"type": "far_field", "strength": 1.0}]),
        },
    ),
)
ERRORS = st.builds(
    ProtocolError,
    st.sampled_from(sorted(CODES)),
    _TEXT,
    st.none() | _TEXT,
    st.none() | _TEXT,
    st.none() | _MS,
)
_USAGE = st.builds(
    effects.AudioUsage,
    st.builds(Usage, input_tokens=_MS, cached_tokens=_MS, output_tokens=_MS),
    _MS,
    _MS,
)
RESPONSES = st.builds(
    effects.ResponseView,
    id=_ID,
    voice=_TEXT,
    conversation_id=st.none() | _ID,
    max_output_tokens=st.none() | st.integers(1, 4096),
    metadata=st.none() | st.dictionaries(_TEXT, _TEXT, max_size=2),
    output=st.lists(ITEMS, max_size=2).map(tuple),
    error=st.none() | ERRORS,
    usage=st.none() | _USAGE,
)
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "config": CONFIGS,
    "item": ITEMS,
    "response": RESPONSES,
    "error": ERRORS,
    "pcm": _PCM,
    "audio": st.none() | _PCM,
    "format": st.sampled_from(AudioFormat),
    "seconds": st.floats(0, 1e6),
    "logprobs": st.none()
    | st.lists(st.builds(TokenLogprob, _TEXT, st.floats(-100, 0)), max_size=2).map(tuple),
    "modality": st.sampled_from(["audio", "text"]),
    "previous_item_id": st.none() | _ID,
}


@pytest.fixture(scope="session")
def client_events() -> st.SearchStrategy[Json]:
    """Whole events, with some of their fields gone or replaced by anything."""
    return _spoilt([{**event, "event_id": "e"} for event in CLIENT_EVENTS])


@pytest.fixture(scope="session")
def spoilt_sessions() -> st.SearchStrategy[Json]:
    """As the events, but the session of an update alone."""
    return _spoilt([FULL_SESSION, {**FULL_SESSION, "type": "transcription"}])


@pytest.fixture(scope="session")
def server_events() -> Callable[[type[effects.ServerEvent]], st.SearchStrategy[Any]]:
    """Events of one class with anything in their fields."""
    return _server_events


def _server_events(kind: type[effects.ServerEvent]) -> st.SearchStrategy[effects.ServerEvent]:
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for name in kind.__dataclass_fields__:
        whole = name.endswith(("_ms", "_index"))
        fields[name] = _FIELDS.get(name, _INDEX if whole else _TEXT)
    return st.builds(kind, **fields)
