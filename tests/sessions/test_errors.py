"""Errors: every code has its class, and an answer names its question."""

import pytest

from duologue.sessions.errors import CODES, ProtocolError


@pytest.mark.parametrize("code", CODES)
def test_every_code_says_whose_fault_it_is_and_what_it_means(code):
    error = ProtocolError(code, "x")
    assert error.type in ("invalid_request_error", "server_error", "rate_limit_error")
    assert CODES[code].meaning.endswith(".")


def test_what_is_the_servers_fault_may_work_later():
    ours = [info for info in CODES.values() if info.type == "server_error"]
    assert ours and all(info.retryable for info in ours)


def test_the_answer_to_a_clients_event_is_the_same_error_with_its_id():
    error = ProtocolError("invalid_value", "no", "field", retry_after_ms=5)
    assert error.answering("e") == ProtocolError("invalid_value", "no", "field", "e", 5)
    assert error.event_id is None


def test_an_error_can_be_raised_and_caught():
    with pytest.raises(ProtocolError) as caught:
        raise ProtocolError("invalid_value", "no")
    assert caught.value.__traceback__ is not None
