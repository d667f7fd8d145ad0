"""The cheap client of a WebSocket, against a library's server."""

import anyio
import pytest
from websockets.asyncio.server import ServerConnection, serve

from load_tests.binary_socket import FrameBuffer, SocketClosed, frame_of, open_binary
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
async def test_messages_of_all_lengths_come_back(size: int) -> None:
    async with serve(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with anyio.fail_after(PATIENCE_S):
            async with open_binary(f"http://127.0.0.1:{port}/") as socket:
                message = bytes(index % 251 for index in range(size))
                await socket.send(frame_of(message))
                assert await socket.receive() == [message]


async def test_pings_are_answered_and_a_close_is_told() -> None:
    async def hold(connection: ServerConnection) -> None:
        await (await connection.ping())
        await connection.send(b"answered")
        await connection.close(1013, "full")

    async with serve(hold, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with anyio.fail_after(PATIENCE_S):
            async with open_binary(f"http://127.0.0.1:{port}/") as socket:
                assert await socket.receive() == [b"answered"]
                with pytest.raises(SocketClosed, match="1013 full"):
                    await socket.receive()


async def test_who_is_refused_is_told() -> None:
    with pytest.raises(SocketClosed, match="can't connect"):
        async with open_binary("http://127.0.0.1:9/"):
            pass


def test_frames_are_found_in_any_pieces() -> None:
    frames = b"\x82\x03abc\x82\x7e\x00\x80" + bytes(128) + b"\x89\x00"
    buffer = FrameBuffer()
    found = [one for byte in frames for one in buffer.feed(bytes([byte]))]
    assert found == [(0x82, b"abc"), (0x82, bytes(128)), (0x89, b"")]
