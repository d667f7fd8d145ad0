"""A call as the link of a Live session, between the session and a peer that the test is."""

import json

import anyio
import numpy as np
import pytest

from duologue.realtime.channel_events import RtcLimits
from duologue.realtime.live_peer import LivePeer
from duologue.realtime.live_wire import LiveDecoder, LiveEncoder
from duologue.sessions.errors import ProtocolError
from duologue.sessions.live_config import LiveConfig
from duologue.sessions.live_events import Close, LiveError, OutputAudio
from duologue.sessions.ports import TransportClosed
from tests.realtime.stand_in_peer import Peer

pytestmark = pytest.mark.anyio

CLOSE = json.dumps({"type": "session.close"})


def link(limits: RtcLimits | None = None) -> LivePeer:
    encoder, decoder = LiveEncoder("channel", "media"), LiveDecoder("channel", LiveConfig())
    return LivePeer(encoder, decoder, limits)


def failure(message: str) -> LiveError:
    return LiveError(ProtocolError("invalid_value", message))


async def test_what_is_said_waits_for_the_data_channel():
    call, peer = link(), Peer()
    call.send(failure("one"))
    await call.connect(peer)
    call.send(failure("two"))
    assert peer.said == []
    peer.open = True
    call.peer_opened()
    assert [event["error"]["message"] for event in peer.said] == ["one", "two"]


async def test_of_what_waits_for_too_long_the_oldest_is_dropped():
    call, peer = link(RtcLimits(waiting_bytes=400)), Peer()
    for number in range(10):
        call.send(failure(f"number_{number}"))
    await call.connect(peer)
    peer.open = True
    call.peer_opened()
    told = [event["error"]["message"] for event in peer.said]
    assert 1 <= len(told) < 4
    assert told[-1] == "number_9"


async def test_a_caller_that_takes_nothing_is_cut_off():
    call, peer = link(), Peer()
    await call.connect(peer)
    peer.open = True
    peer.waiting_bytes = RtcLimits().outgoing_bytes + 1
    call.send(failure("one"))
    with pytest.raises(TransportClosed) as caught:
        await call.receive()
    assert not caught.value.clean


async def test_frames_are_played_once_there_is_a_connection():
    call, peer = link(), Peer()
    frame = OutputAudio(np.zeros(960, np.int16), 0, 40)
    call.send(frame)
    await call.connect(peer)
    call.send(frame)
    assert peer.done == [("play", 1920)]


async def test_the_microphone_is_heard_until_the_caller_goes():
    call, heard = link(), []
    call.hear = lambda samples: heard.append(samples.tolist())
    call.peer_heard(b"\x01\x00\x02\x00", 0.0)
    call.peer_gone()
    call.peer_heard(b"\x03\x00", 0.0)
    assert heard == [[1, 2]]
    with pytest.raises(TransportClosed) as caught:
        await call.receive()
    assert caught.value.clean


async def test_a_connection_that_does_not_come_about_ends_the_session():
    call = link()
    await call.connect(Peer(fails=True))
    with pytest.raises(TransportClosed) as caught:
        await call.receive()
    assert not caught.value.clean


async def test_a_caller_that_is_lost_is_waited_for_and_then_let_go():
    call = link()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.watch)
        call.peer_lost()
        await anyio.wait_all_tasks_blocked()
        call.peer_said(CLOSE)
        assert isinstance(await call.receive(), Close)
        tasks.cancel_scope.cancel()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.watch, 0.0)
        with pytest.raises(TransportClosed) as caught:
            await call.receive()
        assert not caught.value.clean


async def test_a_caller_that_comes_back_stays():
    call = link()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call.watch, 0.0)
        await anyio.wait_all_tasks_blocked()
        call.peer_lost()
        call.peer_back()
        await anyio.wait_all_tasks_blocked()
        call.peer_said(CLOSE)
        assert isinstance(await call.receive(), Close)
        call.peer_lost()
        with pytest.raises(TransportClosed):
            await call.receive()
