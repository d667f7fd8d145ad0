"""How long a frame takes from a gateway to a worker process and back.

Beside it stands the floor: as many bytes, thrown to another process over a bare socket pair and
caught again, without an event loop or a message.
"""

import random
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

from duologue.engines.engine import EngineStream, Hear, JudgeTurn
from duologue.engines.frames import FrameWriter
from duologue.engines.lane import LaneLimits
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.remote import RemoteEngine, RemoteLimits
from duologue.engines.worker_directory import make_private, private_directory
from load_tests.clock import now
from load_tests.report import Json, spread

FRAME_S = 0.08
FRAME_BYTES = 24_000 * 2 * 8 // 100
"""80 ms of speech at 24 kHz."""

PICTURE_BYTES = 1280 * 720 * 3
PICTURES_A_SECOND = 10
WARM_UP = 10

FLOOR_THROWS = 2000
ECHO = """
import socket, sys
bare = socket.socket(fileno=int(sys.argv[1]))
while data := bare.recv(65536): bare.sendall(data)
"""
"""The other process of the floor."""


@asynccontextmanager
async def echoing(limits: LaneLimits) -> AsyncIterator[RemoteEngine]:
    """A worker process that echoes, and the engine that reaches it."""
    directory = private_directory("echo")
    config = WorkerConfig(
        name="echo",
        backend="echo",
        directory=str(directory),
        remove_directory=True,
        log_level="warning",
        limits=limits,
    )
    writer = FrameWriter(2**20)
    writer.put(config)
    await anyio.to_thread.run_sync(make_private, directory)
    process = await anyio.open_process(
        [sys.executable, "-m", "load_tests.echo_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=None,
    )
    try:
        assert process.stdin is not None
        await process.stdin.send(bytes(writer.take()))
        engine = RemoteEngine(directory, RemoteLimits(lanes=limits))
        async with anyio.create_task_group() as group:
            group.start_soon(engine.run)
            with anyio.fail_after(30):
                await engine.wait_ready()
            yield engine
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            if process.stdin is not None:
                await process.stdin.aclose()
            await process.wait()


async def run_lanes(sessions: int, seconds: float) -> tuple[dict[str, Json], list[str]]:
    """Audio frames of many sessions, spread over time and all at once; then pictures of one."""
    floor = await anyio.to_thread.run_sync(_floor, FRAME_S / sessions)
    figures: dict[str, Json] = {
        "sessions": sessions,
        "bare_socket_there_and_back_ms": spread([1000 * value for value in floor]),
    }
    for name, limits in (("", LaneLimits()), ("inline_", LaneLimits(shared_bytes=0))):
        async with echoing(limits) as engine:
            if not name:
                for way in ("spread", "together"):
                    took = await _frames(engine, sessions, seconds, way == "together")
                    figures[f"audio_frame_{way}_ms"] = spread([1000 * value for value in took])
            for way in ("there", "there_and_back"):
                took = await _pictures(engine, seconds, way == "there_and_back")
                figures[f"{name}picture_{way}_ms"] = spread([1000 * value for value in took])
    return figures, []


def _floor(interval_s: float) -> list[float]:
    """A frame of sound over a bare socket to a process and back, at the pace of all sessions."""
    took: list[float] = []
    near, far = socket.socketpair()
    frame = bytes(FRAME_BYTES)
    with near:
        with far:
            command = [sys.executable, "-c", ECHO, str(far.fileno())]
            process = subprocess.Popen(command, pass_fds=[far.fileno()])
        for number in range(FLOOR_THROWS):
            time.sleep(interval_s)
            sent = now()
            near.sendall(frame)
            missing = FRAME_BYTES
            while missing:
                missing -= len(near.recv(missing))
            if number >= WARM_UP:
                took.append(now() - sent)
    process.wait()
    return took


async def _frames(
    engine: RemoteEngine, sessions: int, seconds: float, together: bool
) -> list[float]:
    took: list[float] = []
    chance = random.Random(1)
    begin = now() + 0.2

    async def talk(stream: EngineStream, phase: float) -> None:
        for number in range(int(seconds / FRAME_S)):
            await anyio.sleep(max(0.0, begin + phase + number * FRAME_S - now()))
            sent = now()
            stream.send(Hear("u", number, bytes(FRAME_BYTES), session="s"))
            await stream.receive()
            if number >= WARM_UP:
                took.append(now() - sent)
        await stream.aclose()

    streams = [await engine.open(f"s{number}") for number in range(sessions)]
    async with anyio.create_task_group() as group:
        for stream in streams:
            group.start_soon(talk, stream, 0.0 if together else chance.uniform(0.0, FRAME_S))
    return took


async def _pictures(engine: RemoteEngine, seconds: float, back: bool) -> list[float]:
    took: list[float] = []
    picture = bytes(range(256)) * (PICTURE_BYTES // 256)
    stream = await engine.open("camera")
    for number in range(WARM_UP + int(seconds * PICTURES_A_SECOND)):
        await anyio.sleep(1 / PICTURES_A_SECOND)
        sent = now()
        stream.send(Hear("u" if back else "kept", number, picture, session="s"))
        if not back:
            stream.send(JudgeTurn("kept", number, session="s"))
        await stream.receive()
        if number >= WARM_UP:
            took.append(now() - sent)
    await stream.aclose()
    return took
