"""A call's transport, between a session and a peer that the test is."""

import json
from dataclasses import replace

import anyio
import pytest

from duologue.engines.engine import PictureGenerated
from duologue.realtime.channel_events import RtcLimits
from duologue.realtime.rtc_transport import RtcTransport
from duologue.realtime.server_wire import Encoder
from duologue.sessions import effects, events
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import InputAudio, MessageItem
from duologue.sessions.ports import AudioBytes, TransportClosed
from duologue.sessions.session_config import AudioFormat, SessionConfig, SessionPatch
from tests.patience import PATIENCE_S
from tests.realtime.stand_in_peer import Peer

pytestmark = pytest.mark.anyio


class Line:
    """A transport with its peer, and what the session was told at once."""

    def __init__(self, limits=None, *, plays_out=True):
        self.heard, self.reports, self.pictures = [], [], []
        self.transport = RtcTransport(
            Encoder("sess", 0),
            SessionConfig(),
            limits or RtcLimits(),
            self.heard.append,
            lambda item, ms: self.reports.append((item, ms)),
            self.pictures.append,
            plays_out=plays_out,
        )

    async def connected(self, **about):
        peer = Peer(**about)
        await self.transport.connect(peer)
        return peer

    async def opened(self, **about):
        peer = await self.connected(**about)
        peer.open = True
        self.transport.peer_opened()
        return peer

    async def refusal(self):
        incoming = await self.transport.receive()
        assert isinstance(incoming, events.Rejected)
        return incoming.error.code


def delta(item="a", ms=100):
    return effects.AudioDelta("r", item, 0, 0, bytes(48 * ms), AudioFormat.PCM)


CREATED = effects.SessionCreated(SessionConfig())
CLEARED = effects.InputCleared()


# -- out ------------------------------------------------------------------------------------


async def test_events_wait_for_the_data_channel():
    line = Line()
    line.transport.send(CREATED)
    peer = await line.connected()
    line.transport.send(CLEARED)
    assert peer.said == []
    peer.open = True
    line.transport.peer_opened()
    assert peer.kinds == ["session.created", "input_audio_buffer.cleared"]


async def test_of_events_that_wait_too_long_the_oldest_are_dropped():
    line = Line(RtcLimits(waiting_bytes=300))
    line.transport.send(CREATED)
    for _ in range(10):
        line.transport.send(CLEARED)
    peer = await line.opened()
    assert 1 <= len(peer.said) < 6
    assert "session.created" not in peer.kinds


async def test_without_a_data_channel_nothing_waits():
    line = Line()
    line.transport.send(CREATED)
    peer = await line.connected(has_channel=False)
    line.transport.send(CLEARED)
    assert peer.said == []


async def test_speech_is_played_and_not_told():
    line = Line()
    peer = await line.opened()
    line.transport.send(delta())
    assert (peer.said, peer.done) == ([], [("play", 4800)])
    line.transport.peer_played(40.0, 1.0)
    assert line.reports == [("a", 40.0)]


async def test_a_caller_that_does_not_listen_is_not_spoken_to():
    line = Line(plays_out=False)
    peer = await line.opened()
    line.transport.send(delta())
    assert (peer.said, peer.done) == ([], [])


async def test_playout_is_steered():
    line = Line()
    line.transport.steer(effects.FlushPlayout())
    peer = await line.opened()
    for effect in (effects.DuckPlayout(), effects.RestorePlayout(), effects.FlushPlayout()):
        line.transport.steer(effect)
    assert peer.done == ["duck", "restore", "flush"]


async def test_an_item_that_is_too_long_comes_without_its_audio():
    line = Line()
    peer = await line.opened(largest=2_000)
    item = MessageItem("i", "user", (InputAudio("words"),))
    line.transport.send(effects.ItemRetrieved(item, bytes(5_000)))
    assert peer.kinds == ["conversation.item.retrieved"]
    assert "audio" not in peer.said[0]["item"]["content"][0]


async def test_an_event_that_is_too_large_is_told_of():
    line = Line()
    peer = await line.opened(largest=1_000)
    line.transport.send(effects.SessionUpdated(SessionConfig(instructions="ü" * 600)))
    item = MessageItem("i", "user", (InputAudio("w" * 2_000),))
    line.transport.send(effects.ItemRetrieved(item, bytes(5_000)))
    assert [event["error"]["code"] for event in peer.said] == ["event_too_large"] * 2


async def test_a_caller_that_takes_nothing_is_cut_off():
    line = Line(RtcLimits(outgoing_bytes=100))
    peer = await line.opened()
    peer.waiting_bytes = 101
    line.transport.send(CLEARED)
    with pytest.raises(TransportClosed) as caught:
        await line.transport.receive()
    assert not caught.value.clean
    line.transport.send(CLEARED)
    assert len(peer.said) == 1


# -- in -------------------------------------------------------------------------------------


async def test_what_the_microphone_hears_goes_to_the_session_at_once():
    line = Line()
    await line.opened()
    line.transport.peer_heard(b"12", 1.0)
    assert line.heard == [b"12"]
    await line.transport.aclose(1000, "")
    line.transport.peer_heard(b"34", 1.0)
    line.transport.peer_played(20.0, 1.0)
    assert line.heard == [b"12"]


async def test_events_come_in_in_order_and_a_cancel_overtakes_audio():
    line = Line()
    line.transport.peer_said('{"type": "input_audio_buffer.commit"}')
    line.transport.peer_said('{"type": "input_audio_buffer.append", "audio": "AAAAAAAA"}')
    line.transport.peer_said('{"type": "response.cancel"}')
    found = [await line.transport.receive() for _ in range(3)]
    assert [type(one) for one in found] == [events.CommitAudio, events.CancelResponse, AudioBytes]


async def test_what_is_no_event_is_refused():
    line = Line()
    for message in (b"bytes", "x" * 300_000, "no json"):
        line.transport.peer_said(message)
    assert [await line.refusal() for _ in range(3)] == [
        "invalid_event",
        "event_too_large",
        "invalid_json",
    ]


async def test_events_beyond_the_bound_are_refused_once():
    line = Line(RtcLimits(incoming_events=2))
    for _ in range(5):
        line.transport.peer_said('{"type": "input_audio_buffer.commit"}')
    found = [await line.transport.receive() for _ in range(3)]
    assert [type(one) for one in found] == [events.CommitAudio] * 2 + [events.Rejected]
    line.transport.peer_said('{"type": "input_audio_buffer.commit"}')
    assert isinstance(await line.transport.receive(), events.CommitAudio)


async def test_events_that_come_too_fast_are_refused_once():
    line = Line(RtcLimits(rate=1e-9, burst=2))
    for _ in range(5):
        line.transport.peer_said('{"type": "input_audio_buffer.commit"}')
    found = [await line.transport.receive() for _ in range(3)]
    assert [type(one) for one in found] == [events.CommitAudio] * 2 + [events.Rejected]
    assert found[2].error.code == "rate_limit_exceeded"


async def test_a_refused_update_is_taken_back():
    line = Line()
    line.transport.peer_said(
        json.dumps({"type": "session.update", "session": {"type": "realtime", "instructions": "x"}})
    )
    update = await line.transport.receive()
    assert update == events.UpdateSession(None, SessionPatch({"instructions": "x"}))
    assert line.transport.decoder.config.instructions == "x"
    refused = ProtocolError("cannot_update_voice", "No.")
    line.transport.send(effects.ErrorReported(refused))
    assert line.transport.decoder.config.instructions == ""


# -- the end --------------------------------------------------------------------------------


async def test_a_connection_that_does_not_come_about_ends_the_session():
    line = Line()
    await line.connected(fails=True)
    with pytest.raises(TransportClosed):
        await line.transport.receive()


async def test_a_peer_that_is_lost_is_waited_for_and_one_that_went_is_not():
    line = Line()
    await line.opened()
    line.transport.peer_lost()
    assert await line.transport.receive() == events.Detached(resumable=True)
    line.transport.peer_gone()
    with pytest.raises(TransportClosed) as caught:
        await line.transport.receive()
    assert caught.value.clean


async def test_closing_takes_the_connection_down_and_wakes_whoever_reads():
    line = Line()
    peer = await line.opened()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:

            async def read():
                with pytest.raises(TransportClosed):
                    await line.transport.receive()

            tasks.start_soon(read)
            await anyio.lowlevel.checkpoint()
            await line.transport.aclose(1000, "")
    assert peer.closed == 1


# -- pictures -------------------------------------------------------------------------------


def picture(response, at_ms, pixels=bytes(6)):
    made = PictureGenerated(1, at_ms, 2, 2, pixels, session="s")
    return effects.ShowPicture(response, made)


async def test_a_picture_is_due_with_its_place_in_its_responses_audio():
    line = Line()
    peer = await line.opened()
    line.transport.send(delta("before", 300))
    line.transport.peer_played(100, 0.0)
    line.transport.show(picture("other", 40))
    line.transport.send(replace(delta("b", 200), response_id="other"))
    line.transport.show(picture("other", 80))
    line.transport.show(picture("", 999))
    assert peer.shown == [(6, 340), (6, 380), (6, None)]


async def test_a_flush_moves_what_comes_after_it():
    line = Line()
    peer = await line.opened()
    line.transport.send(delta(ms=300))
    line.transport.peer_played(100, 0.0)
    line.transport.steer(effects.FlushPlayout())
    line.transport.send(delta(ms=100))
    line.transport.show(picture("r", 350))
    assert peer.shown == [(6, 150)]


async def test_a_picture_that_is_none_is_not_shown():
    line = Line()
    line.transport.show(picture("r", 0))
    peer = await line.opened()
    line.transport.show(picture("r", 0, b"half"))
    assert peer.shown == []


async def test_what_the_camera_shows_reaches_the_session():
    line = Line()
    line.transport.peer_saw(b"jpeg", 0.0)
    line.transport.peer_saw(None, 0.0)
    line.transport.peer_gone()
    line.transport.peer_saw(b"late", 0.0)
    assert line.pictures == [b"jpeg", None]
