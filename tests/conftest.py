"""What all tests share: the event loop, the watch over it, a server, and OpenAI's own types."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import settings
from openai.types.realtime import RealtimeServerEvent
from pydantic import Field, TypeAdapter

from load_tests.server import serving

WATCHED = ["web", "realtime", "sessions", "engines", "codecs"]
"""Not `models`: fetching them has a loop to itself, where nobody waits."""

# How long an example takes depends on who else uses the machine.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# By the discriminator alone, as openai-agents reads every frame: no variant is tried in its place.
_STRICT: TypeAdapter[RealtimeServerEvent] = TypeAdapter(
    Annotated[RealtimeServerEvent, Field(discriminator="type")]
)

Event = dict[str, Any]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def blockbuster() -> Iterator[BlockBuster]:
    """A blocking call of ours on the event loop fails the test."""
    with blockbuster_ctx([f"duologue.{layer}" for layer in WATCHED]) as watch:
        yield watch


@pytest.fixture(scope="session")
def validated() -> Callable[[str], Event]:
    """A server event's text, held against the types of the ``openai`` package, as an object."""

    def check(text: str) -> Event:
        event: Event = msgspec.json.decode(text)
        _STRICT.validate_python(event)
        return event

    return check


@dataclass(frozen=True, slots=True)
class ScriptedServer:
    """A running ``duologue serve --engine scripted``."""

    url: str
    pid: int

    @property
    def ws_url(self) -> str:
        return self.url.replace("http", "ws", 1) + "/v1/realtime"


@pytest.fixture(scope="session")
def scripted_server() -> Iterator[ScriptedServer]:
    """One for all tests that leave it as it was. It needs the voice detector's file."""
    with serving(["--engine", "scripted"]) as running:
        yield ScriptedServer(running.url, running.pid)
