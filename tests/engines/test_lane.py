"""One socket of a worker: messages in order, in bounds, and the memory beside it."""

import os
import socket
from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import msgspec
import pytest

from duologue.engines.engine import (
    CloseSession,
    Command,
    Hear,
    Respond,
    ResponseRequest,
    TurnJudged,
)
from duologue.engines.frames import (
    FrameReader,
    FrameWriter,
    LaneBroken,
    MessageTooLarge,
    Placed,
)
from duologue.engines.lane import Lane, LaneLimits, Mapped, Offered, Returned
from duologue.engines.lanes import (
    ToGateway,
    ToWorker,
    gateway_lane,
    worker_lane,
)
from duologue.engines.shared_memory import OutgoingMemory
from duologue.engines.unix_stream import UnixStream
from tests.engines.wire import Wire, framed
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


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
        with anyio.fail_after(PATIENCE_S):
            while len(received) < len(heard):
                received += await far.receive()
    assert received == heard
    assert near.queued_bytes == 0


async def test_the_end_of_the_stream_breaks_the_lane() -> None:
    with pytest.raises(LaneBroken, match="closed"):
        await worker_lane(Wire(), LaneLimits()).receive()


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
        await worker_lane(Wire(framed(payload)), LaneLimits()).receive()


async def test_a_lane_breaks_when_too_much_is_queued() -> None:
    lane = gateway_lane(Wire(), LaneLimits(queue_bytes=1000))
    with pytest.raises(LaneBroken, match="1000 bytes"):
        for _ in range(3):
            lane.send(Hear("u", 0, bytes(800), session="s"))


async def test_a_lane_breaks_when_the_other_side_takes_nothing(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    lane = gateway_lane(sockets[0], LaneLimits(stall_s=0.01))
    lane.send(Hear("u", 0, bytes(4 * 2**20), session="s"))
    with anyio.fail_after(PATIENCE_S), pytest.raises(LaneBroken, match="nothing was taken"):
        await lane.pump()


async def test_what_finds_the_socket_full_arrives_in_its_order(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    limits = LaneLimits(shared_bytes=0)
    near, far = gateway_lane(sockets[0], limits), worker_lane(sockets[1], limits)
    heard: list[object] = []
    sent = 0
    with anyio.fail_after(PATIENCE_S):
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
    with anyio.fail_after(PATIENCE_S):
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


async def test_a_queue_that_has_been_written_has_room_again() -> None:
    wire = Wire()
    lane = gateway_lane(wire, LaneLimits(queue_bytes=1000))
    for _ in range(5):
        lane.send(Hear("u", 0, bytes(1200), session="s"))
        await lane.flush()
        assert lane.queued_bytes == 0
    assert len(wire.sent) == 5


async def test_a_message_that_no_frame_can_hold_is_refused_and_the_lane_goes_on() -> None:
    wire = Wire()
    lane = gateway_lane(wire, LaneLimits(frame_bytes=1000))
    with pytest.raises(MessageTooLarge, match="Hear of"):
        lane.send(Hear("u", 0, bytes(1000), session="s"))
    assert lane.queued_bytes == 0
    kept = Hear("u", 0, bytes(10), session="s")
    lane.send(kept)
    await lane.flush()
    assert await worker_lane(Wire(*wire.sent), LaneLimits()).receive() == [kept]


async def test_a_frame_over_the_limit_breaks_the_lane() -> None:
    lane = worker_lane(Wire((1001).to_bytes(4, "big")), LaneLimits(frame_bytes=1000))
    with pytest.raises(LaneBroken, match="1001 bytes"):
        await lane.receive()


async def test_a_frame_of_no_messages_is_passed_over() -> None:
    hear = Hear("u", 0, b"", session="s")
    frames = framed(msgspec.msgpack.encode([])), framed(msgspec.msgpack.encode([hear]))
    assert await worker_lane(Wire(*frames), LaneLimits()).receive() == [hear]


# -- its end --------------------------------------------------------------------------------


async def test_who_waits_for_messages_is_told_of_the_close(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    lane = worker_lane(sockets[0], LaneLimits())
    told: list[str] = []

    async def receive() -> None:
        with pytest.raises(LaneBroken) as caught:
            await lane.receive()
        told.append(str(caught.value))

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            await lane.aclose()
    assert len(told) == 1 and "closed" in told[0]


async def test_a_pump_ends_when_the_other_side_has_gone(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    lane = gateway_lane(sockets[0], LaneLimits())

    async def pump() -> None:
        with pytest.raises(LaneBroken, match="closed"):
            await lane.pump()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(pump)
            await anyio.wait_all_tasks_blocked()
            await sockets[1].aclose()
            lane.send(Hear("u", 0, b"", session="s"))


async def test_what_is_sent_after_the_close_goes_nowhere_and_says_so(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    lane = gateway_lane(sockets[0], LaneLimits())
    await lane.aclose()
    await lane.aclose()
    lane.send(Hear("u", 0, b"", session="s"))
    with pytest.raises(LaneBroken, match="closed"):
        await lane.flush()
    with pytest.raises(LaneBroken, match="closed"):
        await lane.receive()


# -- shared memory --------------------------------------------------------------------------

LARGE = Hear("u", 0, bytes(range(256)) * 400, session="s")


async def exchanged(near: Lane[ToGateway], far: Lane[ToWorker], *messages: Command) -> list[object]:
    """What comes at the far end when these are sent at the near one."""
    for message in messages:
        near.send(message)
    found: list[object] = []
    async with anyio.create_task_group() as group:
        group.start_soon(near.flush)
        with anyio.fail_after(PATIENCE_S):
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
    wire = Wire(*relayed)
    far = worker_lane(wire, LaneLimits())
    assert await far.receive() == [LARGE]
    await far.flush()
    assert wire.sent == []
    await near.aclose()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_closed_lanes_leave_no_descriptor_and_no_memory() -> None:
    before = open_descriptors()
    near_end, far_end = (UnixStream(end) for end in socket.socketpair())
    near, far = gateway_lane(near_end, LaneLimits()), worker_lane(far_end, LaneLimits())
    await exchanged(near, far, LARGE)
    await settled(near, far)
    assert near.sharing
    assert open_descriptors() > before
    for lane in (near, far):
        await lane.aclose()
        await lane.aclose()
    assert not near.sharing
    assert open_descriptors() == before


async def test_memory_that_is_offered_again_is_let_go_of(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    """One offer is taken; the rest of the lane is as before."""
    far = worker_lane(sockets[1], LaneLimits())
    memory = OutgoingMemory(64 * 1024)
    word = FrameWriter(1000)
    counts = []
    for number in range(4):
        word.put(Offered(memory.size))
        await sockets[0].send_descriptor(bytes(word.take()), memory.descriptor)
        hear = Hear("u", number, b"", session="s")
        await sockets[0].send(framed(msgspec.msgpack.encode([hear])))
        assert await far.receive() == [hear]
        counts.append(open_descriptors())
    assert len(set(counts)) == 1
    memory.close()
    await far.aclose()


async def test_memory_of_another_size_than_was_said_is_not_used(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    before = open_descriptors()
    far = worker_lane(sockets[1], LaneLimits())
    memory = OutgoingMemory(64 * 1024)
    word = FrameWriter(1000)
    word.put(Offered(2 * memory.size))
    word.put(Hear("u", 0, b"", session="s"))
    await sockets[0].send_descriptor(bytes(word.take()), memory.descriptor)
    memory.close()
    assert await far.receive() == [Hear("u", 0, b"", session="s")]
    await far.flush()
    assert far.queued_bytes == 0
    assert open_descriptors() == before


async def test_a_lane_breaks_when_the_other_side_does_not_even_take_the_offer(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    while sockets[0].send_nowait(bytes(64 * 1024)):
        pass
    lane = gateway_lane(sockets[0], LaneLimits(stall_s=0.01))
    lane.send(LARGE)
    with anyio.fail_after(PATIENCE_S), pytest.raises(LaneBroken, match="nothing was taken"):
        await lane.flush()
    await lane.aclose()
