"""The ``delegation`` of a Live session both ways: who answers what the session's voice can't.

Source: ``openai.types.live`` of the ``openai`` package, version 3.57.
"""

from collections.abc import Mapping
from typing import Final, Literal

from duologue.realtime.json_fields import Fields, Json, missing, wrong_value
from duologue.realtime.live_questions import decode_questions
from duologue.realtime.tool_wire import LONGEST_TOOL_NAME, decode_tool_choice, decode_tools
from duologue.sessions.live_config import (
    ClientDelegation,
    DecisionsDelegation,
    Delegation,
    ResponsesDelegation,
)
from duologue.sessions.session_config import FunctionTool

LONGEST_INSTRUCTIONS: Final = 131_072
"""Characters: about 8 for each of the 16,384 tokens that are allowed."""
LONGEST_IDENTIFIER: Final = 512
MOST_DELAY_MS: Final = 600_000

_TYPES: Final = ("client", "responses", "decisions")
_RESPONSES: Final = (
    "model",
    "instructions",
    "max_output_tokens",
    "parallel_tool_calls",
    "reasoning",
    "service_tier",
    "text",
    "tool_choice",
    "tools",
)
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh")
_TIERS: Final = ("auto", "default", "fast_tier_temp_pilot", "flex", "priority", "ultrafast")


def decode_delegation(session: Fields) -> Delegation | None:
    """What a session is started with; None where it says nothing of it. Raises ProtocolError."""
    given = session.object("delegation")
    if given is None:
        return None
    kind = given.choice("type", _TYPES)
    if kind is None:
        raise missing(given.at("type"))
    delay = given.integer("acknowledgement_delay_ms", 0, MOST_DELAY_MS)
    if kind == "client":
        given.only("type", "acknowledgement_delay_ms")
        return ClientDelegation(delay)
    given.only("type", "acknowledgement_delay_ms", kind)
    backend = given.required_object(kind)
    return _decode_responses(backend, delay) if kind == "responses" else _decisions(backend, delay)


def decode_delegation_change(session: Fields, current: Delegation | None) -> Delegation | None:
    """What an update makes of the current one; None where it leaves it. Raises ProtocolError."""
    given = session.object("delegation")
    if given is None:
        return None
    kind = given.choice("type", _TYPES)
    if kind is None:
        raise missing(given.at("type"))
    if kind != type_of(current or ClientDelegation()):
        raise wrong_value(given.at("type"), "can't be changed in a session.")
    given.only("type", "acknowledgement_delay_ms", *((kind,) if kind != "client" else ()))
    delay = given.integer("acknowledgement_delay_ms", 0, MOST_DELAY_MS)
    before = current.acknowledge_ms if current is not None else None
    delay = before if delay is None else delay
    if kind == "client":
        return ClientDelegation(delay)
    assert isinstance(current, ResponsesDelegation | DecisionsDelegation)
    merged = dict(current.shown)
    backend = given.object(kind)
    if backend is not None:
        merged.update((name, value) for name, value in backend.items() if value is not None)
    fields = Fields(merged, given.at(kind))  # type: ignore[arg-type]
    return _decode_responses(fields, delay) if kind == "responses" else _decisions(fields, delay)


def _decode_responses(backend: Fields, delay: int | None) -> ResponsesDelegation:
    backend.only(*_RESPONSES)
    backend.required_string("model", LONGEST_IDENTIFIER)
    _check_reasoning(backend)
    backend.choice("service_tier", _TIERS)
    tools, refused = _decode_live_tools(backend)
    choice = "auto"
    if tools and _chooses_function(backend):
        choice = decode_tool_choice(backend) or "auto"
    parallel = backend.boolean("parallel_tool_calls")
    return ResponsesDelegation(
        acknowledge_ms=delay,
        instructions=backend.string("instructions", LONGEST_INSTRUCTIONS) or "",
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=True if parallel is None else parallel,
        max_output_tokens=backend.integer("max_output_tokens", 1),
        shown={name: backend.kept(name) for name, _ in backend.items()},
        refused=refused,
    )


def _check_reasoning(backend: Fields) -> None:
    reasoning = backend.object("reasoning")
    if reasoning is not None:
        reasoning.only("effort", "summary")
        reasoning.choice("effort", _EFFORTS)
        reasoning.choice("summary", ("concise", "detailed", "auto"))
    text = backend.object("text")
    if text is not None:
        text.only("verbosity")
        text.choice("verbosity", ("low", "medium", "high"))


def _decode_live_tools(backend: Fields) -> tuple[tuple[FunctionTool, ...], tuple[str, ...]]:
    """The functions, and the kinds of hosted tools, which nothing here runs."""
    functions: list[Json] = []
    refused: list[str] = []
    for tool in backend.objects("tools") or []:
        kind = tool.required_string("type", LONGEST_TOOL_NAME)
        if kind != "function":
            refused.append(kind)
            continue
        tool.only("type", "name", "description", "parameters", "strict")
        tool.boolean("strict")
        decode_tools(Fields({"tools": [dict(tool.items())]}, backend.path))
        functions.append(dict(tool.items()))
    return decode_tools(Fields({"tools": functions}, backend.path)) or (), tuple(refused)


def _chooses_function(backend: Fields) -> bool:
    """Whether the choice is one that functions alone can follow."""
    choice = backend.value("tool_choice")
    return isinstance(choice, str) or (
        isinstance(choice, dict) and choice.get("type") == "function"
    )


def _decisions(backend: Fields, delay: int | None) -> DecisionsDelegation:
    backend.only("model", "questions")
    backend.required_string("model", LONGEST_IDENTIFIER)
    return DecisionsDelegation(
        delay,
        decode_questions(backend),
        {name: backend.kept(name) for name, _ in backend.items()},
    )


def type_of(delegation: Delegation) -> Literal["client", "responses", "decisions"]:
    match delegation:
        case ClientDelegation():
            return "client"
        case ResponsesDelegation():
            return "responses"
        case DecisionsDelegation():
            return "decisions"


def encode_delegation(delegation: Delegation | None) -> Mapping[str, object] | None:
    if delegation is None:
        return None
    kind = type_of(delegation)
    encoded: dict[str, object] = {"type": kind}
    if delegation.acknowledge_ms is not None:
        encoded["acknowledgement_delay_ms"] = delegation.acknowledge_ms
    if not isinstance(delegation, ClientDelegation):
        encoded[kind] = delegation.shown
    return encoded
