"""A server of uvicorn in a test: it is waited for, not asked again and again."""

import socket

import anyio
import uvicorn
from anyio.abc import TaskGroup


async def start_serving(
    tasks: TaskGroup, server: uvicorn.Server, sockets: list[socket.socket] | None = None
) -> None:
    """Serve in a task, on these sockets or as configured; returns when it listens."""
    listening = anyio.Event()
    startup = server.startup

    async def startup_and_tell(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets)
        listening.set()

    server.startup = startup_and_tell  # type: ignore[method-assign]
    tasks.start_soon(server.serve, sockets)
    await listening.wait()
