import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args

import anyio
import anyio.lowlevel
import msgspec
import pytest
from hypothesis import given, strategies as st

from duologue.engines import engine
from duologue.engines.engine import (
    Acknowledge,
    CancelResponse,
    CloseSession,
    Command,
    EndUtterance,
    Hear,
    JudgeTurn,
    Output,
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechGenerated,
    TranscriptFinal,
    TurnJudged,
)
from duologue.engines.frames import (
    FrameReader,
    FrameWriter,
    LaneBroken,
    MessageTooLarge,
    Placed,
)
from duologue.engines.lane import Lane, LaneLimits, Mapped, Returned
from duologue.engines.lanes import (
    Hello,
    Link,
    ToGateway,
    ToWorker,
    gateway_lane,
    new_gateway_name,
    send_command,
    send_output,
    worker_lane,
)
from duologue.engines.unix_stream import UnixStream
from duologue.engines.worker_directory import make_private, private_directory, socket_paths

pytestmark = pytest.mark.anyio

REQUEST = ResponseRequest(instructions="", messages=())


class _Wire:
    """Keeps what is sent; what is received is given."""

    def __init__(self, *given: bytes) -> None:
        self.given = list(given)
        self.sent: list[bytes] = []

    async def receive(self, max_bytes: int) -> bytes:
        if not self.given:
            raise anyio.EndOfStream
        return self.given.pop(0)

    async def send(self, item: bytes | memoryview) -> None:
        self.sent.append(bytes(item))

    async def aclose(self) -> None:
        self.given = []


@pytest.fixture
async def sockets() -> AsyncIterator[tuple[UnixStream, UnixStream]]:
    """Two ends of one Unix stream socket."""
    near, far = (UnixStream(end) for end in socket.socketpair())
    yield near, far
    await near.aclose()
    await far.aclose()


def sent_by(lane: Lane[ToWorker] | Lane[ToGateway]) -> bool:
    return lane.queued_bytes > 0


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def links() -> tuple[Link[ToGateway], Link[ToWorker]]:
    limits = LaneLimits()
    gateway = Link(gateway_lane(_Wire(), limits), gateway_lane(_Wire(), limits))
    worker = Link(worker_lane(_Wire(), limits), worker_lane(_Wire(), limits))
    return gateway, worker


# -- frames ---------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(1, 17), min_size=1))
def test_frames_survive_being_cut_anywhere(payloads: list[bytes], cuts: list[int]) -> None:
    data = b"".join(framed(payload) for payload in payloads)
    reader = FrameReader(64)
    found, at, turn = [], 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        found += reader.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert found == payloads


def test_a_frame_over_the_limit_is_refused_before_it_has_come() -> None:
    with pytest.raises(LaneBroken, match="65 bytes"):
        FrameReader(64).feed((65).to_bytes(4, "big"))


def test_messages_that_are_queued_together_leave_in_one_frame() -> None:
    writer = FrameWriter(1000)
    messages = [Hello("a"), Hello("b"), Hello("c")]
    for message in messages:
        writer.put(message)
    (payload,) = FrameReader(1000).feed(bytes(writer.take()))
    assert msgspec.msgpack.decode(payload, type=list[Hello]) == messages
    assert writer.take() == b""
    assert writer.queued_bytes == 0


def test_a_message_that_no_frame_can_hold_leaves_the_others_alone() -> None:
    writer = FrameWriter(1000)
    writer.put(Hello("a"))
    with pytest.raises(MessageTooLarge, match="Hello of"):
        writer.put(Hello("b" * 1000))
    writer.put(Hello("c"))
    (payload,) = FrameReader(1000).feed(bytes(writer.take()))
    assert msgspec.msgpack.decode(payload, type=list[Hello]) == [Hello("a"), Hello("c")]


def test_a_long_queue_is_cut_into_frames_that_keep_its_order() -> None:
    writer = FrameWriter(2**20)
    heard = [Hear("u", n, bytes(50_000), session="s") for n in range(20)]
    for hear in heard:
        writer.put(hear)
    assert writer.queued_bytes > 20 * 50_000
    reader = FrameReader(2**20)
    frames = []
    while frame := writer.take():
        frames += reader.feed(bytes(frame))
    assert len(frames) > 1
    decoded = [
        hear for payload in frames for hear in msgspec.msgpack.decode(payload, type=list[Hear])
    ]
    assert decoded == heard


# -- which lane -----------------------------------------------------------------------------


async def test_nothing_passes_the_audio_that_it_is_about() -> None:
    for command in (
        Hear("u", 0, b"", session="s"),
        EndUtterance("u", 0, session="s"),
        JudgeTurn("u", 0, session="s"),
        Respond(1, REQUEST, session="s"),
    ):
        gateway, _ = links()
        send_command(gateway, command)
        assert sent_by(gateway.data) and not sent_by(gateway.control)


async def test_a_close_and_an_acknowledgement_overtake() -> None:
    for command in (CloseSession(session="s"), Acknowledge(1, 100, session="s")):
        gateway, _ = links()
        send_command(gateway, command)
        assert sent_by(gateway.control) and not sent_by(gateway.data)


async def test_a_cancel_takes_both_lanes() -> None:
    gateway, _ = links()
    send_command(gateway, CancelResponse(1, session="s"))
    assert sent_by(gateway.control) and sent_by(gateway.data)


async def test_the_end_of_an_answer_does_not_pass_its_speech() -> None:
    for output in (
        SpeechGenerated(1, b"", session="s"),
        ResponseEnded(1, "completed", session="s"),
    ):
        _, worker = links()
        send_output(worker, output)
        assert sent_by(worker.data) and not sent_by(worker.control)


async def test_what_was_heard_overtakes_speech() -> None:
    for output in (
        TranscriptFinal("u", "", 0.0, session="s"),
        TurnJudged("u", 0, 1.0, session="s"),
    ):
        _, worker = links()
        send_output(worker, output)
        assert sent_by(worker.control) and not sent_by(worker.data)


async def test_everything_with_a_generation_comes_by_the_data_lane() -> None:
    for kind in get_args(Output):
        _, worker = links()
        values = {"session": "s", "reason": "completed", "words": (), "seconds": 0.0}
        fields = {
            field.name: values.get(field.name, 0 if field.type is int else "")
            for field in msgspec.structs.fields(kind)
            if field.required
        }
        send_output(worker, kind(**fields))
        assert sent_by(worker.data) == ("generation" in kind.__struct_fields__)


@pytest.mark.parametrize("union", [Command, Output])
def test_every_message_of_the_contract_can_be_told_apart(union: object) -> None:
    kinds = get_args(union)
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)
    messages = {
        value
        for value in vars(engine).values()
        if isinstance(value, type) and "session" in getattr(value, "__struct_fields__", ())
    }
    assert set(get_args(Command)) | set(get_args(Output)) == messages - {engine._Message}


# -- lanes ----------------------------------------------------------------------------------


async def test_messages_cross_a_socket_in_order(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    near = gateway_lane(sockets[0], LaneLimits())
    far = worker_lane(sockets[1], LaneLimits())
    heard = [Hear("u", n, bytes(100_000), session="s") for n in range(30)]
    for hear in heard:
        near.send(hear)
    received: list[ToWorker] = []
    async with anyio.create_task_group() as group:
        group.start_soon(near.flush)
        with anyio.fail_after(60):
            while len(received) < len(heard):
                received += await far.receive()
    assert received == heard
    assert near.queued_bytes == 0


async def test_the_end_of_the_stream_breaks_the_lane() -> None:
    with pytest.raises(LaneBroken, match="closed"):
        await worker_lane(_Wire(), LaneLimits()).receive()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode([{"type": "Nonsense"}]),
        msgspec.msgpack.encode([{"type": "Hear", "session": "s", "utterance": 5}]),
        msgspec.msgpack.encode({"type": "Hello", "gateway": "g"}),
    ],
)
async def test_a_frame_that_is_not_understood_breaks_the_lane(payload: bytes) -> None:
    with pytest.raises(LaneBroken, match="decoded"):
        await worker_lane(_Wire(framed(payload)), LaneLimits()).receive()


async def test_a_lane_breaks_when_too_much_is_queued() -> None:
    lane = gateway_lane(_Wire(), LaneLimits(queue_bytes=1000))
    with pytest.raises(LaneBroken, match="1000 bytes"):
        for _ in range(3):
            lane.send(Hear("u", 0, bytes(800), session="s"))


async def test_a_lane_breaks_when_the_other_side_takes_nothing(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    lane = gateway_lane(sockets[0], LaneLimits(stall_s=0.01))
    lane.send(Hear("u", 0, bytes(4 * 2**20), session="s"))
    with anyio.fail_after(60), pytest.raises(LaneBroken, match="nothing was taken"):
        await lane.pump()


async def test_what_finds_the_socket_full_arrives_in_its_order(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    limits = LaneLimits(shared_bytes=0)
    near, far = gateway_lane(sockets[0], limits), worker_lane(sockets[1], limits)
    heard: list[object] = []
    sent = 0
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(near.pump)
            for _ in range(8):
                for _ in range(100):
                    near.send(Hear("u", sent, bytes(3840), session="s"))
                    sent += 1
                await anyio.lowlevel.checkpoint()
            while len(heard) < sent:
                heard += await far.receive()
            group.cancel_scope.cancel()
    assert [message.start for message in heard if isinstance(message, Hear)] == list(range(sent))
    await near.aclose()
    await far.aclose()


async def test_a_pumped_lane_writes_without_another_task(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    """All of one turn of the event loop in one frame, at its end."""
    near, far = gateway_lane(sockets[0], LaneLimits()), worker_lane(sockets[1], LaneLimits())
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(near.pump)
            await anyio.wait_all_tasks_blocked()
            messages = [Hear("u", number, b"ab", session="s") for number in range(3)]
            for message in messages:
                near.send(message)
            await anyio.lowlevel.checkpoint()
            assert near.queued_bytes == 0
            assert await far.receive() == messages
            group.cancel_scope.cancel()
    await near.aclose()
    await far.aclose()


async def test_a_link_ends_with_the_first_lane_that_breaks(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    broken = worker_lane(_Wire(framed(b"\xc1")), LaneLimits())
    link = Link(worker_lane(sockets[0], LaneLimits()), broken)

    async def ignore(messages: list[ToWorker]) -> None:
        pass

    with anyio.fail_after(60):
        assert "decoded" in await link.run(ignore, ignore)
        with pytest.raises(anyio.EndOfStream):
            await sockets[1].receive(100)


async def test_a_link_that_was_failed_keeps_the_first_reason(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    link = Link(worker_lane(sockets[0], LaneLimits()), worker_lane(sockets[1], LaneLimits()))
    link.fail("first")
    link.fail("second")

    async def ignore(messages: list[ToWorker]) -> None:
        pass

    with anyio.fail_after(60):
        assert await link.run(ignore, ignore) == "first"


# -- where ----------------------------------------------------------------------------------


def test_a_path_that_is_too_long_for_a_socket_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        socket_paths(Path("/tmp") / ("x" * 100))


def test_a_private_directory_has_room_for_sockets_and_is_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("x" * 80)))
    directory = private_directory("a-name-that-is-much-too-long")
    socket_paths(directory)
    assert not directory.exists()
    for _ in range(2):
        make_private(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.rmdir()


def test_a_directory_that_others_can_enter_is_not_accepted(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(shared)
    for path in (shared, link):
        with pytest.raises(PermissionError):
            make_private(path)


def test_no_two_gateways_have_one_name() -> None:
    assert len({new_gateway_name() for _ in range(100)}) == 100


# -- shared memory --------------------------------------------------------------------------

LARGE = Hear("u", 0, bytes(range(256)) * 400, session="s")


async def exchanged(near: Lane[ToGateway], far: Lane[ToWorker], *messages: Command) -> list[object]:
    """What comes at the far end when these are sent at the near one."""
    for message in messages:
        near.send(message)
    found: list[object] = []
    async with anyio.create_task_group() as group:
        group.start_soon(near.flush)
        with anyio.fail_after(60):
            while len(found) < len(messages):
                found += await far.receive()
    return found


async def settled(near: Lane[ToGateway], far: Lane[ToWorker]) -> None:
    """Let the near end hear what the far one has to say about memory."""
    await far.flush()
    far.send(TurnJudged("u", 0, 0.5, session="s"))
    await far.flush()
    await near.receive()


@pytest.fixture
async def lanes(
    sockets: tuple[UnixStream, UnixStream],
) -> AsyncIterator[tuple[Lane[ToGateway], Lane[ToWorker]]]:
    near, far = gateway_lane(sockets[0], LaneLimits()), worker_lane(sockets[1], LaneLimits())
    yield near, far
    await near.aclose()
    await far.aclose()


async def test_large_messages_leave_the_socket_once_memory_is_shared(
    lanes: tuple[Lane[ToGateway], Lane[ToWorker]],
) -> None:
    near, far = lanes
    assert await exchanged(near, far, LARGE) == [LARGE]
    assert not near.sharing
    await settled(near, far)
    assert near.sharing
    near.send(LARGE)
    assert near.queued_bytes < 200
    small = Hear("u", 1, b"ab", session="s")
    near.send(small)
    assert await exchanged(near, far) == []
    assert await far.receive() == [LARGE, small]


async def test_a_long_text_goes_through_the_memory_too(
    lanes: tuple[Lane[ToGateway], Lane[ToWorker]],
) -> None:
    near, far = lanes
    request = ResponseRequest(instructions="long " * 20_000, messages=())
    message = Respond(1, request, session="s")
    assert await exchanged(near, far, message) == [message]
    await settled(near, far)
    near.send(message)
    assert near.queued_bytes < 200
    assert await exchanged(near, far) == []
    assert await far.receive() == [message]


async def test_a_placed_field_that_its_message_lacks_breaks_the_lane(
    lanes: tuple[Lane[ToGateway], Lane[ToWorker]],
) -> None:
    near, far = lanes
    await exchanged(near, far, LARGE)
    rest = msgspec.msgpack.encode(CloseSession(session="s"))
    near.send(Placed(0, 10, "session", rest))
    await near.flush()
    with pytest.raises(LaneBroken, match="no bytes 'session'"):
        await far.receive()


async def test_blocks_are_given_back_as_they_are_read(
    lanes: tuple[Lane[ToGateway], Lane[ToWorker]],
) -> None:
    near, far = lanes
    await exchanged(near, far, LARGE)
    await settled(near, far)
    # Twenty times what the memory holds.
    for _ in range(20 * LaneLimits().shared_bytes // len(LARGE.pcm) // 16):
        assert await exchanged(near, far, *[LARGE] * 16) == [LARGE] * 16
        await settled(near, far)
    near.send(LARGE)
    assert near.queued_bytes < 200


async def test_when_the_memory_is_full_messages_go_through_the_socket_in_their_order(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    limits = LaneLimits(shared_bytes=256 * 1024)
    near, far = gateway_lane(sockets[0], limits), worker_lane(sockets[1], limits)
    await exchanged(near, far, LARGE)
    await settled(near, far)
    heard = [Hear("u", number, LARGE.pcm, session="s") for number in range(10)]
    assert await exchanged(near, far, *heard) == heard
    await near.aclose()
    await far.aclose()


@pytest.mark.parametrize("end", ["sender", "receiver"])
async def test_without_shared_memory_everything_goes_through_the_socket(
    lanes: tuple[Lane[ToGateway], Lane[ToWorker]], monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError("none to be had")

    name = "OutgoingMemory" if end == "sender" else "IncomingMemory"
    monkeypatch.setattr(f"duologue.engines.lane.{name}", fails)
    near, far = lanes
    for _ in range(3):
        assert await exchanged(near, far, LARGE) == [LARGE]
        await settled(near, far)
    assert not near.sharing


@pytest.mark.parametrize(
    "message",
    [Placed(0, 10), Mapped(), Returned(1)],
    ids=lambda message: type(message).__name__,
)
async def test_words_about_memory_that_is_not_shared_break_the_lane(
    lanes: tuple[Lane[ToGateway], Lane[ToWorker]], message: msgspec.Struct
) -> None:
    near, far = lanes
    near.send(message)
    await near.flush()
    with pytest.raises(LaneBroken, match="memory"):
        await far.receive()


async def test_a_placed_message_that_is_none_breaks_the_lane(
    lanes: tuple[Lane[ToGateway], Lane[ToWorker]],
) -> None:
    near, far = lanes
    await exchanged(near, far, LARGE)
    near.send(Placed(0, 10))
    await near.flush()
    with pytest.raises(LaneBroken, match="can't be decoded"):
        await far.receive()


async def test_more_blocks_given_back_than_were_put_break_the_lane(
    lanes: tuple[Lane[ToGateway], Lane[ToWorker]],
) -> None:
    near, far = lanes
    await exchanged(near, far, LARGE)
    await settled(near, far)
    far.send(Returned(3))
    await far.flush()
    with pytest.raises(LaneBroken, match="3 blocks"):
        await near.receive()


async def test_an_offer_that_went_through_a_relay_leaves_everything_to_the_socket(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    """The relay passes bytes on, and no descriptors."""
    near = gateway_lane(sockets[0], LaneLimits())
    near.send(LARGE)
    await near.flush()
    relayed: list[bytes] = []
    reader, frames = FrameReader(2**20), 0
    while frames < 2:  # the offer, and the message itself
        relayed.append(await sockets[1].receive())
        frames += len(reader.feed(relayed[-1]))
    wire = _Wire(*relayed)
    far = worker_lane(wire, LaneLimits())
    assert await far.receive() == [LARGE]
    await far.flush()
    assert wire.sent == []
    await near.aclose()
