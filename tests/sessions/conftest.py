"""A session that a test drives by hand: it says what time it is and what happens."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

import pytest

from duologue.engines import engine
from duologue.sessions import effects, events
from duologue.sessions.core import Session
from duologue.sessions.effects import Effect, ToEngine
from duologue.sessions.session_config import SemanticVad, SessionConfig, SessionLimits

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


@pytest.fixture
def patient() -> SemanticVad:
    return SemanticVad()
