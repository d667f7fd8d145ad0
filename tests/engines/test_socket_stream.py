import socket

import anyio
import anyio.lowlevel
import pytest

from duologue.engines.socket_stream import SocketStream
from duologue.engines.unix_stream import UnixStream
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

Pair = tuple[SocketStream, SocketStream]


@pytest.fixture(params=[SocketStream, UnixStream])
def pair(request: pytest.FixtureRequest) -> Pair:
    near, far = socket.socketpair()
    return request.param(near), request.param(far)


async def test_bytes_arrive_however_many_there_are(pair: Pair) -> None:
    near, far = pair
    data = bytes(range(256)) * 20_000
    received = bytearray()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            group.start_soon(near.send, data)
            while len(received) < len(data):
                received += await far.receive(65_536)
    assert received == data
    await near.aclose()
    await far.aclose()


async def test_the_end_of_the_other_side_is_the_end_of_the_stream(pair: Pair) -> None:
    near, far = pair
    await near.send(b"last words")
    await near.aclose()
    assert await far.receive(100) == b"last words"
    with pytest.raises(anyio.EndOfStream):
        await far.receive(100)
    with pytest.raises(anyio.BrokenResourceError):
        await far.send(b"nobody")
    await far.aclose()


async def test_a_closed_stream_is_closed_for_good(pair: Pair) -> None:
    near, far = pair
    for _ in range(2):
        await near.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await near.receive(1)
    with pytest.raises(anyio.ClosedResourceError):
        await near.send(b"x")
    await far.aclose()


async def test_closing_wakes_a_reader(pair: Pair) -> None:
    near, far = pair
    with anyio.fail_after(PATIENCE_S), pytest.raises(ExceptionGroup) as raised:
        async with anyio.create_task_group() as group:
            group.start_soon(near.receive, 1)
            await anyio.wait_all_tasks_blocked()
            await near.aclose()
    assert raised.group_contains(anyio.ClosedResourceError)
    await far.aclose()


async def test_a_read_that_is_cancelled_as_data_comes_leaves_no_trace(pair: Pair) -> None:
    near, far = pair
    for _ in range(50):
        async with anyio.create_task_group() as group:
            group.start_soon(far.receive, 1)
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
            await near.send(b"x")
            group.cancel_scope.cancel()
        with anyio.move_on_after(0):
            await far.receive(1)
    await near.aclose()
    await far.aclose()
