"""Calls, as callers and those beside them meet them."""

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from duologue.engines.script import Clause, Reply
from duologue.realtime.ice_agent import IceSettings
from duologue.realtime.rtc_peer import PeerSettings
from duologue.web import http_connection
from duologue.web.settings import Settings
from load_tests.server import free_port
from tests.caller import Loud, calling, without_candidates

pytestmark = pytest.mark.anyio

OpenHouse = Callable[..., AbstractAsyncContextManager[Any]]
Validated = Callable[[str], dict[str, Any]]

OFFERS = Path(__file__).parent.parent / "data" / "sdp"
KEY = "key-of-the-house"
LOCKED = Settings(engine="scripted", api_keys=(KEY,))
SDP = {"Content-Type": "application/sdp"}
SHORT = Reply(clauses=(Clause("Hello. ", 200), Clause("Goodbye.", 200)), first_ms=0, pace=0)
LONG = Reply(clauses=tuple(Clause(f"Word{n}. ", 500) for n in range(20)), first_ms=0, pace=0)


async def refused(response: httpx.Response) -> tuple[int, str]:
    error = response.json()["error"]
    assert error["message"]
    return response.status_code, error["code"]


async def events_until(socket: ClientConnection, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] != kind:
        found.append(json.loads(await socket.recv()))
    return found


async def emptied(house: Any) -> None:
    """Until no call and no session holds a place."""
    while house.service.calls.active or house.service.registry.active:
        await anyio.lowlevel.checkpoint()


# -- a call ---------------------------------------------------------------------------------


async def test_a_call_talks_and_is_heard_and_every_event_is_one_of_openais(
    open_house: OpenHouse, validated: Validated
) -> None:
    async with open_house(replies=(SHORT,), vad=Loud()) as house, house.http() as http:
        async with calling(check=validated) as caller:
            await caller.dial(http)
            caller.microphone.loud = True
            await caller.event("input_audio_buffer.speech_started")
            caller.microphone.loud = False
            await caller.event("output_audio_buffer.stopped")
            await caller.until(caller.heard)
            order = [
                "session.created",
                "input_audio_buffer.speech_started",
                "input_audio_buffer.speech_stopped",
                "input_audio_buffer.committed",
                "response.created",
                "response.content_part.added",
                "output_audio_buffer.started",
                "response.output_audio.done",
                "response.done",
                "output_audio_buffer.stopped",
            ]
            assert [kind for kind in caller.kinds if kind in order] == order
            assert "response.output_audio.delta" not in caller.kinds
        await emptied(house)


async def test_an_interruption_clears_and_truncates_by_itself(open_house: OpenHouse) -> None:
    async with open_house(replies=(LONG,), vad=Loud()) as house, house.http() as http:
        async with calling() as caller:
            await caller.dial(http)
            detection = {"type": "server_vad", "create_response": False}
            audio = {"input": {"turn_detection": detection}}
            caller.send("session.update", session={"type": "realtime", "audio": audio})
            caller.ask("Tell me.")
            await caller.until(lambda: caller.heard(frames=40))
            caller.microphone.loud = True
            cut = await caller.event("conversation.item.truncated")
            assert 60 <= cut["audio_end_ms"] < 9_000
            started = caller.kinds.index("input_audio_buffer.speech_started")
            assert caller.kinds.index("output_audio_buffer.cleared") > started
            # What is heard ends, though ten seconds of it were made.
            caller.microphone.loud = False
            caller.levels.clear()
            await caller.until(lambda: len(caller.levels) > 30)
            assert max(caller.levels[-10:]) < 500
            caller.send("conversation.item.retrieve", item_id=cut["item_id"])
            item = (await caller.event("conversation.item.retrieved"))["item"]
            assert item["content"][0]["transcript"].startswith("Word0.")
            assert "Word19" not in item["content"][0]["transcript"]


async def test_a_caller_can_stop_what_it_hears(open_house: OpenHouse) -> None:
    async with open_house(replies=(LONG,)) as house, house.http() as http, calling() as caller:
        await caller.dial(http)
        caller.ask("Tell me.")
        await caller.until(caller.heard)
        caller.send("response.cancel")
        caller.send("output_audio_buffer.clear")
        await caller.event("output_audio_buffer.cleared")
        assert (await caller.event("response.done"))["response"]["status"] == "cancelled"
        assert (await caller.event("conversation.item.truncated"))["audio_end_ms"] < 9_000


async def test_an_offer_without_candidates_connects(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http, calling() as caller:
        await caller.dial(http, without_candidates(await caller.offer()))
        assert caller.kinds == ["session.created"]


async def test_text_alone_needs_no_audio(open_house: OpenHouse) -> None:
    async with open_house(replies=(SHORT,)) as house, house.http() as http:
        async with calling(audio=False) as caller:
            await caller.dial(http)
            caller.send(
                "session.update", session={"type": "realtime", "output_modalities": ["text"]}
            )
            caller.ask("Hi")
            done = await caller.event("response.done")
            assert done["response"]["output"][0]["content"][0]["text"] == "Hello. Goodbye."
            caller.send("output_audio_buffer.clear", event_id="e")
            error = (await caller.event("error"))["error"]
            assert (error["code"], error["event_id"]) == ("invalid_event_for_transport", "e")


async def test_the_session_may_come_with_the_offer(open_house: OpenHouse) -> None:
    session = {"type": "realtime", "instructions": "Be brief.", "audio": {"output": {"speed": 1.2}}}
    async with open_house() as house, house.http() as http, calling() as caller:
        parts = {
            "sdp": (None, await caller.offer(), "application/sdp"),
            "session": (None, json.dumps(session), "application/json"),
        }
        await caller.take(await http.post("/v1/realtime/calls", files=parts))
        created = caller.events[0]["session"]
        assert (created["instructions"], created["audio"]["output"]["speed"]) == ("Be brief.", 1.2)


async def test_browsers_may_send_the_parts_as_files(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http, calling() as caller:
        parts = {"sdp": ("blob", await caller.offer(), "application/sdp")}
        await caller.take(await http.post("/openai/v1/realtime/calls", files=parts))
        assert caller.call_id.startswith("rtc_")


async def test_bad_events_are_answered_and_the_call_goes_on(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http, calling() as caller:
        await caller.dial(http)
        # What a browser does not send, and others may.
        caller.connection.sctp._remote_max_message_size = 0
        caller.channel.send("no json")
        caller.channel.send(b"binary")
        caller.send("input_audio_buffer.append", audio="AAAA" * 70_000, event_id="large")
        caller.send("no.such.event", event_id="odd")
        await caller.event("error", 4)
        codes = [event["error"]["code"] for event in caller.all("error")]
        assert codes == ["invalid_json", "invalid_event", "event_too_large", "unknown_event"]
        caller.send("session.update", session={"type": "realtime", "instructions": "On."})
        assert (await caller.event("session.updated"))["session"]["instructions"] == "On."


# -- who may call ---------------------------------------------------------------------------


async def test_a_call_needs_a_key_where_one_is_needed(open_house: OpenHouse) -> None:
    async with open_house(LOCKED) as house, house.http() as http:
        response = await http.post("/v1/realtime/calls", content="v=0", headers=SDP)
        assert await refused(response) == (401, "invalid_api_key")
        elsewhere = {**SDP, "Origin": "https://elsewhere.example", "Authorization": f"Bearer {KEY}"}
        response = await http.post("/v1/realtime/calls", content="v=0", headers=elsewhere)
        assert await refused(response) == (403, "origin_not_allowed")


async def test_a_client_secret_calls_with_its_session(open_house: OpenHouse) -> None:
    async with open_house(LOCKED) as house, house.http(Authorization=f"Bearer {KEY}") as http:
        session = {"type": "realtime", "instructions": "From the secret."}
        made = await http.post("/v1/realtime/client_secrets", json={"session": session})
        secret = {"Authorization": f"Bearer {made.json()['value']}"}
        async with house.http(**secret) as browser, calling() as caller:
            await caller.dial(browser)
            assert caller.events[0]["session"]["instructions"] == "From the secret."
            path = f"/v1/realtime/calls/{caller.call_id}/hangup"
            assert await refused(await browser.post(path)) == (403, "insufficient_permissions")
            with pytest.raises(InvalidStatus) as caught:
                await house.connect(
                    f"/v1/realtime?call_id={caller.call_id}", additional_headers=secret
                )
            assert caught.value.response.status_code == 403


async def test_a_full_house_says_when_to_come_back(open_house: OpenHouse) -> None:
    settings = Settings(engine="scripted", max_sessions=1)
    async with open_house(settings) as house, house.http() as http, calling() as caller:
        await caller.dial(http)
        async with calling() as late:
            response = await http.post(
                "/v1/realtime/calls", content=await late.offer(), headers=SDP
            )
            assert await refused(response) == (429, "engine_overloaded")
            assert int(response.headers["Retry-After"]) >= 1


async def test_before_the_model_is_ready_and_while_it_drains_nobody_comes_in(
    open_house: OpenHouse,
) -> None:
    offer = (OFFERS / "chrome-no-candidates-red.sdp").read_text()
    async with open_house(ready=False) as house, house.http() as http:
        response = await http.post("/v1/realtime/calls", content=offer, headers=SDP)
        assert await refused(response) == (503, "engine_unavailable")
    async with open_house() as house, house.http() as http:
        await house.service.registry.drain(0)
        response = await http.post("/v1/realtime/calls", content=offer, headers=SDP)
        assert await refused(response) == (503, "engine_unavailable")


# -- offers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "chrome-no-candidates-red",
        "firefox-session-level-attributes",
        "firefox-stopped-audio-section",
        "safari-data-channel-only-mdns",
        "safari-old-audio-video-data",
    ],
)
async def test_what_browsers_offer_is_answered_and_given_up_when_nobody_connects(
    open_house: OpenHouse, name: str
) -> None:
    offer = (OFFERS / f"{name}.sdp").read_text()
    peers = PeerSettings(IceSettings(addresses=("127.0.0.1",)), connect_seconds=0.1)
    async with open_house(peers=peers) as house, house.http() as http:
        response = await http.post("/v1/realtime/calls", content=offer, headers=SDP)
        assert response.status_code == 201
        assert response.headers["content-type"] == "application/sdp"
        assert response.headers["Location"].startswith("/v1/realtime/calls/rtc_")
        assert response.text.count("\r\nm=") == offer.count("\nm=")
        found = [line for line in response.text.split("\r\n") if line.startswith("a=candidate")]
        assert found and all(" 127.0.0.1 " in line for line in found)
        await emptied(house)


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        ((OFFERS / "sip-plain-rtp.sdp").read_text(), SDP, 400, "invalid_sdp"),
        ("hello", SDP, 400, "invalid_sdp"),
        ("", SDP, 400, "invalid_sdp"),
        (b"v=0\xff", SDP, 400, "invalid_value"),
        ("v=0\r\n" + "m=audio 9 UDP/TLS/RTP/SAVPF 0\r\n" * 100, SDP, 400, "invalid_sdp"),
        ("v=0\r\n" + "a=x\r\n" * 60_000, SDP, 400, "invalid_sdp"),
        ("v=0\r\n" + "a=x\r\n" * 300_000, SDP, 413, "event_too_large"),
        ("v=0", {"Content-Type": "text/html"}, 400, "invalid_sdp"),
        ("v=0", {"Content-Type": "multipart/form-data"}, 400, "invalid_value"),
    ],
)
async def test_what_is_no_offer_is_refused_and_takes_no_place(
    open_house: OpenHouse, body: str | bytes, headers: dict[str, str], status: int, code: str
) -> None:
    async with open_house() as house, house.http() as http:
        response = await http.post("/v1/realtime/calls", content=body, headers=headers)
        assert await refused(response) == (status, code)
        assert house.service.registry.active == 0


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"session": (None, "{}")}, "missing_required_parameter"),
        ({"sdp": (None, "v=0"), "session": (None, "{")}, "invalid_json"),
        ({"sdp": (None, "v=0"), "session": (None, "[]")}, "invalid_type"),
        ({"sdp": (None, "v=0"), "session": (None, '{"type": "cake"}')}, "invalid_value"),
        ({"sdp": ("file", b"v=0\xff")}, "invalid_value"),
        ({"sdp": ("file", b"v" * 1_100_000)}, "event_too_large"),
        ({"sdp": (None, "v" * 1_100_000)}, "invalid_value"),
        ({"other": ("file", b"v" * 3_000_000)}, "event_too_large"),
        ({f"part{n}": (None, "x") for n in range(9)}, "invalid_value"),
    ],
)
async def test_a_form_that_is_wrong_is_refused_with_the_reason(
    open_house: OpenHouse, parts: dict[str, Any], code: str
) -> None:
    async with open_house() as house, house.http() as http:
        response = await http.post("/v1/realtime/calls", files=parts)
        assert (await refused(response))[1] == code


async def test_a_form_without_an_end_is_not_read_to_its_end(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "LARGEST_REST", 1024 * 1024)
    told = 0

    async def parts() -> AsyncIterator[bytes]:
        nonlocal told
        yield b'--x\r\nContent-Disposition: form-data; name="sdp"; filename="a"\r\n\r\n'
        while True:
            told += 65536
            yield b"v" * 65536

    async with open_house() as house, house.http() as http:
        headers = {"content-type": "multipart/form-data; boundary=x"}
        with contextlib.suppress(httpx.TransportError):
            response = await http.post("/v1/realtime/calls", content=parts(), headers=headers)
            assert await refused(response) == (413, "event_too_large")
    assert told < 40_000_000


async def test_without_a_free_port_a_call_is_put_off(open_house: OpenHouse) -> None:
    with anyio.CancelScope():
        listener = await anyio.create_udp_socket(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        peers = PeerSettings(IceSettings(addresses=("127.0.0.1",), ports=(port, port)))
        async with listener, open_house(peers=peers) as house, house.http() as http:
            offer = (OFFERS / "chrome-no-candidates-red.sdp").read_text()
            response = await http.post("/v1/realtime/calls", content=offer, headers=SDP)
            assert await refused(response) == (503, "no_port_free")
            await emptied(house)


async def test_calls_at_once_share_a_port_where_there_is_only_one(open_house: OpenHouse) -> None:
    settings = Settings(engine="scripted", rtc_ports=str(free_port()))
    async with open_house(settings, replies=(SHORT,)) as house, house.http() as http:
        async with calling() as one, calling() as other:
            async with anyio.create_task_group() as tasks:
                for caller in (one, other):
                    tasks.start_soon(caller.dial, http)
            for caller in (one, other):
                caller.ask("Are you there?")
            for caller in (one, other):
                await caller.until(caller.heard)
                answer = caller.connection.remoteDescription.sdp
                assert f" {settings.rtc_ports} typ host" in answer
        await emptied(house)


# -- a later offer --------------------------------------------------------------------------


async def test_a_later_offer_that_changes_nothing_is_answered_as_before(
    open_house: OpenHouse,
) -> None:
    async with open_house() as house, house.http() as http, calling() as caller:
        offer = await caller.offer()
        first = await caller.dial(http, offer)
        path = f"/v1/realtime/calls/{caller.call_id}"
        again = await http.post(path, content=offer, headers=SDP)
        assert again.status_code == 200

        def credentials(answer: str) -> list[str]:
            return [line for line in answer.splitlines() if line.startswith("a=ice-")]

        assert credentials(again.text) == credentials(first.text)
        assert " 2 IN IP4" in again.text.splitlines()[1]


async def test_a_later_offer_of_somebody_else_is_refused(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http, calling() as caller, calling() as other:
        await caller.dial(http)
        path = f"/v1/realtime/calls/{caller.call_id}"
        response = await http.post(path, content=await other.offer(), headers=SDP)
        assert await refused(response) == (400, "invalid_sdp")
        response = await http.post(f"{path}x", content="v=0", headers=SDP)
        assert await refused(response) == (404, "call_not_found")


# -- the end of a call ----------------------------------------------------------------------


async def test_hanging_up_ends_a_call_and_gives_its_place_back(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http, calling() as caller:
        await caller.dial(http)
        path = f"/v1/realtime/calls/{caller.call_id}/hangup"
        assert (await http.post(path)).status_code == 200
        assert house.service.calls.active == 0
        await caller.until(lambda: caller.gone)
        assert await refused(await http.post(path)) == (404, "call_not_found")


async def test_what_is_for_sip_calls_alone_is_refused(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http, calling() as caller:
        await caller.dial(http)
        for verb in ("accept", "reject", "refer"):
            path = f"/v1/realtime/calls/{caller.call_id}/{verb}"
            assert await refused(await http.post(path, json={})) == (409, "call_not_sip")
            nobody = f"/v1/realtime/calls/rtc_nobody/{verb}"
            assert await refused(await http.post(nobody)) == (404, "call_not_found")


async def test_a_caller_that_goes_gives_its_place_back(open_house: OpenHouse) -> None:
    async with open_house(replies=(LONG,)) as house, house.http() as http:
        async with calling() as caller:
            await caller.dial(http)
            caller.ask("Tell me.")
            await caller.until(caller.heard)
        await emptied(house)
        async with calling() as caller:
            await caller.dial(http)
            assert caller.kinds == ["session.created"]


async def test_a_caller_that_vanishes_is_waited_for_and_then_let_go(open_house: OpenHouse) -> None:
    ice = IceSettings(addresses=("127.0.0.1",), consent_interval=0.02, consent_failures=3)
    settings = Settings(engine="scripted")
    async with open_house(settings, peers=PeerSettings(ice)) as house, house.http() as http:
        async with calling() as caller:
            await caller.dial(http)
            call = house.service.calls.find(caller.call_id)
            for protocol in caller.connection.sctp.transport.transport._connection._protocols:
                protocol.transport.abort()
            while call.conversation.session.connection.value != "detached":
                await anyio.lowlevel.checkpoint()
            call.conversation.session._detached_at -= 1000
            call.conversation._wake.set()
            await emptied(house)


# -- beside the call ------------------------------------------------------------------------


async def test_a_sideband_sees_and_steers_the_session(
    open_house: OpenHouse, validated: Validated
) -> None:
    async with open_house(replies=(SHORT,)) as house, house.http() as http, calling() as caller:
        await caller.dial(http)
        path = f"/v1/realtime?call_id={caller.call_id}"
        async with house.connect(path) as first, house.connect(path) as second:
            for socket in (first, second):
                assert validated(await socket.recv())["type"] == "session.created"
            update = {"type": "realtime", "instructions": "From beside."}
            await first.send(json.dumps({"type": "session.update", "session": update}))
            for socket in (first, second):
                seen = json.loads(await socket.recv())
                assert seen["session"]["instructions"] == "From beside."
            assert (await caller.event("session.updated"))["session"]["instructions"]
            await second.send(json.dumps({"type": "response.create"}))
            kinds = [e["type"] for e in await events_until(first, "output_audio_buffer.stopped")]
            assert "response.output_audio.delta" not in kinds
            await caller.event("output_audio_buffer.stopped")
            assert [k for k in caller.kinds if k in kinds] == caller.kinds[2:]
            await second.close()
            caller.ask("And on?")
            await caller.event("response.done", 2)
        async with house.connect(path) as late:
            assert json.loads(await late.recv())["session"]["instructions"] == "From beside."
            await http.post(f"/v1/realtime/calls/{caller.call_id}/hangup")
            with pytest.raises(ConnectionClosed):
                await late.recv()
            assert late.close_code == 1000


async def test_a_sideband_of_no_call_is_refused(open_house: OpenHouse) -> None:
    async with open_house() as house:
        with pytest.raises(InvalidStatus) as caught:
            await house.connect("/v1/realtime?call_id=rtc_nobody")
        assert caught.value.response.status_code == 404
        assert json.loads(caught.value.response.body)["error"]["code"] == "call_not_found"
