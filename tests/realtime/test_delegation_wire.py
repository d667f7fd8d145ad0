"""Who answers for a Live session, both ways."""

from typing import Any

import pytest

from duologue.realtime.delegation_wire import (
    decode_delegation,
    decode_delegation_change,
    encode_delegation,
)
from duologue.realtime.json_fields import Fields
from duologue.sessions.errors import ProtocolError
from duologue.sessions.live_config import ClientDelegation, Delegation, ResponsesDelegation

FUNCTION = {"type": "function", "name": "look", "parameters": {"type": "object"}}


def decode(delegation: object) -> Delegation | None:
    return decode_delegation(Fields({"delegation": delegation}))  # type: ignore[dict-item]


def changed(current: Delegation | None, **change: object) -> Delegation | None:
    return decode_delegation_change(Fields({"delegation": change}), current)  # type: ignore[dict-item]


def responses(**backend: object) -> dict[str, Any]:
    return {"type": "responses", "responses": {"model": "gpt", **backend}}


@pytest.mark.parametrize(
    "delegation",
    [
        {"type": "client"},
        {"type": "client", "acknowledgement_delay_ms": 300},
        responses(instructions="Be brief.", tools=[FUNCTION], tool_choice="required"),
    ],
)
def test_what_was_said_is_shown_back(delegation: dict[str, Any]) -> None:
    assert encode_delegation(decode(delegation)) == delegation


def test_nothing_said_is_nothing_decided() -> None:
    assert decode(None) is None
    assert encode_delegation(None) is None
    assert decode_delegation_change(Fields({}), ClientDelegation()) is None


def test_hosted_tools_are_told_apart_from_functions() -> None:
    made = decode(responses(tools=[FUNCTION, {"type": "web_search"}]))
    assert isinstance(made, ResponsesDelegation)
    assert [tool.name for tool in made.tools] == ["look"]
    assert made.refused == ("web_search",)


def test_a_change_leaves_what_it_does_not_name() -> None:
    current = decode(
        responses(instructions="A", tools=[FUNCTION]) | {"acknowledgement_delay_ms": 7}
    )
    made = changed(current, type="responses", responses={"instructions": "B"})
    assert isinstance(made, ResponsesDelegation)
    assert (made.instructions, made.acknowledge_ms) == ("B", 7)
    assert [tool.name for tool in made.tools] == ["look"]
    assert changed(None, type="client", acknowledgement_delay_ms=5) == ClientDelegation(5)


@pytest.mark.parametrize(
    ("delegation", "param"),
    [
        ({}, "delegation.type"),
        ({"type": "other"}, "delegation.type"),
        ({"type": "client", "responses": {}}, "delegation.responses"),
        ({"type": "client", "acknowledgement_delay_ms": -1}, "delegation.acknowledgement_delay_ms"),
        ({"type": "responses"}, "delegation.responses"),
        ({"type": "responses", "responses": {}}, "delegation.responses.model"),
        (responses(temperature=1), "delegation.responses.temperature"),
        (responses(reasoning={"effort": "huge"}), "delegation.responses.reasoning.effort"),
        (responses(service_tier="slow"), "delegation.responses.service_tier"),
    ],
)
def test_what_is_wrong_is_named(delegation: dict[str, Any], param: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(delegation)
    assert caught.value.param == param


def test_the_kind_stays() -> None:
    with pytest.raises(ProtocolError) as caught:
        changed(decode(responses()), type="client")
    assert caught.value.param == "delegation.type"
