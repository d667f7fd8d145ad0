import os
import socket
from pathlib import Path

import anyio
import pytest

from duologue.engines.unix_stream import DESCRIPTORS, UnixStream, connect, listen_at
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def test_descriptors_come_with_what_was_sent_and_those_not_taken_are_closed() -> None:
    near, far = (UnixStream(end) for end in socket.socketpair())
    reading, writing = os.pipe()
    for number in range(DESCRIPTORS + 1):
        await near.send_descriptor(bytes([number]), writing)
        assert await far.receive(10) == bytes([number])
    taken = far.take_descriptor()
    assert taken is not None
    os.write(taken, b"through it")
    assert os.read(reading, 100) == b"through it"
    os.close(taken)
    os.close(writing)
    await far.aclose()
    assert far.take_descriptor() is None
    assert os.read(reading, 100) == b"", "somebody still has the other end"
    os.close(reading)
    await near.aclose()


async def test_connections_are_served_side_by_side_until_the_listener_ends(
    tmp_path: Path,
) -> None:
    path = tmp_path / "socket"

    async def echo(stream: UnixStream) -> None:
        await stream.send(await stream.receive(100))
        await stream.aclose()

    with anyio.fail_after(PATIENCE_S):
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
