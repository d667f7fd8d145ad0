"""The ``openai`` package's own client on Realtime, with a model that listens while it speaks."""

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter

from load_tests.server import Server, serving
from tests.patience import PATIENCE_S
from tests.random_moshi import make_random_moshi

pytestmark = [pytest.mark.anyio, pytest.mark.weights]

STRICT: TypeAdapter[RealtimeServerEvent] = TypeAdapter(RealtimeServerEvent)
TONE = (8000 * np.sin(2 * np.pi * 500 * np.arange(24_000) / 24_000)).astype("<i2").tobytes()
FRAME = 3840


@pytest.fixture(scope="module")
def echo_server() -> Iterator[Server]:
    # A loaded machine may be too slow; nothing here depends on its pace.
    with serving(["--engine", "scripted-duplex", "--duplex-slow"]) as running:
        yield running


@pytest.fixture(scope="module")
def moshi_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("moshi")
    make_random_moshi(folder)
    options = ["--engine", "moshi", "--moshi", str(folder), "--moshi-device", "cpu"]
    with serving([*options, "--slots", "1", "--duplex-slow"]) as running:
        yield running


class Session:
    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.events: list[Any] = []
        self.sound = b""

    @property
    def types(self) -> list[str]:
        return [event.type for event in self.events]

    async def receive(self) -> Any:
        data = await self.connection.recv_bytes()
        STRICT.validate_json(data)
        event = self.connection.parse_event(data)
        assert event.type != "error", event
        self.events.append(event)
        if event.type == "response.output_audio.delta":
            self.sound += base64.b64decode(event.delta)
        return event

    async def until(self, kind: str) -> Any:
        with anyio.fail_after(PATIENCE_S):
            while (event := await self.receive()).type != kind:
                pass
        return event

    async def talk(self, sound: bytes, silence: float) -> None:
        """Say this and then nothing, at real time; ends when it is cancelled."""
        while True:
            for start in range(0, len(sound), FRAME):
                audio = base64.b64encode(sound[start : start + FRAME]).decode()
                await self.connection.input_audio_buffer.append(audio=audio)
                await anyio.sleep(0.08)
            sound = bytes(int(silence * 48_000))


@asynccontextmanager
async def session(server: Server, sound: bytes = TONE) -> AsyncIterator[Session]:
    client = AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1")
    async with client, client.realtime.connect(model="any") as connection:
        opened = Session(connection)
        await opened.until("session.created")
        async with anyio.create_task_group() as group:
            group.start_soon(opened.talk, sound, 60.0)
            yield opened
            group.cancel_scope.cancel()


async def test_what_the_model_says_by_itself_is_a_response(echo_server: Server) -> None:
    async with session(echo_server) as talk:
        created = await talk.until("response.created")
        done = await talk.until("response.done")
        assert done.response.id == created.response.id
        assert done.response.status == "completed"
        said = done.response.output[0].content[0].transcript
        assert said.startswith(" I hear you") or said.startswith("I hear you")
    order = [kind for kind in talk.types if kind.startswith("response.")]
    assert order[0] == "response.created" and order[-1] == "response.done"
    for earlier, later in (
        ("response.output_item.added", "response.content_part.added"),
        ("response.content_part.added", "response.output_audio.delta"),
        ("response.output_audio.delta", "response.output_audio.done"),
        ("response.output_audio_transcript.delta", "response.output_audio_transcript.done"),
        ("response.output_audio.done", "response.content_part.done"),
        ("response.content_part.done", "response.output_item.done"),
    ):
        assert order.index(earlier) < order.index(later)
    heard = np.frombuffer(talk.sound, "<i2")
    assert np.abs(heard).max() > 7000
    assert len(heard) >= 24_000


async def test_the_user_is_heard_while_the_model_speaks(echo_server: Server) -> None:
    """Nobody is cut off: the echo of a second tone goes on in the same response."""
    async with session(echo_server, TONE * 3) as talk:
        done = await talk.until("response.done")
        assert done.response.status == "completed"
    assert talk.types.count("response.created") == 1
    assert len(talk.sound) >= 3 * len(TONE)


async def test_a_response_can_be_cancelled_and_the_model_is_silent(echo_server: Server) -> None:
    async with session(echo_server, TONE * 2) as talk:
        await talk.until("response.output_audio.delta")
        await talk.connection.response.cancel()
        done = await talk.until("response.done")
        assert done.response.status == "cancelled"


async def test_a_moshi_is_heard_and_left(moshi_server: Server) -> None:
    for _ in range(2):  # the place is given back
        async with session(moshi_server, TONE) as talk:
            await talk.until("response.created")
            while len(talk.sound) < 3 * FRAME:
                await talk.until("response.output_audio.delta")
            await talk.connection.response.cancel()
            done = await talk.until("response.done")
            assert done.response.status == "cancelled"
        assert np.abs(np.frombuffer(talk.sound, "<i2")).max() > 100


async def test_a_moshi_is_heard_in_live_and_left(moshi_server: Server) -> None:
    client = AsyncOpenAI(api_key="none", base_url=f"{moshi_server.url}/v1")
    with anyio.fail_after(PATIENCE_S):
        async with client, client.live.connect() as connection:
            await connection.session.start(session={"model": "any"})
            loudest, started = 0, False
            while not loudest:
                event = await connection.recv()
                assert event.type != "error", event
                started = started or event.type == "session.started"
                if event.type == "session.output_audio.delta":
                    assert started
                    loudest = int(np.abs(np.frombuffer(base64.b64decode(event.delta), "<i2")).max())
                    audio = base64.b64encode(TONE[:FRAME]).decode()
                    await connection.session.input_audio.append(audio=audio)
            await connection.session.close()
            while event.type != "session.closed":
                event = await connection.recv()
            assert event.reason == "close_requested"
