import pytest

from duologue.engines.engine import EngineFailure
from duologue.realtime.chat_refusal import ChatRefusal, refusal_of
from duologue.sessions.errors import ProtocolError


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("context_too_long", 400),
        ("upstream_error", 502),
        ("engine_unavailable", 503),
        ("engine_overloaded", 503),
        ("engine_error", 500),
    ],
)
def test_a_failure_has_the_status_of_whose_fault_it_is(code: str, status: int) -> None:
    assert refusal_of(EngineFailure(code, "words")).status == status
    assert refusal_of(None).status == 500


def test_a_body_that_is_too_large_has_a_status_of_its_own() -> None:
    assert ChatRefusal.of(ProtocolError("event_too_large", "words")).status == 413
