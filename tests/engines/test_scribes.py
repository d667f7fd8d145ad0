"""A recogniser beside a model that hears by itself: there, away, lost, full, behind."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import pytest

from duologue.engines import scribes as scribes_module
from duologue.engines.engine import (
    Command,
    ConfigureListening,
    DropUtterance,
    EndUtterance,
    EngineFull,
    EngineLost,
    EngineSpec,
    EngineUnavailable,
    Hear,
    Output,
    TranscriptDelta,
    TranscriptFailed,
    TranscriptFinal,
)
from duologue.engines.scribes import AWAY, BEHIND, MOST_WAITING, Scribe, Scribes, Written
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


class Place:
    """An engine stream that says what the test says."""

    def __init__(self) -> None:
        self.told: list[Command] = []
        self.lost = False
        self.closed = False
        self._send, self._receive = anyio.create_memory_object_stream[Output](64)

    def send(self, command: Command) -> None:
        if self.lost:
            raise EngineLost("gone")
        self.told.append(command)

    async def receive(self) -> Output:
        try:
            return await self._receive.receive()
        except anyio.EndOfStream:
            raise EngineLost("gone") from None

    def say(self, output: Output) -> None:
        self._send.send_nowait(output)

    def lose(self) -> None:
        self.lost = True
        self._send.close()

    async def aclose(self) -> None:
        self.closed = True
        self._send.close()
        self._receive.close()


class Recognizers:
    """An engine whose next opening goes as the test says."""

    spec = EngineSpec(
        model="m", voices=(), default_voice="", context_tokens=0, recognizer="whisper"
    )
    ready = True

    def __init__(self) -> None:
        self.refusals: list[EngineFull | EngineUnavailable] = []
        self.broken: Exception | None = None
        self.places: list[Place] = []

    async def open(self, session: str) -> Place:
        await anyio.lowlevel.checkpoint()
        if self.broken is not None:
            raise self.broken
        if self.refusals:
            raise self.refusals.pop(0)
        self.places.append(Place())
        return self.places[-1]


@dataclass
class Desk:
    recognizers: Recognizers
    scribes: Scribes
    scribe: Scribe
    written: list[Written] = field(default_factory=list)

    @property
    def place(self) -> Place:
        return self.recognizers.places[-1]

    async def settle(self) -> None:
        for _ in range(20):
            await anyio.lowlevel.checkpoint()

    def hear(self, name: str = "u") -> None:
        self.scribe.tell(Hear(name, 0, b"\1\0", session="s"))

    def end(self, name: str = "u") -> None:
        self.scribe.tell(EndUtterance(name, 1, session="s"))

    def final(self, name: str = "u", text: str = "Hello.") -> TranscriptFinal:
        return TranscriptFinal(name, text, 1.0, session="s")

    def failures(self) -> list[tuple[str, str]]:
        return [(w.utterance, w.message) for w in self.written if isinstance(w, TranscriptFailed)]


@asynccontextmanager
async def desk(*refusals: EngineFull | EngineUnavailable) -> AsyncIterator[Desk]:
    recognizers = Recognizers()
    recognizers.refusals += refusals
    written: list[Written] = []
    with anyio.fail_after(PATIENCE_S):
        async with Scribes(recognizers) as scribes:
            made = Desk(recognizers, scribes, scribes.open("s", written.append), written)
            await made.settle()
            yield made


async def test_what_is_said_is_written() -> None:
    async with desk() as d:
        d.hear()
        d.end()
        more = TranscriptDelta("u", "Hel", session="s")
        d.place.say(more)
        d.place.say(d.final())
        await d.settle()
        assert [type(one) for one in d.place.told] == [Hear, EndUtterance]
        assert d.written == [more, d.final()]
        assert d.scribes.recognizer == "whisper"


async def test_how_to_listen_is_told_whenever_a_recogniser_is_found() -> None:
    async with desk() as d:
        manner = ConfigureListening(session="s", language="de")
        d.scribe.tell(manner)
        d.place.lose()
        await d.settle()
        assert len(d.recognizers.places) == 2
        assert [place.told for place in d.recognizers.places] == [[manner], [manner]]
        assert d.recognizers.places[0].closed


async def test_while_it_is_lost_utterances_fail_and_the_next_one_is_written() -> None:
    async with desk() as d:
        for name in ("waits", "is said"):
            d.hear(name)
        d.end("waits")
        d.place.lose()
        d.hear("is said")
        await d.settle()
        assert d.failures() == [("waits", AWAY)]
        d.hear("is said")
        d.end("is said")
        assert d.failures() == [("waits", AWAY), ("is said", AWAY)]
        assert d.place.told == []
        d.hear("next")
        d.end("next")
        d.place.say(d.final("next"))
        await d.settle()
        assert d.written[-1] == d.final("next")


@pytest.mark.parametrize("refusal", [EngineFull(0.0), EngineUnavailable(0.0)])
async def test_one_that_is_full_is_asked_again(
    refusal: EngineFull, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scribes_module, "LEAST_WAIT_S", 0.0)
    async with desk(refusal) as d:
        d.hear("early")
        d.end("early")
        while not d.recognizers.places:
            await anyio.lowlevel.checkpoint()
        await d.settle()
        d.hear("later")
        d.end("later")
        assert d.failures() == [("early", AWAY)] or not d.failures()
        assert isinstance(d.place.told[-1], EndUtterance)


async def test_one_that_has_fallen_behind_is_given_no_more() -> None:
    async with desk() as d:
        for number in range(MOST_WAITING + 1):
            d.hear(str(number))
            d.end(str(number))
        assert d.failures() == [(str(MOST_WAITING), BEHIND)]
        assert isinstance(d.place.told[-1], DropUtterance)
        d.place.say(d.final("0"))
        await d.settle()
        d.hear("more")
        d.end("more")
        assert isinstance(d.place.told[-1], EndUtterance)


async def test_nothing_is_written_of_what_was_dropped() -> None:
    async with desk() as d:
        d.hear()
        d.end()
        d.scribe.tell(DropUtterance("u", session="s"))
        d.place.say(d.final())
        await d.settle()
        assert d.written == []


async def test_closing_gives_the_place_back_and_says_nothing() -> None:
    async with desk() as d:
        d.hear()
        d.end()
        d.scribe.close()
        d.scribe.close()
        await d.settle()
        assert d.place.closed
        assert d.written == []


async def test_one_that_breaks_takes_nobody_with_it() -> None:
    async with desk() as d:
        d.recognizers.broken = ValueError("broken")
        d.place.lose()
        await d.settle()
        d.hear()
        d.end()
        assert d.failures() == [("u", AWAY)]
        d.recognizers.broken = None
        other: list[Written] = []
        d.scribes.open("other", other.append)
        await d.settle()
        d.place.say(TranscriptDelta("u", "Hello", session="other"))
        await d.settle()
        assert len(other) == 1
