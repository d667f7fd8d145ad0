"""Calls through a TURN server (coturn), as `docker/compose.yaml` starts it."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from aiortc import RTCConfiguration, RTCIceServer, RTCIceTransportPolicy

from duologue.engines.script import Clause, Reply
from duologue.web.settings import Settings
from load_tests.server import free_port
from tests.caller import calling
from tests.patience import PATIENCE_S

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("turnserver") is None, reason="coturn is not installed"),
]

OpenHouse = Callable[..., AbstractAsyncContextManager[Any]]
LONG = Reply(clauses=tuple(Clause(f"Word{n}. ", 500) for n in range(4)), first_ms=0, pace=0)
NAME, PASSWORD = "duologue", "a password"


@dataclass(frozen=True)
class Relay:
    port: int
    log: Path

    def said(self, words: str) -> bool:
        return words in self.log.read_text(errors="replace")


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    folder = tmp_path_factory.mktemp("turn")
    found = Relay(free_port(), folder / "log")
    command = [
        *("turnserver", "-n", "--log-file=stdout", "--simple-log", "--verbose"),
        *("--lt-cred-mech", "--fingerprint", "--no-cli", "--no-tls", "--no-dtls"),
        *("--realm=duologue", f"--user={NAME}:{PASSWORD}", "--allow-loopback-peers"),
        *(f"--listening-port={found.port}", "--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1"),
        *(f"--userdb={folder / 'db'}", f"--pidfile={folder / 'pid'}"),
    ]
    with found.log.open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield found
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


async def listening(relay: Relay) -> None:
    with anyio.fail_after(PATIENCE_S):
        while not await anyio.to_thread.run_sync(  # noqa: ASYNC110 - it is another process
            relay.said, "listener opened on"
        ):
            await anyio.sleep(0.05)


async def test_a_caller_that_only_a_relay_reaches_talks(
    open_house: OpenHouse, relay: Relay
) -> None:
    await listening(relay)
    server = RTCIceServer(f"turn:127.0.0.1:{relay.port}", NAME, PASSWORD)
    only = RTCConfiguration([server], iceTransportPolicy=RTCIceTransportPolicy.RELAY)
    async with open_house(replies=(LONG,)) as house, house.http() as http:
        async with calling(configuration=only) as caller:
            offer = await caller.offer()
            candidates = [line for line in offer.splitlines() if line.startswith("a=candidate")]
            assert candidates and all("typ relay" in line for line in candidates)
            await caller.dial(http, offer)
            caller.ask("Are you there?")
            await caller.until(caller.heard)
            await caller.event("output_audio_buffer.stopped")


async def test_a_server_that_only_a_relay_reaches_is_reached(
    open_house: OpenHouse, relay: Relay
) -> None:
    await listening(relay)
    settings = Settings(
        engine="scripted",
        turn_server=f"turn:127.0.0.1:{relay.port}",
        turn_username=NAME,
        turn_password=PASSWORD,
    )
    async with open_house(settings, replies=(LONG,)) as house, house.http() as http:
        async with calling() as caller:
            offer = await caller.offer()
            response = await http.post(
                "/v1/realtime/calls", content=offer, headers={"Content-Type": "application/sdp"}
            )
            relayed = [
                line
                for line in response.text.splitlines()
                if not line.startswith("a=candidate") or "typ relay" in line
            ]
            assert any(line.startswith("a=candidate") for line in relayed)
            response._content = "\r\n".join([*relayed, ""]).encode()
            await caller.take(response)
            caller.ask("Are you there?")
            await caller.until(caller.heard)


async def test_a_relay_that_refuses_the_password_is_done_without(
    open_house: OpenHouse, relay: Relay
) -> None:
    await listening(relay)
    settings = Settings(
        engine="scripted",
        turn_server=f"turn:127.0.0.1:{relay.port}",
        turn_username=NAME,
        turn_password="another",
    )
    async with open_house(settings, replies=(LONG,)) as house, house.http() as http:
        async with calling() as caller:
            response = await caller.dial(http)
            assert "typ relay" not in response.text
            caller.ask("Are you there?")
            await caller.until(caller.heard)
