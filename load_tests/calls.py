"""How soon WebRTC calls are set up, and what they leave behind."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aioice.ice
import anyio
import httpx
from aiortc import (
    AudioStreamTrack,
    RTCConfiguration,
    RTCPeerConnection,
    RTCSessionDescription,
)

from load_tests.clock import now
from load_tests.report import Json, spread
from load_tests.server import MEBIBYTE, Server, ServerError, Usage, open_files

WARM_UP = 20
"""Calls before the first measurement: caches and pools fill once."""
SETTLE = 3.0
PATIENCE = 60.0


class CallFailed(Exception):
    """A call did not come about."""


async def run_calls(server: Server, calls: int, at_once: int) -> tuple[dict[str, Json], list[str]]:
    """Set up and hang up many calls, some of them at a time.

    ``setup_ms`` is from the offer that is sent to the first event on the data channel.
    """
    problems: list[str] = []
    await _call(server, WARM_UP, 4, problems)
    before, files_before = await _settled(server), open_files(server.pid)
    took = await _call(server, calls, at_once, problems)
    after, files_after = await _settled(server), open_files(server.pid)
    figures: dict[str, Json] = {
        "calls": calls,
        "calls_failed": len(problems),
        "at_once": at_once,
        "setup_ms": spread([1000 * value for value in took]),
        "cpu_ms_a_call": round(1000 * (after.cpu_seconds - before.cpu_seconds) / calls, 1),
        "rss_before_mb": round(before.resident / MEBIBYTE, 1),
        "rss_after_mb": round(after.resident / MEBIBYTE, 1),
        "growth_mb": round((after.resident - before.resident) / MEBIBYTE, 2),
        "open_files_before": files_before,
        "open_files_after": files_after,
    }
    return figures, problems


async def _call(server: Server, calls: int, at_once: int, problems: list[str]) -> list[float]:
    took: list[float] = []
    left = calls
    # Stock aiortc never calls from a loopback address, and the server may have no other.
    aioice.ice.get_host_addresses = lambda use_ipv4, use_ipv6: ["127.0.0.1"]

    async def worker(http: httpx.AsyncClient) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            try:
                async with _caller(http) as seconds:
                    took.append(seconds)
            except (CallFailed, httpx.HTTPError, TimeoutError) as error:
                problems.append(f"{type(error).__name__}: {error}")

    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(
        base_url=server.url, headers=headers, limits=limits, timeout=PATIENCE
    ) as http:
        async with anyio.create_task_group() as tasks:
            for _ in range(at_once):
                tasks.start_soon(worker, http)
    return took


@asynccontextmanager
async def _caller(http: httpx.AsyncClient) -> AsyncIterator[float]:
    """A call that is on; the seconds that it took to come about."""
    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    greeted = anyio.Event()
    try:
        connection.addTrack(AudioStreamTrack())
        channel = connection.createDataChannel("oai-events")
        channel.on("message", lambda _: greeted.set())
        await connection.setLocalDescription(await connection.createOffer())
        began = now()
        response = await http.post(
            "/v1/realtime/calls",
            content=connection.localDescription.sdp,
            headers={"Content-Type": "application/sdp"},
        )
        if response.status_code != 201:
            raise CallFailed(response.text)
        answer = RTCSessionDescription(response.text, "answer")
        with anyio.fail_after(PATIENCE):
            await connection.setRemoteDescription(answer)
            await greeted.wait()
        yield now() - began
    finally:
        with anyio.CancelScope(shield=True):
            await connection.close()


async def _settled(server: Server) -> Usage:
    await anyio.sleep(SETTLE)
    usage = server.usage()
    if usage is None:
        raise ServerError("the server can't be watched: let it be started here")
    return usage
