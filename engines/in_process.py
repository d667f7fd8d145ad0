"""An engine whose backend runs on the caller's own event loop: for tests, and for tools."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.engines.backend import Backend
from duologue.engines.engine import Command
from duologue.engines.lane import LaneLimits
from duologue.engines.places import Places, listen
from duologue.engines.remote import RemoteEngine, RemoteLimits
from duologue.engines.worker_directory import make_private, private_directory


@asynccontextmanager
async def open_in_process(
    backend: Backend, limits: RemoteLimits | None = None, batch_limit: int = 32
) -> AsyncIterator[RemoteEngine]:
    """The same sockets and messages as with a worker, but no process to start or to lose.

    The backend can be looked into while it runs. A failure of it is raised here.
    """
    directory = private_directory("here")
    send, receive = anyio.create_memory_object_stream[Command](64)
    places = Places(send, limits=LaneLimits(), retry_after_s=1.0, batch_limit=batch_limit)

    async def serve(
        commands: MemoryObjectReceiveStream[Command], *, task_status: anyio.abc.TaskStatus[None]
    ) -> None:
        async with commands:
            await backend.run(commands, places.emit, task_status=task_status)

    await anyio.to_thread.run_sync(make_private, directory)
    try:
        async with send, anyio.create_task_group() as group:
            await group.start(serve, receive)
            places.open(backend.spec, backend.capacity)
            async with listen(directory, places):
                engine = RemoteEngine(directory, limits)
                await group.start(engine.run)
                yield engine
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(shutil.rmtree, directory, True)
