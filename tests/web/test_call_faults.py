"""What callers and strangers do wrong to calls: the call goes on, and nothing is left behind."""

import asyncio
import gc
import os
import random
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import anyio.lowlevel
import httpx
import pytest
from anyio.abc import SocketAttribute

from duologue.codecs.rtp import RtpPacket, build_rtp
from duologue.engines.script import Clause, Reply
from tests.caller import Caller, Loud, Microphone, calling
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

OpenHouse = Callable[..., AbstractAsyncContextManager[Any]]
SHORT = Reply(clauses=(Clause("Hello. ", 200), Clause("Goodbye.", 200)), first_ms=0, pace=0)
OPUS = 96
"""The payload type under which stock aiortc offers it."""


async def emptied(house: Any) -> None:
    """Until no call and no session holds a place."""
    while house.service.calls.active or house.service.registry.active:
        await anyio.lowlevel.checkpoint()


async def heard_again(caller: Caller) -> None:
    """The caller speaks and is answered."""
    before = len(caller.all("input_audio_buffer.speech_stopped"))
    caller.microphone.loud = True
    await caller.event("input_audio_buffer.speech_started", before + 1)
    caller.microphone.loud = False
    await caller.event("input_audio_buffer.speech_stopped", before + 1)
    await caller.event("output_audio_buffer.stopped", before + 1)


async def test_a_replaced_track_and_a_muted_one_are_followed(open_house: OpenHouse) -> None:
    async with open_house(replies=(SHORT,), vad=Loud()) as house, house.http() as http:
        async with calling() as caller:
            await caller.dial(http)
            await heard_again(caller)
            [sender] = caller.connection.getSenders()
            first, caller.microphone = caller.microphone, Microphone()
            sender.replaceTrack(caller.microphone)
            await heard_again(caller)
            # Nothing is sent for a while; then the first one is back.
            sender.replaceTrack(None)
            caller.ask("Are you there?")
            await caller.event("output_audio_buffer.stopped", 3)
            first.loud = False
            sender.replaceTrack(first)
            caller.microphone = first
            first.loud = True
            await caller.event("input_audio_buffer.speech_started", 3)
        await emptied(house)


async def test_a_flood_of_other_sources_does_not_drown_the_caller(open_house: OpenHouse) -> None:
    chance = random.Random(1)
    async with open_house(replies=(SHORT,), vad=Loud()) as house, house.http() as http:
        async with calling() as caller:
            await caller.dial(http)
            await heard_again(caller)
            receiver = house.service.calls.find(caller.call_id).peer._media._receiver
            [sender] = caller.connection.getSenders()
            for number in range(2_000):
                ssrc = chance.randrange(1, 1 << 32)
                noise = chance.randbytes(chance.randrange(1, 200))
                packet = RtpPacket(OPUS, False, number, number * 960, ssrc, noise)
                await sender.transport._send_rtp(build_rtp(packet))
            await heard_again(caller)
            assert receiver.stats.strays > 1_000
        await emptied(house)


async def test_what_strangers_send_to_the_port_of_a_call_changes_nothing(
    open_house: OpenHouse,
) -> None:
    chance = random.Random(2)
    async with open_house(replies=(SHORT,), vad=Loud()) as house, house.http() as http:
        async with calling() as caller:
            answer = (await caller.dial(http)).text
            line = next(part for part in answer.splitlines() if part.startswith("a=candidate"))
            host, port = line.split()[4], int(line.split()[5])
            stranger = await anyio.create_udp_socket(local_host="127.0.0.1")
            async with stranger:
                assert stranger.extra(SocketAttribute.local_port)
                for first in (0, 1, 20, 22, 23, 64, 128, 129, 191, 255):
                    for _ in range(50):
                        data = bytes([first]) + chance.randbytes(chance.randrange(0, 1_200))
                        await stranger.sendto(data, host, port)
                for message in (b"\x00\x01\x00\x00\x21\x12\xa4\x42" + bytes(12),):
                    await stranger.sendto(message, host, port)
            await heard_again(caller)
        await emptied(house)


def held() -> tuple[int, int, int]:
    """Files and sockets, tasks, and threads but for those of pools, which grow while they may."""
    gc.collect()
    names = [thread.name for thread in threading.enumerate()]
    threads = [name for name in names if not name.startswith(("AnyIO worker", "asyncio_"))]
    return len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), len(threads)


async def test_calls_at_once_leave_no_socket_task_or_thread(open_house: OpenHouse) -> None:
    async with open_house(replies=(SHORT,)) as house:

        async def call(http: httpx.AsyncClient) -> None:
            async with calling() as caller:
                await caller.dial(http)

        async def several(count: int) -> None:
            async with house.http() as http, anyio.create_task_group() as tasks:
                for _ in range(count):
                    tasks.start_soon(call, http)
            await emptied(house)

        await several(10)
        before = held()
        await several(10)
        with anyio.fail_after(PATIENCE_S):
            # Connections of the HTTP server end a little later.
            while any(now > then for now, then in zip(held(), before, strict=True)):
                await anyio.lowlevel.checkpoint()
        assert len(house.service.calls.pacer) == 0
