"""What clients, networks and workers do wrong, against a real server: the session goes on."""

import base64
import json
import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import pytest
from anyio.abc import SocketStream
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from duologue.sessions.playback import HEARD_SHARE
from load_tests.server import Server, serving
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.weights]

Event = dict[str, Any]
MEBIBYTE = 1024 * 1024


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """For tests that break it."""
    with serving(["--engine", "scripted"]) as running:
        yield running


async def sessions(server: Server) -> float:
    """How many sessions the server says that it has."""
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"{server.url}/metrics")).text
    [line] = [line for line in text.splitlines() if line.startswith("duologue_sessions ")]
    return float(line.split()[1])


async def until_gone(server: Server, count: float = 0) -> None:
    """Wait until the server holds so many sessions."""
    with anyio.fail_after(PATIENCE_S):
        while await sessions(server) != count:  # noqa: ASYNC110 (it is another process)
            await anyio.sleep(0.02)


async def refused(wire: Any, event_id: str | None = None) -> Event:
    """The one error that the last event gets."""
    event: Event = await wire.receive()
    while event["type"] != "error":
        event = await wire.receive()
    error: Event = event["error"]
    assert error["event_id"] == event_id
    return error


# -- what can't be read ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"response.create"',
        "{}",
        '{"type": 7}',
        '{"type": null}',
        '{"type": "response.listen"}',
        '{"type": "session.updated"}',
        '{"type": "input_audio_buffer.append"}',
        '{"type": "input_audio_buffer.append", "audio": 7}',
        '{"type": "input_audio_buffer.append", "audio": "*not base64*"}',
        '{"type": "input_audio_buffer.append", "audio": "AAAA\\nAAAA"}',
        '{"type": "session.update"}',
        '{"type": "session.update", "session": []}',
        '{"type": "session.update", "session": {"instructions": 7}}',
        '{"type": "conversation.item.create", "item": "hello"}',
        '{"type": "conversation.item.truncate", "item_id": "a", "content_index": "0"}',
        '{"type": "response.create", "response": 1}',
        '{"type": "session.update", "session": {"audio": {"output": {"speed": "fast"}}}}',
        "\ufeff{}",
        "[" * 100_000,
        '{"type": "session.update", "session": ' + '{"a":' * 50_000,
    ],
    ids=lambda text: repr(text[:40]),
)
async def test_what_is_no_event_gets_one_error(
    server: Server, open_session: Any, text: str
) -> None:
    async with open_session(server) as wire:
        await wire.socket.send(text)
        assert (await refused(wire))["type"] == "invalid_request_error"
        await wire.works()
        assert sum(event["type"] == "error" for event in wire.seen) == 1


async def test_a_frame_that_is_not_utf_8_ends_its_own_connection_only(
    server: Server, open_session: Any
) -> None:
    async with open_session(server) as other, RawSocket(server) as raw:
        await raw.send(Frame(Opcode.TEXT, b"\xff\xfe"))
        assert await raw.closed() == 1007
        await other.works()


@pytest.mark.parametrize("length", [1, 3, 959])
async def test_audio_of_odd_length_is_refused_whole(
    server: Server, open_session: Any, length: int
) -> None:
    async with open_session(server) as wire:
        await wire.listen(None)
        audio = base64.b64encode(bytes(length)).decode()
        await wire.send("input_audio_buffer.append", audio=audio, event_id="odd")
        assert (await refused(wire, "odd"))["code"] == "invalid_audio"
        await wire.send("input_audio_buffer.commit", event_id="nothing")
        assert (await refused(wire, "nothing"))["code"] == "input_audio_buffer_commit_empty"
        await wire.works()


async def test_an_event_with_15_mebibytes_of_audio_is_taken(
    server: Server, open_session: Any
) -> None:
    async with open_session(server) as wire:
        await wire.listen(None)
        audio = base64.b64encode(bytes(15 * MEBIBYTE)).decode()
        await wire.send("input_audio_buffer.append", audio=audio)
        await wire.send("input_audio_buffer.commit")
        await wire.until("input_audio_buffer.committed")


async def test_an_event_with_16_mebibytes_of_audio_gets_an_error(
    server: Server, open_session: Any
) -> None:
    async with open_session(server) as wire:
        audio = base64.b64encode(bytes(15 * MEBIBYTE + 2)).decode()
        await wire.send("input_audio_buffer.append", audio=audio, event_id="large")
        assert (await refused(wire, "large"))["code"] == "event_too_large"
        await wire.works()


async def test_a_frame_beyond_every_bound_ends_its_own_connection_only(
    server: Server, open_session: Any
) -> None:
    async with open_session(server) as other, open_session(server) as wire:
        with pytest.raises(ConnectionClosed) as closed:
            await wire.socket.send("x" * (40 * MEBIBYTE))
            await wire.receive()
        assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
        await other.works()


async def test_binary_frames_are_refused_and_after_several_the_connection_is_closed(
    server: Server, open_session: Any
) -> None:
    async with open_session(server) as wire:
        await wire.socket.send(b"\x00\x01")
        assert "text" in (await refused(wire))["message"]
        await wire.works()
        with pytest.raises(ConnectionClosed) as closed:
            for _ in range(20):
                await wire.socket.send(b"\x00\x01")
                await refused(wire)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1003


async def test_events_after_a_close_frame_are_not_acted_on(
    server: Server, open_session: Any
) -> None:
    async with RawSocket(server) as raw:
        append = b'{"type":"input_audio_buffer.append","audio":"AAAA"}'
        close = Frame(Opcode.CLOSE, (1000).to_bytes(2, "big"))
        await raw.send(close, Frame(Opcode.TEXT, append), Frame(Opcode.TEXT, b"{"))
        assert await raw.closed() == 1000
    async with open_session(server) as other:
        await other.works()


# -- what comes at the wrong time -----------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fields", "code"),
    [
        ("input_audio_buffer.commit", {}, "input_audio_buffer_commit_empty"),
        ("response.cancel", {}, "response_cancel_not_active"),
        ("response.cancel", {"response_id": "resp_none"}, "response_cancel_not_active"),
        ("conversation.item.delete", {"item_id": "none"}, "item_delete_invalid_item_id"),
        ("conversation.item.retrieve", {"item_id": "none"}, "item_retrieve_invalid_item_id"),
        (
            "conversation.item.truncate",
            {"item_id": "none", "content_index": 0, "audio_end_ms": 0},
            "item_truncate_invalid_item_id",
        ),
        (
            "conversation.item.create",
            {
                "item": {"type": "message", "role": "user", "content": []},
                "previous_item_id": "none",
            },
            "item_create_invalid_previous_item_id",
        ),
        ("output_audio_buffer.clear", {}, "invalid_event_for_transport"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_refers_to_nothing_gets_an_error_with_its_id(
    server: Server, open_session: Any, kind: str, fields: Event, code: str
) -> None:
    async with open_session(server) as wire:
        await wire.send(kind, event_id="mine", **fields)
        assert (await refused(wire, "mine"))["code"] == code
        await wire.works()


async def test_an_id_is_taken_once(server: Server, open_session: Any) -> None:
    async with open_session(server) as wire:
        await wire.say("One.", id="twice")
        await wire.until("conversation.item.done")
        content = [{"type": "input_text", "text": "Two."}]
        item = {"id": "twice", "type": "message", "role": "user", "content": content}
        await wire.send("conversation.item.create", item=item, event_id="again")
        assert (await refused(wire, "again"))["code"] == "item_create_duplicate_item_id"
        await wire.works()


async def test_of_two_answers_asked_for_at_once_one_is_given(
    server: Server, open_session: Any
) -> None:
    async with open_session(server) as wire:
        await wire.say("Hello.")
        await wire.send("response.create", event_id="first")
        await wire.send("response.create", event_id="second")
        assert (await refused(wire, "second"))["code"] == "conversation_already_has_active_response"
        assert (await wire.finished())["status"] == "completed"
        assert sum(event["type"] == "response.created" for event in wire.seen) == 1
        await wire.works()


# -- cutting answers ------------------------------------------------------------------------


async def truncate(wire: Any, item_id: str, audio_end_ms: int) -> None:
    await wire.send(
        "conversation.item.truncate",
        item_id=item_id,
        content_index=0,
        audio_end_ms=audio_end_ms,
        event_id="cut",
    )


async def test_an_answer_without_audio_yet_is_cut_to_nothing(
    server: Server, open_session: Any
) -> None:
    async with open_session(server) as wire:
        await wire.say("Give me a long answer.")
        await wire.send("response.create")
        item = (await wire.until("response.output_item.added"))["item"]
        await truncate(wire, item["id"], 0)
        truncated = await wire.until("conversation.item.truncated")
        assert (truncated["item_id"], truncated["audio_end_ms"]) == (item["id"], 0)
        await wire.send("response.cancel")
        await wire.finished()
        await wire.works()


async def spoken_ms(wire: Any) -> tuple[str, int]:
    """A finished answer: its item, and how long its audio is."""
    await wire.say("Hello.")
    assert (await wire.answer())["status"] == "completed"
    deltas = [event for event in wire.seen if event["type"] == "response.output_audio.delta"]
    size = sum(len(base64.b64decode(event["delta"])) for event in deltas)
    return deltas[-1]["item_id"], size * 1000 // 48_000


@pytest.mark.parametrize("beyond", [0, 1, 85, 500])
async def test_a_cut_a_little_beyond_the_end_is_made_at_the_end(
    server: Server, open_session: Any, beyond: int
) -> None:
    async with open_session(server) as wire:
        item_id, length = await spoken_ms(wire)
        await truncate(wire, item_id, length + beyond)
        truncated = await wire.until("conversation.item.truncated")
        assert truncated["audio_end_ms"] == length
        await wire.works()


async def test_a_cut_far_beyond_the_end_gets_one_error(server: Server, open_session: Any) -> None:
    async with open_session(server) as wire:
        item_id, length = await spoken_ms(wire)
        await truncate(wire, item_id, length + 60_000)
        assert (await refused(wire, "cut"))["code"] == "item_truncate_invalid_audio_end"
        await wire.works()


async def test_what_the_user_said_can_not_be_cut(server: Server, open_session: Any) -> None:
    async with open_session(server) as wire:
        await wire.say("Mine.", id="mine")
        await truncate(wire, "mine", 0)
        assert (await refused(wire, "cut"))["type"] == "invalid_request_error"
        await wire.works()


def said(prompt: Event) -> list[str]:
    """The texts of the assistant's messages in a prompt."""
    return [
        "".join(part["text"] for part in message["parts"])
        for message in prompt["messages"]
        if message["role"] == "assistant"
    ]


@pytest.mark.parametrize("heard_ms", [150, 450, 1_333, 2_750, 4_040, 5_999])
async def test_after_an_interruption_the_next_prompt_holds_only_what_was_played(
    server: Server, open_session: Any, question: bytes, heard_ms: int
) -> None:
    async with open_session(server) as wire:
        await wire.listen({"type": "server_vad", "create_response": False})
        await wire.say("Give me a long answer.")
        await wire.send("response.create")
        received = 0
        while received < heard_ms * 48:
            delta = await wire.until("response.output_audio.delta")
            received += len(base64.b64decode(delta["delta"]))
        await wire.speak(question)
        await wire.until("input_audio_buffer.speech_started")
        done = await wire.finished()
        assert done["status_details"]["reason"] == "turn_detected"
        await truncate(wire, delta["item_id"], heard_ms)
        truncated = await wire.until("conversation.item.truncated")
        assert truncated["audio_end_ms"] == heard_ms
        await wire.has_seen("input_audio_buffer.committed")
        words = words_heard(heard_ms)
        whole = transcript(wire.seen)
        kept = " ".join(said(await wire.prompt())).split()
        assert kept == whole.split()[: len(kept)]
        assert max(0, words - 1) <= len(kept) <= words


def words_heard(heard_ms: int) -> int:
    """The script says a word every 300 ms; a word counts once HEARD_SHARE of it was heard."""
    return math.floor(heard_ms / 300 + 1 - HEARD_SHARE)


def transcript(events: list[Event]) -> str:
    """What the answers in these events say."""
    kind = "response.output_audio_transcript.delta"
    return "".join(event["delta"] for event in events if event["type"] == kind)


async def test_without_a_cut_the_next_prompt_holds_at_most_what_was_sent(
    server: Server, open_session: Any, question: bytes
) -> None:
    async with open_session(server) as wire:
        await wire.listen({"type": "server_vad", "create_response": False})
        await wire.say("Give me a long answer.")
        await wire.send("response.create")
        for _ in range(10):
            await wire.until("response.output_audio.delta")
        await wire.speak(question)
        done = await wire.finished()
        assert done["status"] == "cancelled"
        await wire.has_seen("input_audio_buffer.committed")
        deltas = [event for event in wire.seen if event["type"] == "response.output_audio.delta"]
        sent_ms = sum(len(base64.b64decode(event["delta"])) for event in deltas) // 48
        kept = " ".join(said(await wire.prompt())).split()
        assert kept == transcript(wire.seen).split()[: len(kept)]
        assert 1 <= len(kept) <= words_heard(sent_ms)


# -- clients that behave badly --------------------------------------------------------------


async def test_a_flood_of_events_does_not_hold_up_another_session(
    server: Server, open_session: Any
) -> None:
    async with open_session(server) as other, open_session(server) as wire:
        flooded = False

        async def flood() -> None:
            nonlocal flooded
            for number in range(10_000):
                await wire.socket.send(f'{{"type":"flood","event_id":"{number}"}}')
            await wire.send("session.update", session={"type": "realtime"}, event_id="last")
            flooded = True

        async def count() -> None:
            kinds: dict[str, int] = {}
            event = await wire.receive()
            while event["type"] != "session.updated":
                code = event["error"]["code"]
                kinds[code] = kinds.get(code, 0) + 1
                event = await wire.receive()
            assert kinds == {"unknown_event": 10_000, "rate_limit_exceeded": 1}

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(flood)
            tasks.start_soon(count)
            for _ in range(3):
                await other.works()
            assert not any(event["type"] == "session.updated" for event in wire.seen)
        assert flooded


async def test_a_client_that_never_reads_is_cut_off(own_server: Server, open_session: Any) -> None:
    async with open_session(own_server) as other:
        async with RawSocket(own_server) as raw:
            text = json.dumps(
                {
                    "type": "conversation.item.create",
                    "item": {
                        "id": "large",
                        "type": "message",
                        "role": "user",
                        "content": [{"type": "input_text", "text": "x" * MEBIBYTE}],
                    },
                }
            )
            await raw.send(Frame(Opcode.TEXT, text.encode()))
            retrieve = b'{"type":"conversation.item.retrieve","item_id":"large"}'
            before = resident(own_server)
            await raw.send(*[Frame(Opcode.TEXT, retrieve)] * 500)
            await other.works()
            await until_gone(own_server, 1)
            assert resident(own_server) - before < 200 * MEBIBYTE
        await other.works()


def resident(server: Server) -> int:
    return int(psutil.Process(server.pid).memory_info().rss)


async def test_a_client_that_vanishes_in_the_middle_of_an_answer_leaves_nothing(
    own_server: Server, open_session: Any
) -> None:
    async with open_session(own_server) as other:
        async with open_session(own_server) as wire:
            await wire.say("Give me a long answer.")
            await wire.send("response.create")
            await wire.until("response.output_audio.delta")
            assert await sessions(own_server) == 2
            wire.socket.transport.abort()
            await until_gone(own_server, 1)
        await other.works()


async def test_an_event_that_comes_a_byte_at_a_time_is_an_event(
    server: Server, open_session: Any
) -> None:
    async with open_session(server) as other, RawSocket(server) as raw:
        event = b'{"type":"response.cancel","event_id":"slow"}'
        data = Frame(Opcode.TEXT, event).serialize(mask=True)
        for position in range(len(data) - 1):
            await raw.stream.send(data[position : position + 1])
            if position == len(data) // 2:
                await other.works()
        await raw.stream.send(data[-1:])
        await raw.until_error("slow")


async def test_a_handshake_that_never_ends_is_nobody_else_s_problem(
    server: Server, open_session: Any
) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        for byte in b"GET /v1/realtime?model=any HTTP/1.1\r\n":
            await stream.send(bytes([byte]))
        async with open_session(server) as other:
            await other.works()
        await stream.send(b"Host: ")


# -- workers that die -----------------------------------------------------------------------


def worker_of(server: Server) -> psutil.Process:
    """The server's busiest child that is a worker of ours."""
    [worker] = [
        child
        for child in psutil.Process(server.pid).children()
        if "resource_tracker" not in " ".join(child.cmdline())
    ]
    return worker


async def test_a_worker_that_is_killed_ends_its_answers_and_is_replaced(
    own_server: Server, open_session: Any
) -> None:
    async with open_session(own_server) as wire, open_session(own_server) as idle:
        await wire.say("Give me a long answer.")
        await wire.send("response.create")
        await wire.until("response.output_audio.delta")
        killed = worker_of(own_server)
        killed.send_signal(signal.SIGKILL)
        done = await finished_with_error(wire)
        assert done["response"]["status"] == "failed"
        assert done["response"]["status_details"]["error"]["code"] == "engine_unavailable"
        errors = [event for event in wire.seen if event["type"] == "error"]
        assert len(errors) == 1
        for session in (wire, idle):
            await works_again(session)
        assert not any(event["type"] == "error" for event in idle.seen)
        assert worker_of(own_server).pid != killed.pid


async def finished_with_error(wire: Any) -> Event:
    """The end of the answer, and the error, in whichever order they come."""
    seen: dict[str, Event] = {}
    while {"error", "response.done"} - seen.keys():
        event = await wire.receive()
        seen[event["type"]] = event
    return seen["response.done"]


async def works_again(wire: Any) -> None:
    """The next answer that is not refused while the worker starts is a whole one."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            await wire.say("Are you there?")
            await wire.send("response.create")
            event = await wire.receive()
            while event["type"] not in ("response.done", "error"):
                event = await wire.receive()
            if event["type"] == "response.done" and event["response"]["status"] == "completed":
                return


# -- below the client library ---------------------------------------------------------------


class RawSocket:
    """A WebSocket connection, frame by frame; nothing is read unless asked for."""

    def __init__(self, server: Server) -> None:
        host, port = server.url.removeprefix("http://").split(":")
        self._address = (host, int(port))
        self._received = b""

    async def __aenter__(self) -> "RawSocket":
        self.stream: SocketStream = await anyio.connect_tcp(*self._address)
        await self.stream.send(
            b"GET /v1/realtime?model=any HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        while b"\r\n\r\n" not in self._received:
            self._received += await self.stream.receive()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        assert b" 101 " in head
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stream.aclose()

    async def send(self, *frames: Frame) -> None:
        await self.stream.send(b"".join(frame.serialize(mask=True) for frame in frames))

    async def _frame(self) -> tuple[int, bytes]:
        """The next frame of the server: its opcode and what it holds."""
        while True:
            data = self._received
            if len(data) >= 2:
                size, start = data[1] & 127, 2
                if size == 126:
                    size, start = int.from_bytes(data[2:4], "big"), 4
                elif size == 127:
                    size, start = int.from_bytes(data[2:10], "big"), 10
                if len(data) >= start + size:
                    self._received = data[start + size :]
                    return data[0] & 15, data[start : start + size]
            with anyio.fail_after(PATIENCE_S):
                self._received += await self.stream.receive()

    async def closed(self) -> int:
        """The code with which the server closes."""
        while True:
            opcode, data = await self._frame()
            if opcode == Opcode.CLOSE:
                return int.from_bytes(data[:2], "big")
            if opcode == Opcode.TEXT:
                assert json.loads(data)["type"] != "error"

    async def until_error(self, event_id: str) -> None:
        while True:
            opcode, data = await self._frame()
            event = json.loads(data) if opcode == Opcode.TEXT else {"type": ""}
            if event["type"] == "error" and event["error"]["event_id"] == event_id:
                return
