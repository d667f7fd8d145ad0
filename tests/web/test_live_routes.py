"""Live sessions, as their clients and those beside them meet them."""

import base64
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
from aiortc import RTCSessionDescription
from openai.types.live import ServerEvent
from pydantic import TypeAdapter
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from duologue.engines.duplex_script import DuplexScriptOptions, create_backend
from duologue.engines.pulse import Pulse
from duologue.engines.script import Clause, Reply
from duologue.realtime.live_room import LiveRoom
from duologue.realtime.websocket import SocketLimits
from duologue.web.settings import Settings
from tests.caller import Loud, calling
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

OpenHouse = Callable[..., AbstractAsyncContextManager[Any]]
STRICT: TypeAdapter[ServerEvent] = TypeAdapter(ServerEvent)
PATH = "/v1/live/sessions"
KEY = "key-of-the-house"
LOCKED = Settings(engine="scripted", api_keys=(KEY,))
LONG = Reply(clauses=tuple(Clause(f"Word{n}. ", 500) for n in range(20)), first_ms=0, pace=0)
LOUD = base64.b64encode((b"\x00\x40" * 40 + b"\x00\xc0" * 40) * 30).decode()
"""100 ms of a hum at 24 kHz."""


class Live:
    """A client, event by event."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def send(self, kind: str, **fields: object) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def until(self, kind: str) -> dict[str, Any]:
        while True:
            text = await self.socket.recv()
            STRICT.validate_json(text)
            event: dict[str, Any] = json.loads(text)
            if event["type"] == kind:
                return event

    async def start(self, **session: object) -> str:
        await self.send("session.start", session={"model": "m", **session})
        session_id: str = (await self.until("session.started"))["session"]["id"]
        return session_id

    async def close_code(self) -> int | None:
        try:
            while True:
                await self.socket.recv()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd is not None else None


@asynccontextmanager
async def client(house: Any, path: str = PATH, **options: Any) -> Any:
    async with house.connect(path, **options) as socket:
        yield Live(socket)


async def emptied(house: Any) -> None:
    """Until no session holds a place."""
    while house.service.live.active or house.service.registry.active:
        await anyio.lowlevel.checkpoint()


async def test_a_client_that_closes_is_told_so_and_its_place_is_free(
    open_house: OpenHouse,
) -> None:
    async with open_house(capacity=1) as house:
        for _ in range(2):
            async with client(house) as live:
                await live.start()
                await live.send("session.close")
                assert (await live.until("session.closed"))["reason"] == "close_requested"
                assert await live.close_code() == 1000
            await emptied(house)


async def test_a_client_that_vanishes_leaves_nothing_behind(open_house: OpenHouse) -> None:
    async with open_house(capacity=1) as house:
        async with client(house) as live:
            session_id = await live.start()
            async with client(house, f"{PATH}/{session_id}/attach") as beside:
                await beside.until("session.started")
                live.socket.transport.abort()
                closed = await beside.until("session.closed")
                assert closed["reason"] == "connection_lost"
        await emptied(house)
        async with client(house) as again:
            await again.start()


async def test_a_client_that_does_not_read_is_cut_off(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duologue.web.live_routes.LIMITS", SocketLimits(outgoing_bytes=100_000))
    async with open_house() as house, client(house, max_queue=1) as live:
        session_id = await live.start()
        live.socket.transport.pause_reading()
        async with client(house, f"{PATH}/{session_id}/attach") as beside:
            await beside.until("session.started")
            room = house.service.live.find(session_id).room
            while room.session.closed is None:
                for _ in range(50):
                    room.note("noise", "x" * 10_000)
                room.flush()
                await anyio.lowlevel.checkpoint()
            assert room.session.closed.reason == "connection_lost"
        await emptied(house)


async def test_speech_interrupts_an_answer(open_house: OpenHouse) -> None:
    async with open_house(vad=Loud(), replies=(LONG,)) as house, client(house) as live:
        await live.start()
        await live.send("session.commentary.append", content="Begin.", delegation_id=None)
        await live.until("session.output_transcript.delta")
        said = 1
        for _ in range(8):
            await live.send("session.input_audio.append", audio=LOUD)
        while any(base64.b64decode((await live.until("session.output_audio.delta"))["delta"])):
            said += 1
        assert said < 100


async def test_one_too_many_is_told_so(open_house: OpenHouse) -> None:
    settings = Settings(engine="scripted", max_sessions=1)
    async with open_house(settings) as house, client(house) as first:
        await first.start()
        async with client(house) as second:
            await second.send("session.start", session={"model": "m"})
            error = (await second.until("error"))["error"]
            assert error["code"] == "engine_overloaded"
            assert await second.close_code() == 1013


async def test_who_comes_before_the_engine_is_ready_is_told_so(open_house: OpenHouse) -> None:
    async with open_house(ready=False) as house, client(house) as live:
        await live.send("session.start", session={"model": "m"})
        assert (await live.until("error"))["error"]["code"] == "engine_unavailable"
        assert await live.close_code() == 1013


async def test_a_drain_tells_who_is_still_there(open_house: OpenHouse) -> None:
    async with open_house() as house, client(house) as live:
        await live.start()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(house.service.registry.drain, 0)
            assert (await live.until("session.closed"))["reason"] == "connection_lost"
            assert await live.close_code() == 1012


@pytest.mark.parametrize("path", [PATH, f"{PATH}/live_1/attach", f"{PATH}/live_1/fork"])
async def test_without_a_key_the_socket_is_not_even_opened(
    open_house: OpenHouse, path: str
) -> None:
    async with open_house(LOCKED) as house:
        with pytest.raises(InvalidStatus) as caught:
            async with house.connect(path):
                pass
        assert caught.value.response.status_code == 401
        headers = {"Authorization": f"Bearer {KEY}", "Origin": "http://elsewhere.example"}
        with pytest.raises(InvalidStatus) as caught:
            async with house.connect(path, additional_headers=headers):
                pass
        assert caught.value.response.status_code == 403


async def test_who_comes_beside_a_session_that_closes_is_told_of_its_end(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing = anyio.Event()
    aclose = LiveRoom.aclose

    async def linger(room: LiveRoom, code: int, reason: str) -> None:
        await closing.wait()
        await aclose(room, code, reason)

    monkeypatch.setattr(LiveRoom, "aclose", linger)
    async with open_house() as house, client(house) as live:
        session_id = await live.start()
        await live.send("session.close")
        await live.until("session.closed")
        try:
            async with client(house, f"{PATH}/{session_id}/attach") as late:
                with anyio.fail_after(PATIENCE_S):
                    assert (await late.until("session.started"))["session"]["id"] == session_id
                    assert (await late.until("session.closed"))["reason"] == "close_requested"
                closing.set()
                assert await late.close_code() == 1000
        finally:
            closing.set()


@pytest.mark.parametrize("what", ["attach", "fork"])
async def test_there_is_nothing_beside_a_session_that_is_not_there(
    open_house: OpenHouse, what: str
) -> None:
    async with open_house() as house:
        with pytest.raises(InvalidStatus) as caught:
            async with house.connect(f"{PATH}/live_1/{what}"):
                pass
        assert caught.value.response.status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", f"{PATH}/live_1/hangup", 404, "session_not_found"),
        ("POST", f"{PATH}/live_1/accept", 404, "session_not_found"),
        ("POST", f"{PATH}/live_1/fork", 404, "session_not_found"),
        ("GET", f"{PATH}/live_1/content", 404, "recording_disabled"),
        ("POST", PATH, 400, "invalid_json"),
    ],
)
async def test_what_is_wrong_over_http_is_said(
    open_house: OpenHouse, method: str, path: str, status: int, code: str
) -> None:
    async with open_house() as house, house.http() as http:
        response = await http.request(method, path)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_a_stored_session_can_be_fetched_while_it_is_on_and_no_other(
    open_house: OpenHouse,
) -> None:
    settings = Settings(engine="scripted", live_recording=60)
    async with open_house(settings) as house, house.http() as http, client(house) as live:
        stored = await live.start(store=True)
        await live.send("session.input_audio.append", audio=LOUD)
        await live.until("session.output_audio.delta")
        async with client(house) as unstored:
            for other in (await unstored.start(store=False), "..%2f..%2fetc%2fpasswd", stored[:-1]):
                assert (await http.get(f"{PATH}/{other}/content")).status_code == 404
        response = await http.get(f"{PATH}/{stored}/content")
        assert response.headers["content-type"] == "audio/wav"
        assert int(response.headers["content-length"]) == len(response.content) > 4000
        assert response.content[:4] == b"RIFF"


async def test_a_call_names_the_field_that_is_wrong(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http:
        body: dict[str, Any] = {
            "session": {"model": "m", "audio": {"format": {"type": "audio/pcm"}}},
            "transport": {"type": "webrtc", "sdp": "x"},
        }
        error = (await http.post(PATH, json=body)).json()["error"]
        assert (error["code"], error["param"]) == ("unknown_parameter", "session.audio.format")
        body["session"] = {"model": "m"}
        assert (await http.post(PATH, json=body)).json()["error"]["code"] == "invalid_sdp"


async def test_a_caller_talks_over_webrtc_and_hears_the_answer(open_house: OpenHouse) -> None:
    async with (
        open_house(vad=Loud(), replies=(LONG,)) as house,
        house.http() as http,
        calling() as caller,
    ):
        body = {
            "session": {
                "model": "m",
                "client": {"data_channel": {"allowed_client_events": []}},
            },
            "transport": {"type": "webrtc", "sdp": await caller.offer()},
        }
        made = (await http.post(PATH, json=body)).json()
        await caller.connection.setRemoteDescription(
            RTCSessionDescription(made["transport"]["sdp"], "answer")
        )
        await caller.event("session.started")
        assert (await caller.event("info"))["code"] == "data_channel_permissions"
        caller.send("session.close")
        error = (await caller.event("error"))["error"]
        assert error["code"] == "invalid_event_for_transport"
        await caller.microphone.hum(0.6)
        await caller.until(caller.heard)
        await caller.connection.close()
        await emptied(house)


async def test_a_later_offer_of_a_call_is_answered_and_that_of_somebody_else_is_not(
    open_house: OpenHouse,
) -> None:
    def credentials(sdp: str) -> list[str]:
        return [line for line in sdp.splitlines() if line.startswith("a=ice-")]

    async with (
        open_house() as house,
        house.http() as http,
        calling() as caller,
        calling() as other,
        client(house) as live,
    ):
        body: dict[str, Any] = {"transport": {"type": "webrtc", "sdp": await caller.offer()}}
        made = (await http.post(PATH, json=body | {"session": {"model": "m"}})).json()
        await caller.connection.setRemoteDescription(
            RTCSessionDescription(made["transport"]["sdp"], "answer")
        )
        await caller.event("session.started")
        place = f"{PATH}/{made['session']['id']}"
        again = await http.post(place, json=body)
        assert (again.status_code, again.json()["session"]) == (200, made["session"])
        before, after = made["transport"]["sdp"], again.json()["transport"]["sdp"]
        assert credentials(after) == credentials(before)
        body["session"] = {"model": "m"}
        error = (await http.post(place, json=body)).json()["error"]
        assert (error["code"], error["param"]) == ("unknown_parameter", "session")
        body = {"transport": {"type": "webrtc", "sdp": await other.offer()}}
        refused = await http.post(place, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_sdp")
        absent = await http.post(f"{place}x", json=body)
        assert (absent.status_code, absent.json()["error"]["code"]) == (404, "session_not_found")
        refused = await http.post(f"{PATH}/{await live.start()}", json=body)
        code = refused.json()["error"]["code"]
        assert (refused.status_code, code) == (400, "invalid_event_for_transport")


async def test_a_frame_locked_model_is_heard_forked_and_let_go(open_house: OpenHouse) -> None:
    backend = create_backend(msgspec.msgpack.encode(DuplexScriptOptions()), Pulse())
    async with open_house(backend=backend) as house, client(house) as live:
        session_id = await live.start(store=True)
        for _ in range(4):
            await live.send("session.input_audio.append", audio=LOUD)
        while not any(base64.b64decode((await live.until("session.output_audio.delta"))["delta"])):
            pass
        async with client(house, f"{PATH}/{session_id}/fork") as forked:
            await forked.send("session.start", session={})
            await forked.until("session.started")
            await forked.until("session.output_audio.delta")
            await forked.send("session.close")
            await forked.until("session.closed")
            assert await forked.close_code() == 1000
        await live.send("session.close")
        assert (await live.until("session.closed"))["reason"] == "close_requested"
        assert await live.close_code() == 1000
        await emptied(house)
