import socket
from pathlib import Path

import anyio
import pytest

from duologue.engines.unix_stream import UnixStream, connect, listen_at

pytestmark = pytest.mark.anyio


def pair() -> tuple[UnixStream, UnixStream]:
    near, far = socket.socketpair()
    return UnixStream(near), UnixStream(far)


async def test_bytes_arrive_however_many_there_are() -> None:
    near, far = pair()
    data = bytes(range(256)) * 20_000
    received = bytearray()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(near.send, data)
            while len(received) < len(data):
                received += await far.receive(65_536)
    assert received == data
    await near.aclose()
    await far.aclose()


async def test_the_end_of_the_other_side_is_the_end_of_the_stream() -> None:
    near, far = pair()
    await near.send(b"last words")
    await near.aclose()
    assert await far.receive(100) == b"last words"
    with pytest.raises(anyio.EndOfStream):
        await far.receive(100)
    with pytest.raises(anyio.BrokenResourceError):
        await far.send(b"nobody")
    await far.aclose()


async def test_a_closed_stream_is_closed_for_good() -> None:
    near, far = pair()
    for _ in range(2):
        await near.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await near.receive(1)
    with pytest.raises(anyio.ClosedResourceError):
        await near.send(b"x")
    await far.aclose()


async def test_closing_wakes_a_reader() -> None:
    near, far = pair()
    with anyio.fail_after(30), pytest.raises(ExceptionGroup) as raised:
        async with anyio.create_task_group() as group:
            group.start_soon(near.receive, 1)
            await anyio.wait_all_tasks_blocked()
            await near.aclose()
    assert raised.group_contains(anyio.ClosedResourceError)
    await far.aclose()


async def test_a_read_that_is_cancelled_as_data_comes_leaves_no_trace() -> None:
    near, far = pair()
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


async def test_connections_are_served_side_by_side_until_the_listener_ends(
    tmp_path: Path,
) -> None:
    path = tmp_path / "socket"

    async def echo(stream: UnixStream) -> None:
        await stream.send(await stream.receive(100))
        await stream.aclose()

    with anyio.fail_after(30):
        async with listen_at(path) as listener:
            async with anyio.create_task_group() as group:
                group.start_soon(listener.serve, echo)
                one, two = await connect(path), await connect(path)
                await two.send(b"two")
                assert await two.receive(100) == b"two"
                await one.send(b"one")
                assert await one.receive(100) == b"one"
                group.cancel_scope.cancel()
        with pytest.raises(FileNotFoundError):
            await connect(path)
    await one.aclose()
    await two.aclose()


async def test_a_path_that_is_taken_is_refused(tmp_path: Path) -> None:
    async with listen_at(tmp_path / "socket"):
        with pytest.raises(OSError):
            async with listen_at(tmp_path / "socket"):
                raise AssertionError("two listen")
        stream = await connect(tmp_path / "socket")
        await stream.aclose()


async def test_a_socket_file_that_nobody_listens_at_refuses(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(ConnectionRefusedError):
        await connect(path)
