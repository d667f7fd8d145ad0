"""The bounds of a call's data channel, whatever speaks over it."""

import pytest

from duologue.realtime.channel_events import ChannelEvents, RtcLimits
from duologue.sessions.errors import ProtocolError
from duologue.sessions.ports import TransportClosed
from tests.realtime.stand_in_peer import Peer

pytestmark = pytest.mark.anyio

Events = ChannelEvents[str]


def decode(text: str) -> str:
    if text == "wrong":
        raise ProtocolError("invalid_value", "It is wrong.")
    return text


def channel(**limits: float) -> Events:
    return ChannelEvents(RtcLimits(**limits), decode, lambda error: error.code)  # type: ignore[arg-type]


async def heard(events: Events, count: int) -> list[str]:
    return [await events.ahead.receive() for _ in range(count)]


async def test_what_comes_beyond_the_bound_is_refused_and_told_once() -> None:
    events = channel(incoming_events=2)
    for text in "abcde":
        events.take(text)
    assert await heard(events, 3) == ["a", "b", "rate_limit_exceeded"]
    events.take("f")
    assert await heard(events, 1) == ["f"]


async def test_what_comes_too_fast_is_refused_and_told_once() -> None:
    events = channel(rate=1e-9, burst=2)
    for text in "abcde":
        events.take(text)
    assert await heard(events, 3) == ["a", "b", "rate_limit_exceeded"]
    assert events.ahead.has_room


async def test_what_is_no_event_is_refused() -> None:
    events = channel()
    for message in (b"bytes", "wrong", "x" * (1 << 20)):
        events.take(message)
    assert await heard(events, 3) == ["invalid_event", "invalid_value", "event_too_large"]


async def test_a_message_may_be_as_long_as_the_caller_takes_in_bytes() -> None:
    events = channel()
    assert events.fits("x" * 1000)
    await events.connect(Peer(largest=1000))  # type: ignore[arg-type]
    assert events.fits("x" * 1000)
    assert not events.fits("x" * 1001)
    assert not events.fits("é" * 501)


async def test_nothing_waits_for_a_channel_that_will_never_be() -> None:
    events, peer = channel(), Peer(has_channel=False)
    events.say("early")
    await events.connect(peer)  # type: ignore[arg-type]
    events.say("late")
    peer.open = True
    events.opened()
    assert peer.said == []


async def test_a_connection_that_does_not_come_about_ends_it() -> None:
    events = channel()
    assert not await events.connect(Peer(fails=True))  # type: ignore[arg-type]
    with pytest.raises(TransportClosed) as caught:
        await events.ahead.receive()
    assert not caught.value.clean
