"""docs/wire.md names every event, field, error and close code."""

import re
from pathlib import Path
from typing import Any

import pytest

from duologue.realtime import http_wire, item_wire, server_wire, wire
from duologue.realtime.session_wire import encode_session
from duologue.sessions.errors import CODES
from duologue.sessions.session_config import SessionConfig

PAGE = (Path(__file__).parent.parent.parent / "docs" / "wire.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def names(title: str) -> set[str]:
    """What the first column of a section's table lists."""
    rows = re.findall(r"^\| (.*?) \|", section(title), re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def paths(value: Any, prefix: str = "") -> set[str]:
    """The path of every field of an object, of an array's objects too."""
    found: set[str] = set()
    if isinstance(value, dict):
        for key, inner in value.items():
            found |= {prefix + key} | paths(inner, f"{prefix}{key}.")
    return found


def test_every_event_is_on_the_page() -> None:
    assert names("Events of the client") == set(wire.CLIENT_EVENTS)
    assert names("Events of the server") == set(server_wire.EVENT_TYPES.values())


@pytest.mark.parametrize("code", CODES)
def test_every_error_is_on_the_page(code: str) -> None:
    info = CODES[code]
    retry = "yes" if info.retryable else "no"
    assert f"| `{code}` | {info.type} | {retry} | {info.meaning} |" in section("Errors")


def test_no_error_is_on_the_page_that_is_never_sent() -> None:
    assert names("Errors") == set(CODES)


COVERED = ("prompt.", "reasoning.", "tracing.", "truncation.", "tools.", "tool_choice.")
"""Objects of which the page has one row."""


def test_every_field_that_a_client_can_set_is_on_the_page(full_session: dict[str, Any]) -> None:
    listed = names("Session fields")
    for path in paths(full_session):
        whole = path.startswith(COVERED) or ".format." in path or ".noise_reduction." in path
        leaf = path in ("audio", "audio.input", "audio.output", "duologue")
        if not whole and not leaf and not path.startswith("audio.output.voice."):
            assert path in listed, path


def test_every_field_that_is_shown_is_on_the_page() -> None:
    listed = names("Session fields")
    for path in paths(encode_session(SessionConfig(), "sess_1", 1)):
        if path not in ("audio", "audio.input", "audio.output") and ".format." not in path:
            assert path in listed, path


def test_every_field_of_a_response_is_on_the_page(whole_events: list[dict[str, Any]]) -> None:
    (response,) = [event["response"] for event in whole_events if "response" in event]
    listed = names("Response fields")
    for path in paths(response):
        if not path.startswith(("prompt.", "reasoning.", "metadata.")):
            known = path in listed or any(name.startswith(path + ".") for name in listed)
            assert known or ".format." in path, path


def test_the_codes_of_http_are_on_the_page() -> None:
    for code in ("invalid_api_key", "origin_not_allowed", "host_not_allowed"):
        assert f"`{code}`" in section("Errors")


@pytest.mark.parametrize("code", [1000, 1001, 1003, 1007, 1008, 1009, 1011, 1012, 1013])
def test_every_close_code_is_on_the_page(code: int) -> None:
    assert f"| {code} |" in section("Close codes")


def test_the_bounds_on_the_page_are_the_real_ones() -> None:
    assert item_wire.MAX_AUDIO_BYTES == 15 * 1024**2
    assert wire.LONGEST_EVENT == 21 * 1024**2
    assert server_wire.LONGEST_RECORDING == 15 * 48_000
    assert (http_wire.LEAST_SECRET_SECONDS, http_wire.MOST_SECRET_SECONDS) == (10, 7200)
    for words in ("15 MiB", "21 Mi characters", "shorter than 15 s"):
        assert words in PAGE
