"""A session that a test drives by hand; and, for its driver, all that surrounds one, in memory."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar, cast

import anyio
import anyio.abc
import anyio.lowlevel
import numpy as np
import numpy.typing as npt
import pytest

from duologue.engines import engine
from duologue.models.silero_vad import SileroVad
from duologue.models.weights import locate
from duologue.sessions import effects, events
from duologue.sessions.clock import ManualClock
from duologue.sessions.core import Session
from duologue.sessions.effects import Effect, ToEngine
from duologue.sessions.ports import AudioBytes, Incoming, Observer, TransportClosed
from duologue.sessions.registry import SessionRegistry
from duologue.sessions.runner import Conversation
from duologue.sessions.session_config import SessionConfig, SessionLimits

FRAME = 512
E = TypeVar("E")

SPEC = engine.EngineSpec(
    model="test",
    voices=("one", "two"),
    default_voice="one",
    context_tokens=4096,
    sees=True,
)


@dataclass
class Talk:
    """One session, its clock and everything it has asked for so far."""

    session: Session
    now: float = 0.0
    position: int = 0
    done: list[Effect] = field(default_factory=list)

    def receive(self, event: events.Event) -> list[Effect]:
        self.session.receive(event, self.now)
        return self.take()

    def take(self) -> list[Effect]:
        taken = self.session.take_effects()
        self.done += taken
        return taken

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, obeying every deadline on the way."""
        until = self.now + seconds
        taken: list[Effect] = []
        while (deadline := self.session.next_deadline()) <= until:
            self.now = max(self.now, deadline)
            self.session.handle_timer(self.now)
            assert self.session.next_deadline() > self.now
            taken += self.take()
        self.now = until
        return taken

    def hear(self, seconds: float, probability: float) -> list[Effect]:
        """The microphone, in real time, one voice frame at a time."""
        taken: list[Effect] = []
        for _ in range(round(seconds * 16_000 / FRAME)):
            taken += self.wait(FRAME / 16_000)
            self.position += FRAME
            taken += self.receive(events.AudioReceived(self.position))
            taken += self.receive(events.VoiceProbability(self.position, probability))
        return taken

    def speak(self, seconds: float) -> list[Effect]:
        return self.hear(seconds, 0.95)

    def pause(self, seconds: float) -> list[Effect]:
        return self.hear(seconds, 0.01)

    def all(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.done if isinstance(effect, kind)]

    def commands(self, kind: type[E]) -> list[E]:
        return [c.command for c in self.all(ToEngine) if isinstance(c.command, kind)]

    @property
    def errors(self) -> list[str]:
        return [effect.error.code for effect in self.all(effects.ErrorReported)]

    @property
    def generation(self) -> int:
        """Of the answer that was asked for last."""
        return self.commands(engine.Respond)[-1].generation

    @property
    def prompt(self) -> tuple[engine.Message, ...]:
        return self.commands(engine.Respond)[-1].request.messages

    def says(self, text: str, ms: int, generation: int | None = None) -> list[Effect]:
        """The engine brings a clause of speech."""
        number = self.generation if generation is None else generation
        return self.receive(
            engine.SpeechGenerated(session="s", generation=number, pcm=bytes(48 * ms), text=text)
        )

    def writes(self, text: str, generation: int | None = None) -> list[Effect]:
        number = self.generation if generation is None else generation
        return self.receive(engine.TextGenerated(session="s", generation=number, text=text))

    def ends(self, reason: str = "completed", generation: int | None = None) -> list[Effect]:
        number = self.generation if generation is None else generation
        return self.receive(
            engine.ResponseEnded(
                session="s",
                generation=number,
                reason=reason,  # type: ignore[arg-type]
                usage=engine.Usage(input_tokens=3, output_tokens=4),
            )
        )

    def transcribes(self, text: str, item_id: str | None = None) -> list[Effect]:
        """The recogniser's last word on the utterance that was committed last."""
        if item_id is None:
            item_id = self.all(effects.InputCommitted)[-1].item_id
        return self.receive(
            engine.TranscriptFinal(session="s", utterance=item_id, text=text, seconds=1.0)
        )

    def judges(self, probability: float) -> list[Effect]:
        asked = self.commands(engine.JudgeTurn)[-1]
        return self.receive(
            engine.TurnJudged(
                session="s", utterance=asked.utterance, at=asked.at, probability=probability
            )
        )


def names(taken: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in taken if not isinstance(effect, ToEngine)]


@pytest.fixture
def talk() -> Callable[..., Talk]:
    """Makes a session; keywords are fields of SessionConfig and SessionLimits."""

    def make(
        limits: SessionLimits | None = None, plays_out: bool = False, **config: object
    ) -> Talk:
        numbers = count(1)
        session = Session(
            "s",
            SessionConfig(**config),  # type: ignore[arg-type]
            SPEC,
            limits or SessionLimits(),
            lambda prefix: f"{prefix}_{next(numbers)}",
            0.0,
            plays_out=plays_out,
        )
        made = Talk(session)
        made.take()
        return made

    return make


@pytest.fixture
def named() -> Callable[[list[Effect]], list[str]]:
    """The names of effects, in order, without what goes to the engine."""
    return names


# -- what surrounds a session ---------------------------------------------------------------


class ListeningVad:
    """Stands in for Silero: what is loud is speech. Counts the frames of all its streams."""

    def __init__(self) -> None:
        self.frames = 0
        self.loudest = 0.0

    def stream(self) -> "ListeningVad":
        return self

    def push(self, frame: npt.NDArray[np.float32]) -> float:
        self.frames += 1
        loudness = float(np.abs(frame).max())
        self.loudest = max(self.loudest, loudness)
        return 0.95 if loudness > 0.01 else 0.01


class Pipe(Generic[E]):
    """What one side puts in, the other takes out, until it is closed."""

    def __init__(self) -> None:
        self._things: deque[E] = deque()
        self._something = anyio.Event()
        self._closed = False

    def put(self, thing: E) -> None:
        self._things.append(thing)
        self._something.set()

    def close(self) -> None:
        self._closed = True
        self._something.set()

    async def take(self) -> E | None:
        """The next thing; ``None`` when there will be none."""
        await anyio.lowlevel.checkpoint()
        while not self._things:
            if self._closed:
                return None
            self._something = anyio.Event()
            await self._something.wait()
        return self._things.popleft()


class Wire:
    """A transport in memory: the test is the client."""

    plays_out = False

    def __init__(self) -> None:
        self.sent: list[effects.ServerEvent] = []
        self.steered: list[object] = []
        self.closed: tuple[int, str] | None = None
        self.closes = 0
        self._pipe: Pipe[Incoming] = Pipe()

    def say(self, incoming: Incoming) -> None:
        self._pipe.put(incoming)

    def speak(self, seconds: float, level: int = 8000) -> None:
        """Audio at 24 kHz, in packets of 100 ms."""
        for _ in range(round(seconds * 10)):
            self.say(AudioBytes(np.full(2400, level, "<i2").tobytes(), "audio"))

    def hang_up(self) -> None:
        self._pipe.close()

    async def receive(self) -> Incoming:
        incoming = await self._pipe.take()
        if incoming is None:
            raise TransportClosed(clean=True)
        return incoming

    def send(self, event: effects.ServerEvent) -> None:
        assert self.closed is None
        self.sent.append(event)

    def steer(self, effect: object) -> None:
        self.steered.append(effect)

    async def aclose(self, code: int, reason: str) -> None:
        await anyio.lowlevel.checkpoint()
        self.closes += 1
        self.closed = self.closed or (code, reason)

    def all(self, kind: type[E]) -> list[E]:
        return [event for event in self.sent if isinstance(event, kind)]

    @property
    def errors(self) -> list[str]:
        return [event.error.code for event in self.all(effects.ErrorReported)]


class Place:
    """One session's place on the engine: the test is the model."""

    def __init__(self, session: str, deployment: "Deployment") -> None:
        self.session = session
        self.commands: list[engine.Command] = []
        self.closed = False
        self.lost = False
        self._deployment = deployment
        self._pipe: Pipe[engine.Output] = Pipe()

    def brings(self, output: engine.Output) -> None:
        self._pipe.put(output)

    def says(self, text: str, ms: int) -> None:
        """A whole answer to what was asked last."""
        number = self.all(engine.Respond)[-1].generation
        common = {"session": self.session, "generation": number}
        self.brings(engine.SpeechGenerated(**common, pcm=bytes(48 * ms), text=text))
        self.brings(engine.ResponseEnded(**common, reason="completed"))

    def dies(self) -> None:
        self.lost = True
        self._pipe.close()

    def send(self, command: engine.Command) -> None:
        if self.lost:
            raise engine.EngineLost("the worker died")
        assert not self.closed
        self.commands.append(command)

    async def receive(self) -> engine.Output:
        output = await self._pipe.take()
        if output is None:
            raise engine.EngineLost("the worker died")
        return output

    async def aclose(self) -> None:
        await anyio.lowlevel.checkpoint()
        if self._deployment.hangs:
            await anyio.sleep_forever()
        if self._deployment.refusals:
            raise self._deployment.refusals.pop()
        self.closed = True

    def all(self, kind: type[E]) -> list[E]:
        return [command for command in self.commands if isinstance(command, kind)]


class Deployment:
    """An engine in memory, and all the places it ever gave."""

    spec = SPEC
    ready = True

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.answers: list[Exception] = []
        """Raised by the next calls of open, the last one first."""
        self.refusals: list[Exception] = []
        """Raised when a place is given back, the last one first."""
        self.hangs = False
        self.gate = anyio.Event()
        self.gate.set()

    async def open(self, session: str) -> Place:
        await anyio.lowlevel.checkpoint()
        await self.gate.wait()
        if self.answers:
            raise self.answers.pop()
        place = Place(session, self)
        self.places.append(place)
        return place

    @property
    def taken(self) -> int:
        return sum(not place.closed for place in self.places)


@dataclass
class House:
    """A registry with everything around it, and clients at hand."""

    registry: SessionRegistry
    deployment: Deployment
    clock: ManualClock
    vad: ListeningVad
    tasks: anyio.abc.TaskGroup

    async def visit(self, **config: object) -> tuple[Conversation, Wire, Place]:
        """A client that has connected and been greeted."""
        conversation = await self.registry.open(SessionConfig(**config))  # type: ignore[arg-type]
        wire = Wire()
        self.tasks.start_soon(conversation.attach, wire)
        await quiet()
        return conversation, wire, self.deployment.places[-1]


async def quiet() -> None:
    """Let every task go as far as it can, without waiting for time to pass."""
    here, calm = asyncio.current_task(), 0
    while calm < 5:
        await anyio.lowlevel.checkpoint()
        waits = [getattr(task, "_fut_waiter", None) for task in asyncio.all_tasks() - {here}]
        calm = calm + 1 if all(wait is not None and not wait.done() for wait in waits) else 0


@pytest.fixture
def listening_vad() -> ListeningVad:
    return ListeningVad()


@pytest.fixture(scope="session")
def make_vad() -> type[ListeningVad]:
    return ListeningVad


@pytest.fixture(scope="session")
def silero() -> SileroVad:
    return SileroVad(locate("silero-vad") / "silero_vad_v6.onnx")


@pytest.fixture
def house(listening_vad: ListeningVad) -> Callable[..., AbstractAsyncContextManager[House]]:
    """Opens a registry; keywords are fields of SessionLimits."""

    @asynccontextmanager
    async def opened(
        max_sessions: int = 100, observer: Observer | None = None, **limits: float
    ) -> AsyncIterator[House]:
        deployment, clock = Deployment(), ManualClock(1000.0)
        registry = SessionRegistry(
            deployment,
            cast(SileroVad, listening_vad),
            SessionLimits(**limits),  # type: ignore[arg-type]
            clock,
            max_sessions,
            observer,
        )
        async with anyio.create_task_group() as tasks, registry:
            yield House(registry, deployment, clock, listening_vad, tasks)
        assert registry.active == 0
        assert registry.headcount.own == 0

    return opened
