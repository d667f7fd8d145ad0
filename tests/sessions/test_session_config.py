"""What a client can set, and how an update merges."""

import pytest

from duologue.sessions.session_config import (
    AudioFormat,
    SemanticVad,
    ServerVad,
    SessionConfig,
    SessionPatch,
    TurnDetectionPatch,
)


@pytest.mark.parametrize(
    ("form", "rate", "sample_bytes"),
    [(AudioFormat.PCM, 24_000, 2), (AudioFormat.PCMU, 8_000, 1), (AudioFormat.PCMA, 8_000, 1)],
)
def test_every_format_has_its_rate_and_size(form, rate, sample_bytes):
    assert (form.rate, form.sample_bytes) == (rate, sample_bytes)


def test_only_what_is_named_changes():
    before = SessionConfig(instructions="a", voice="v")
    after = before.merged(SessionPatch({"instructions": ""}))
    assert (after.instructions, after.voice) == ("", "v")
    assert before.merged(SessionPatch()) == before


def test_turn_detection_can_be_turned_off_and_on():
    off = SessionConfig().merged(SessionPatch(turn_detection=None))
    assert off.turn_detection is None
    patch = SessionPatch(turn_detection=TurnDetectionPatch(ServerVad, {"threshold": 0.9}))
    assert off.merged(patch).turn_detection == ServerVad(threshold=0.9)


def test_turn_detection_of_the_same_kind_keeps_what_is_not_named():
    before = SessionConfig(turn_detection=ServerVad(threshold=0.9, idle_timeout_ms=5))
    patch = SessionPatch(turn_detection=TurnDetectionPatch(ServerVad, {"idle_timeout_ms": None}))
    assert before.merged(patch).turn_detection == ServerVad(threshold=0.9)


def test_turn_detection_of_another_kind_begins_with_its_defaults():
    before = SessionConfig(turn_detection=ServerVad(create_response=False))
    patch = SessionPatch(turn_detection=TurnDetectionPatch(SemanticVad, {"eagerness": "low"}))
    assert before.merged(patch).turn_detection == SemanticVad("low")


def test_what_is_only_shown_back_is_merged_by_name():
    before = SessionConfig(echoed={"tracing": "auto", "prompt": None})
    after = before.merged(SessionPatch(echoed={"prompt": "p"}))
    assert after.echoed == {"tracing": "auto", "prompt": "p"}
