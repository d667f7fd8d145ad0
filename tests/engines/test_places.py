"""The worker's side of its gateways, with a backend that only writes down what it is told."""

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import msgspec
import pytest
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.engines import places as places_module
from duologue.engines.engine import (
    CancelResponse,
    CloseSession,
    Command,
    EngineSpec,
    Hear,
    OpenSession,
    Respond,
    ResponseEnded,
    ResponseQueued,
    ResponseRequest,
    SpeechGenerated,
)
from duologue.engines.frames import LaneBroken
from duologue.engines.lane import Lane, LaneLimits
from duologue.engines.lanes import (
    Admitted,
    Draining,
    Hello,
    Refused,
    ToGateway,
    Welcome,
    gateway_lane,
)
from duologue.engines.places import BackendStuck, Places, listen
from duologue.engines.unix_stream import connect
from duologue.engines.worker_directory import socket_paths
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

SPEC = EngineSpec(model="m", voices=("v",), default_voice="v", context_tokens=9)
REQUEST = ResponseRequest(instructions="", messages=())
HEAR = Hear("u", 0, b"\0\0", session="s")
OPEN = OpenSession(session="s")
CLOSE = CloseSession(session="s")


class Gateway:
    """The gateway's end, by hand: messages go out when they are sent."""

    def __init__(self, control: Lane[ToGateway], data: Lane[ToGateway]) -> None:
        self.control = control
        self.data = data

    async def tell(self, lane: Lane[ToGateway], *messages: msgspec.Struct) -> None:
        for message in messages:
            lane.send(message)
        await lane.flush()

    async def open(self, session: str = "s") -> None:
        await self.tell(self.control, OpenSession(session=session))
        assert await self.control.receive() == [Admitted(session)]

    async def aclose(self) -> None:
        await self.control.aclose()
        await self.data.aclose()


class House:
    """Places that listen in a directory, and the commands that got through."""

    def __init__(
        self, directory: Path, places: Places, commands: MemoryObjectReceiveStream[Command]
    ) -> None:
        self.directory = directory
        self.places = places
        self.commands = commands
        self._stack = AsyncExitStack()

    async def lane(self, role: int, limits: LaneLimits | None = None) -> Lane[ToGateway]:
        stream = await connect(socket_paths(self.directory)[role])
        self._stack.push_async_callback(stream.aclose)
        return gateway_lane(stream, limits or LaneLimits())

    async def gateway(self, name: str = "g") -> Gateway:
        gateway = Gateway(await self.lane(0), await self.lane(1))
        await gateway.tell(gateway.control, Hello(name))
        await gateway.tell(gateway.data, Hello(name))
        (welcome,) = await gateway.control.receive()
        assert isinstance(welcome, Welcome)
        return gateway

    async def aclose(self) -> None:
        await self._stack.aclose()


Build = Callable[..., Awaitable[House]]


@asynccontextmanager
async def house(
    directory: Path,
    *,
    capacity: int = 2,
    queued: int = 64,
    limits: LaneLimits | None = None,
    spec: EngineSpec = SPEC,
) -> AsyncIterator[House]:
    send, receive = anyio.create_memory_object_stream[Command](queued)
    places = Places(send, limits=limits or LaneLimits(), retry_after_s=3.0, batch_limit=2)
    places.open(spec, capacity)
    with anyio.fail_after(PATIENCE_S):
        async with send, receive, listen(directory, places):
            built = House(directory, places, receive)
            yield built
            await built.aclose()


# -- coming in ------------------------------------------------------------------------------


async def test_a_gateway_is_welcomed_when_both_lanes_have_come(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        gateway = Gateway(await at.lane(0), await at.lane(1))
        await gateway.tell(gateway.data, Hello("g"))
        await gateway.tell(gateway.control, Hello("g"))
        assert await gateway.control.receive() == [Welcome(SPEC, 2, 2)]


async def test_a_lane_that_does_not_say_hello_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with house(tmp_path) as at:
        lane = await at.lane(0)
        lane.send(OPEN)
        await lane.flush()
        with pytest.raises(LaneBroken):
            await lane.receive()
        assert "did not say hello" in caplog.text
        await at.gateway()


async def test_two_lanes_of_one_kind_are_closed(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        for lane in (first := await at.lane(0), second := await at.lane(0)):
            lane.send(Hello("g"))
            await lane.flush()
        for lane in (first, second):
            with pytest.raises(LaneBroken):
                await lane.receive()


async def test_half_a_gateway_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places_module, "HELLO_S", 0.01)
    async with house(tmp_path) as at:
        silent, half = await at.lane(0), await at.lane(0)
        half.send(Hello("g"))
        await half.flush()
        for lane in (silent, half):
            with pytest.raises(LaneBroken):
                await lane.receive()


async def test_no_socket_file_is_left(tmp_path: Path) -> None:
    async with house(tmp_path):
        assert len(os.listdir(tmp_path)) == 2
    assert os.listdir(tmp_path) == []


# -- sessions -------------------------------------------------------------------------------


async def test_a_session_over_the_capacity_is_refused(tmp_path: Path) -> None:
    async with house(tmp_path, capacity=1) as at:
        gateway = await at.gateway()
        await gateway.open("a")
        await gateway.tell(gateway.control, OpenSession(session="b"))
        assert await gateway.control.receive() == [Refused("b", 3.0, full=True)]


async def test_a_closed_session_makes_room(tmp_path: Path) -> None:
    async with house(tmp_path, capacity=1) as at:
        gateway = await at.gateway()
        await gateway.open("a")
        await gateway.tell(gateway.control, CloseSession(session="a"))
        await gateway.open("b")
        assert at.places.taken == 1


async def test_a_name_that_is_open_breaks_the_link_that_opens_it_again(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        one, two = await at.gateway("one"), await at.gateway("two")
        await one.open()
        await two.tell(two.control, OPEN)
        with pytest.raises(LaneBroken):
            await two.control.receive()
        await one.tell(one.data, HEAR)
        assert [await at.commands.receive() for _ in range(2)] == [OPEN, HEAR]


async def test_what_is_for_a_closed_session_is_dropped(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        gateway = await at.gateway()
        await gateway.open()
        await gateway.tell(gateway.control, CLOSE)
        await gateway.open("other")
        await gateway.tell(gateway.data, HEAR, msgspec.structs.replace(HEAR, session="other"))
        passed = [await at.commands.receive() for _ in range(4)]
        assert passed[1:3] == [CLOSE, OpenSession(session="other")]
        assert passed[3].session == "other"


async def test_one_gateway_can_not_reach_a_session_of_another(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        one, two = await at.gateway("one"), await at.gateway("two")
        await one.open()
        await two.open("mine")
        await two.tell(two.data, HEAR, msgspec.structs.replace(HEAR, session="mine"))
        passed = [await at.commands.receive() for _ in range(3)]
        assert [command.session for command in passed] == ["s", "mine", "mine"]


async def test_a_gateway_that_goes_frees_its_sessions_and_no_others(tmp_path: Path) -> None:
    async with house(tmp_path, capacity=3) as at:
        one, two = await at.gateway("one"), await at.gateway("two")
        await one.open("a")
        await two.open("b")
        await one.open("c")
        for _ in range(3):
            await at.commands.receive()
        await one.aclose()
        closed = {(await at.commands.receive()).session for _ in range(2)}
        assert closed == {"a", "c"}
        assert at.places.taken == 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\0\1\xc1", "decoded"),
        (b"\xff\xff\xff\xff", "limit"),
        (b"\0\0\0\4abcd", "decoded"),
    ],
)
@pytest.mark.parametrize("role", [0, 1])
async def test_bytes_that_are_no_frame_close_that_gateway_alone(
    tmp_path: Path, data: bytes, reason: str, role: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with house(tmp_path) as at:
        good, bad = await at.gateway("good"), await at.gateway("bad")
        await good.open("good")
        await bad.open("bad")
        lane = bad.control if role == 0 else bad.data
        await lane._stream.send(data)
        with pytest.raises(LaneBroken):
            await bad.control.receive()
        passed = [await at.commands.receive() for _ in range(3)]
        assert passed[2] == CloseSession(session="bad")
        assert reason in caplog.text
        await good.tell(good.data, msgspec.structs.replace(HEAR, session="good"))
        assert (await at.commands.receive()).session == "good"


async def test_a_gateway_that_never_reads_is_lost(tmp_path: Path) -> None:
    async with house(tmp_path, limits=LaneLimits(stall_s=0.01)) as at:
        gateway = await at.gateway()
        await gateway.open()
        speech = SpeechGenerated(1, bytes(2**20), session="s")
        for _ in range(4):
            at.places.emit(speech)
        assert [await at.commands.receive() for _ in range(2)] == [OPEN, CLOSE]
        assert at.places.taken == 0


async def test_a_gateway_with_too_much_queued_is_lost(tmp_path: Path) -> None:
    async with house(tmp_path, limits=LaneLimits(queue_bytes=2**20)) as at:
        gateway = await at.gateway()
        await gateway.open()
        for _ in range(3):
            at.places.emit(SpeechGenerated(1, bytes(2**20), session="s"))
        assert [await at.commands.receive() for _ in range(2)] == [OPEN, CLOSE]


async def test_an_output_for_nobody_is_dropped(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        gateway = await at.gateway()
        await gateway.open()
        at.places.emit(SpeechGenerated(1, b"", session="gone"))
        at.places.emit(SpeechGenerated(2, b"", session="s"))
        assert await gateway.data.receive() == [SpeechGenerated(2, b"", session="s")]


# -- cancels --------------------------------------------------------------------------------


async def test_a_cancel_reaches_the_backend_once(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        gateway = await at.gateway()
        await gateway.open()
        respond, cancel = Respond(1, REQUEST, session="s"), CancelResponse(1, session="s")
        await gateway.tell(gateway.data, respond)
        assert [await at.commands.receive() for _ in range(2)] == [OPEN, respond]
        await gateway.tell(gateway.control, cancel)
        assert await at.commands.receive() == cancel
        await gateway.tell(gateway.data, cancel, HEAR)
        assert await at.commands.receive() == HEAR


async def test_a_cancel_that_overtakes_its_answer_does_not_miss_it(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        gateway = await at.gateway()
        await gateway.open()
        respond, cancel = Respond(1, REQUEST, session="s"), CancelResponse(1, session="s")
        await gateway.tell(gateway.control, cancel, OpenSession(session="other"))
        await gateway.control.receive()
        await gateway.tell(gateway.data, respond, cancel)
        passed = [await at.commands.receive() for _ in range(4)]
        assert passed[2:] == [respond, cancel]


async def test_a_cancel_of_an_ended_answer_is_not_passed_on(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        gateway = await at.gateway()
        await gateway.open()
        await gateway.tell(gateway.data, Respond(1, REQUEST, session="s"))
        for _ in range(2):
            await at.commands.receive()
        at.places.emit(ResponseEnded(1, "completed", session="s"))
        await gateway.tell(gateway.data, CancelResponse(1, session="s"), HEAR)
        assert await at.commands.receive() == HEAR


# -- the end --------------------------------------------------------------------------------


async def test_a_drain_refuses_new_sessions_and_waits_for_the_old_ones(tmp_path: Path) -> None:
    async with house(tmp_path) as at, anyio.create_task_group() as group:
        gateway = await at.gateway()
        await gateway.open()
        group.start_soon(at.places.drain)
        assert await gateway.control.receive() == [Draining()]
        await gateway.tell(gateway.control, OpenSession(session="late"))
        assert await gateway.control.receive() == [Refused("late", 3.0, full=False)]
        late = Gateway(await at.lane(0), await at.lane(1))
        await late.tell(late.control, Hello("late"))
        await late.tell(late.data, Hello("late"))
        assert await late.control.receive() == [Welcome(SPEC, 2, 1), Draining()]
        await gateway.tell(gateway.control, CLOSE)


async def test_a_backend_that_takes_no_commands_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places_module, "CLOSE_S", 0.01)
    with pytest.raises(ExceptionGroup) as raised:
        async with house(tmp_path, queued=1) as at:
            gateway = await at.gateway()
            await gateway.open()
            await gateway.aclose()
            await anyio.sleep_forever()
    assert raised.group_contains(BackendStuck)


async def test_a_gateway_may_go_after_the_backend_has_ended(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        gateway = await at.gateway()
        await gateway.open()
        await at.commands.aclose()
        await gateway.aclose()
        await at.places.drain()


# -- the batch lane -------------------------------------------------------------------------

BATCH_SPEC = msgspec.structs.replace(SPEC, batch=1)


async def open_batch(gateway: Gateway, session: str) -> None:
    await gateway.tell(gateway.control, OpenSession(session=session, batch=True))
    assert await gateway.control.receive() == [Admitted(session)]


async def test_the_batch_lane_takes_no_place_from_conversations(tmp_path: Path) -> None:
    async with house(tmp_path, capacity=1, spec=BATCH_SPEC) as at:
        gateway = await at.gateway()
        await open_batch(gateway, "one")
        await open_batch(gateway, "two")
        assert at.places.taken == 0
        await gateway.tell(gateway.control, OpenSession(session="three", batch=True))
        assert await gateway.control.receive() == [Refused("three", 3.0, full=True)]
        await gateway.open("live")
        await gateway.tell(gateway.control, OpenSession(session="late"))
        assert await gateway.control.receive() == [Refused("late", 3.0, full=True)]
        await gateway.tell(gateway.control, CloseSession(session="one"))
        await open_batch(gateway, "three")


async def test_an_engine_without_a_batch_lane_admits_nobody_to_it(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        gateway = await at.gateway()
        await gateway.tell(gateway.control, OpenSession(session="one", batch=True))
        assert await gateway.control.receive() == [Refused("one", 3.0, full=True)]


async def test_an_answer_of_the_batch_lane_reaches_the_backend_when_it_is_its_turn(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, spec=BATCH_SPEC) as at:
        gateway = await at.gateway()
        for session in ("one", "two"):
            await open_batch(gateway, session)
        first, second = (Respond(1, REQUEST, session=session) for session in ("one", "two"))
        await gateway.tell(gateway.data, first, second)
        opened = [await at.commands.receive() for _ in range(3)]
        assert opened[2] == first
        assert await gateway.data.receive() == [
            ResponseQueued(1, 0, session="one"),
            ResponseQueued(1, 1, session="two"),
        ]
        with pytest.raises(anyio.WouldBlock):
            at.commands.receive_nowait()
        at.places.emit(ResponseEnded(1, "completed", session="one"))
        assert await at.commands.receive() == second


async def test_a_cancel_while_it_waits_is_answered_here_and_one_that_runs_is_passed_on(
    tmp_path: Path,
) -> None:
    async with house(tmp_path, spec=BATCH_SPEC) as at:
        gateway = await at.gateway()
        for session in ("one", "two"):
            await open_batch(gateway, session)
            await gateway.tell(gateway.data, Respond(1, REQUEST, session=session))
        for _ in range(3):
            await at.commands.receive()
        outputs: list[ToGateway] = []
        while ResponseQueued(1, 1, session="two") not in outputs:
            outputs += await gateway.data.receive()
        cancels = [CancelResponse(1, session=session) for session in ("two", "one")]
        await gateway.tell(gateway.control, *cancels)
        assert await at.commands.receive() == cancels[1]
        while not any(isinstance(output, ResponseEnded) for output in outputs):
            outputs += await gateway.data.receive()
        assert outputs[-1] == ResponseEnded(1, "cancelled", session="two")


async def test_a_lost_gateway_leaves_nothing_in_the_batch_lane(tmp_path: Path) -> None:
    async with house(tmp_path, spec=BATCH_SPEC) as at:
        gateway, other = await at.gateway(), await at.gateway("other")
        await open_batch(gateway, "one")
        await gateway.tell(gateway.data, Respond(1, REQUEST, session="one"))
        for _ in range(2):
            await at.commands.receive()
        await open_batch(other, "two")
        respond = Respond(1, REQUEST, session="two")
        await other.tell(other.data, respond)
        await at.commands.receive()
        await gateway.aclose()
        assert {await at.commands.receive(), await at.commands.receive()} == {
            CloseSession(session="one"),
            respond,
        }
