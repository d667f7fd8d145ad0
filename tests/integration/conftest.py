"""A real server with a scripted engine, in a process of its own, and a plain client for it."""

import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from openai.types.realtime import RealtimeServerEvent
from pydantic import TypeAdapter
from websockets.asyncio.client import ClientConnection, connect

from load_tests.recordings import RATE, decode
from load_tests.server import Server, serving
from tests.patience import PATIENCE_S

QUESTION = Path(__file__).parent.parent / "data" / "question.wav"

Event = dict[str, Any]
_STRICT: TypeAdapter[RealtimeServerEvent] = TypeAdapter(RealtimeServerEvent)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """One for all tests that leave it as it was."""
    with serving(["--engine", "scripted"]) as running:
        yield running


@pytest.fixture(scope="session")
def question() -> bytes:
    """A spoken question and the silence after it: 24 kHz, 16-bit."""
    samples = decode(QUESTION)
    return bytes(np.concatenate([samples, np.zeros(RATE, np.int16)]).astype("<i2").tobytes())


class Wire:
    """One session, event by event. Every event of the server is held against OpenAI's types."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.seen: list[Event] = []
        self.patience = PATIENCE_S

    async def send(self, kind: str, **fields: object) -> None:
        await self.socket.send(json.dumps({"type": kind, **fields}))

    async def speak(self, pcm: bytes) -> None:
        """Append audio as fast as it goes, 100 ms at a time."""
        for start in range(0, len(pcm), 4800):
            audio = base64.b64encode(pcm[start : start + 4800]).decode()
            await self.send("input_audio_buffer.append", audio=audio)

    async def say(self, text: str, **fields: object) -> None:
        """Add what the user writes."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content, **fields}
        await self.send("conversation.item.create", item=item)

    async def receive(self) -> Event:
        """The next event."""
        with anyio.fail_after(self.patience):
            text = await self.socket.recv()
        event: Event = json.loads(text)
        _STRICT.validate_python(event)
        self.seen.append(event)
        return event

    async def until(self, *kinds: str, **fields: object) -> Event:
        """The next event of one of these types with these fields; errors end the wait."""
        while True:
            event = await self.receive()
            if event["type"] in kinds and fields.items() <= event.items():
                return event
            if event["type"] == "error":
                raise AssertionError(f"waiting for {kinds}: {event['error']}")

    async def has_seen(self, kind: str) -> None:
        """Wait for an event of a type unless one has come already."""
        if not any(event["type"] == kind for event in self.seen):
            await self.until(kind)

    async def configure(self, **session: object) -> Event:
        await self.send("session.update", session={"type": "realtime", **session})
        event: Event = (await self.until("session.updated"))["session"]
        return event

    async def listen(self, turn_detection: Event | None) -> Event:
        return await self.configure(audio={"input": {"turn_detection": turn_detection}})

    async def answer(self) -> Event:
        """Ask for an answer and wait until it is done."""
        await self.send("response.create")
        return await self.finished()

    async def finished(self) -> Event:
        response: Event = (await self.until("response.done"))["response"]
        return response

    async def prompt(self) -> Event:
        """What the engine is asked for now, as it would be in an answer to this conversation."""
        await self.send(
            "response.create",
            response={
                "conversation": "none",
                "output_modalities": ["text"],
                "instructions": "repeat the prompt as json",
            },
        )
        text = (await self.until("response.output_text.done"))["text"]
        await self.finished()
        prompt: Event = json.loads(text)
        return prompt

    async def works(self) -> None:
        """The session can still hold a conversation."""
        with anyio.fail_after(PATIENCE_S):
            await self.send("session.update", session={"type": "realtime"}, event_id="alive")
            await self.until("session.updated")
            await self.say("Are you there?")
            await self.send("response.create", response={"output_modalities": ["text"]})
            assert (await self.finished())["status"] == "completed"


Connect = Callable[..., AbstractAsyncContextManager[Wire]]


@asynccontextmanager
async def open_wire(
    server: Server, query: str = "model=any", **options: Any
) -> AsyncIterator[Wire]:
    address = f"{server.url.replace('http', 'ws', 1)}/v1/realtime?{query}"
    options = {"max_size": None, "compression": None, "ping_interval": None, **options}
    async with connect(address, proxy=None, close_timeout=2, **options) as socket:
        wire = Wire(socket)
        assert (await wire.receive())["type"] == "session.created"
        yield wire


@pytest.fixture
def open_session() -> Connect:
    """Connect to a server: ``async with open_session(server) as wire``."""
    return open_wire
