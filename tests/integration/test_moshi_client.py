"""Moshi's own client, unchanged, against a small Moshi with random weights."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from duologue.codecs.ogg_opus import OggOpusReader, OggOpusWriter
from duologue.codecs.opus import OpusDecoder, OpusEncoder
from load_tests.server import Server, serving
from tests.patience import PATIENCE_S
from tests.random_moshi import make_random_moshi

pytestmark = pytest.mark.anyio

CLIENT = Path(__file__).parent / "clients" / "moshi_client.py"


@pytest.fixture(scope="module")
def moshi_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("moshi")
    make_random_moshi(folder)
    # A loaded machine may be too slow for even this model; nothing here depends on its pace.
    options = ["--engine", "moshi", "--moshi", str(folder), "--moshi-device", "cpu"]
    with serving([*options, "--slots", "2", "--duplex-parked", "0", "--duplex-slow"]) as running:
        yield running


@pytest.fixture(scope="module")
def echo_server() -> Iterator[Server]:
    options = ["--engine", "scripted-duplex", "--slots", "1", "--duplex-parked", "0"]
    with serving([*options, "--duplex-slow"]) as running:
        yield running


def test_moshis_client_connects_talks_is_heard_and_leaves(moshi_server: Server) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("sphn")
    pytest.importorskip("moshi")
    port = moshi_server.url.rsplit(":", 1)[1]
    done = subprocess.run(
        [sys.executable, str(CLIENT), port, "8"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    heard = json.loads(done.stdout.strip().splitlines()[-1])
    assert heard["talking"]
    assert sum(level > 0.001 for level in heard["levels"]) >= 5
    assert heard["said"].strip()


class Chat:
    """One client of the wire, in a few words."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.encoder = OpusEncoder(24_000)
        self.pages = OggOpusWriter(24_000, serial=1)
        self.reader = OggOpusReader()
        self.decoder = OpusDecoder(24_000)
        self.text = ""

    async def say(self, sound: np.ndarray) -> None:
        for start in range(0, len(sound), 480):
            packet = self.encoder.encode(sound[start : start + 480])
            await self.socket.send(b"\x01" + self.pages.packet(packet))

    async def begin(self) -> None:
        with anyio.fail_after(PATIENCE_S):
            assert await self.socket.recv() == b"\x00"
        await self.socket.send(b"\x01" + self.pages.begin())

    async def hear(self) -> np.ndarray:
        """The sound of the next message that has any."""
        with anyio.fail_after(PATIENCE_S):
            while True:
                message = await self.socket.recv()
                assert isinstance(message, bytes)
                if message[0] == 2:
                    self.text += message[1:].decode()
                    continue
                parts = [self.decoder.decode(one) for one in self.reader.feed(message[1:])]
                return np.concatenate(parts)


@asynccontextmanager
async def chatting(server: Server, query: str = "") -> AsyncIterator[Chat]:
    url = server.url.replace("http", "ws", 1) + "/api/chat" + query
    async with connect(url, proxy=None) as socket:
        yield Chat(socket)


async def test_what_is_said_comes_back_and_so_does_text(echo_server: Server) -> None:
    times = np.arange(1920) / 24_000
    tone = (8000 * np.sin(2 * np.pi * 500 * times)).astype(np.int16)
    async with chatting(echo_server, "?voice_prompt=NATF2.pt&text_prompt=") as chat:
        await chat.begin()
        heard = []
        for _ in range(8):
            await chat.say(tone)
            heard.append(await chat.hear())
    assert {len(one) for one in heard} == {1920}
    assert np.abs(np.concatenate(heard[3:])).max() > 4000
    assert chat.text.startswith(" I")


async def test_who_finds_no_place_is_told_to_come_again(echo_server: Server) -> None:
    async with chatting(echo_server) as first:
        await first.begin()
        with pytest.raises(ConnectionClosed) as closed:
            async with chatting(echo_server) as second:
                await second.begin()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1013
    # The place is given back.
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                async with chatting(echo_server) as third:
                    await third.begin()
                    break
            except ConnectionClosed:
                await anyio.sleep(0.05)


async def test_sound_that_is_none_ends_the_conversation(echo_server: Server) -> None:
    with pytest.raises(ConnectionClosed) as closed:
        async with chatting(echo_server) as chat:
            with anyio.fail_after(PATIENCE_S):
                assert await chat.socket.recv() == b"\x00"
            page = OggOpusWriter(24_000, serial=1)._page(b"noise", 2)
            await chat.socket.send(b"\x01" + page)
            await chat.hear()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1007


async def test_a_choice_that_makes_no_sense_is_refused(echo_server: Server) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with chatting(echo_server, "?text_temperature=warm"):
            pass
    assert refused.value.response.status_code == 400


async def test_an_engine_that_takes_turns_has_no_such_conversations(server: Server) -> None:
    with pytest.raises(ConnectionClosed) as closed:
        async with chatting(server) as chat:
            await chat.begin()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013


def test_the_model_is_told_as_what_it_is(moshi_server: Server) -> None:
    with httpx.Client(trust_env=False) as client:
        model = client.get(f"{moshi_server.url}/v1/models").json()["data"][0]
    assert model["duologue"]["kind"] == "duplex"


async def test_it_is_counted_as_others_are_and_told_of_a_restart() -> None:
    options = ["--engine", "scripted-duplex", "--slots", "4", "--duplex-slow"]
    with serving([*options, "--max-sessions", "1", "--drain-seconds", "0"]) as server:
        async with chatting(server) as first:
            await first.begin()
            with pytest.raises(ConnectionClosed) as refused:
                async with chatting(server) as second:
                    await second.begin()
            assert refused.value.rcvd is not None
            assert refused.value.rcvd.code == 1013
            async with httpx.AsyncClient() as client:
                figures = (await client.get(f"{server.url}/metrics")).text
            assert "\nduologue_sessions 1" in figures
            os.kill(server.pid, signal.SIGTERM)
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    await first.hear()
            assert closed.value.rcvd is not None
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (
                1012,
                "the server is restarting",
            )
