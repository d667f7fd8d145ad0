"""What sessions leave behind, and what they cost while nothing happens."""

from contextlib import AsyncExitStack

import anyio

from load_tests.client import Client, ClientError
from load_tests.clock import now
from load_tests.report import Json, spread
from load_tests.server import MEBIBYTE, Server, ServerError, Usage, open_files
from load_tests.socket_client import open_socket

AT_ONCE = 8
WARM_UP = 50
"""Connections before the first measurement: caches and pools fill once."""

SETTLE = 3.0


async def run_churn(
    server: Server, connections: int, idle: int, model: str = ""
) -> tuple[dict[str, Json], list[str]]:
    """Connect and disconnect many times, then hold some sessions that do nothing."""
    problems: list[str] = []
    await _connect(server, WARM_UP, model, problems)
    before, files_before = await _settled(server), open_files(server.pid)
    begin = now()
    connect = await _connect(server, connections, model, problems)
    seconds = now() - begin
    after, files_after = await _settled(server), open_files(server.pid)
    per_idle = await _idle_cost(server, idle, model, problems)
    figures: dict[str, Json] = {
        "connections": connections,
        "connections_failed": len(problems),
        "connections_a_second": round(connections / seconds, 1),
        "connect_ms": spread([1000 * value for value in connect]),
        "rss_before_mb": round(before.resident / MEBIBYTE, 1),
        "rss_after_mb": round(after.resident / MEBIBYTE, 1),
        "growth_mb": round((after.resident - before.resident) / MEBIBYTE, 2),
        "private_growth_mb": round((after.private - before.private) / MEBIBYTE, 2),
        "open_files_before": files_before,
        "open_files_after": files_after,
        "idle_sessions": idle,
        "idle_session_mb": per_idle,
    }
    return figures, problems


async def _connect(
    server: Server, connections: int, model: str, problems: list[str]
) -> list[float]:
    """Open and close that many sessions, a few at once. Returns how long each took to open."""
    took: list[float] = []
    left = connections

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            try:
                async with open_socket(server.url, key=server.key, model=model) as client:
                    assert client.created is not None
                    took.append(client.created - client.opened)
            except ClientError as error:
                problems.append(str(error))

    async with anyio.create_task_group() as tasks:
        for _ in range(AT_ONCE):
            tasks.start_soon(worker)
    return took


async def _idle_cost(server: Server, idle: int, model: str, problems: list[str]) -> float | None:
    """Mebibytes that each further session costs while nothing happens on it."""
    if not idle:
        return None
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(open_socket(server.url, key=server.key, model=model))
        before = await _settled(server)
        held: list[Client] = []
        try:
            for _ in range(idle):
                client = open_socket(server.url, key=server.key, model=model)
                held.append(await stack.enter_async_context(client))
        except ClientError as error:
            problems.append(f"after {len(held)} idle sessions: {error}")
        after = await _settled(server)
    if not held:
        return None
    return round((after.resident - before.resident) / MEBIBYTE / len(held), 3)


async def _settled(server: Server) -> Usage:
    await anyio.sleep(SETTLE)
    usage = server.usage()
    if usage is None:
        raise ServerError("the server can't be watched: let it be started here")
    return usage
