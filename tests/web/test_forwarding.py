"""Which requests are about a call or a Live session, and of whom."""

import pytest

from duologue.web.forwarding import owned_id

CALL = "rtc_01" + "a" * 18
LIVE = "live_01" + "b" * 18


@pytest.mark.parametrize(
    ("kind", "path", "query", "found"),
    [
        ("http", f"/v1/realtime/calls/{CALL}", b"", CALL),
        ("http", f"/v1/realtime/calls/{CALL}/hangup", b"", CALL),
        ("http", f"/openai/v1/realtime/calls/{CALL}/accept", b"", CALL),
        ("http", f"/openai/realtime/calls/{CALL}/refer", b"", CALL),
        ("http", f"/live/sessions/{LIVE}/content", b"", LIVE),
        ("websocket", f"/v1/live/sessions/{LIVE}/attach", b"graceful_close=true", LIVE),
        ("websocket", "/v1/realtime", f"model=m&call_id={CALL}".encode(), CALL),
        ("websocket", "/realtime", b"call_id=other&call_id=last", "last"),
        ("http", "/v1/realtime", f"call_id={CALL}".encode(), None),
        ("http", "/v1/realtime/calls", b"", None),
        ("websocket", "/v1/realtime", b"model=m", None),
        ("websocket", "/v1/live/sessions", b"", None),
        ("http", f"/v1/realtime/calls/{CALL}/../../../../inside/secrets", b"", None),
        ("http", f"/v1/realtime/calls/{CALL}/hangup/", b"", None),
        ("http", f"/v1/realtime/calls/{CALL.upper()}", b"", None),
        ("websocket", "/api/chat", f"call_id={CALL}".encode(), None),
        ("http", "/inside/secrets", b"", None),
    ],
)
def test_a_request_is_about_at_most_one(
    kind: str, path: str, query: bytes, found: str | None
) -> None:
    assert owned_id(kind, path, query) == found
