from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from duologue.codecs.pcm import bytes_from_int16
from duologue.engines.cascade_session import REPLIES_A_SESSION, CascadeSession, Stages
from duologue.engines.engine import (
    Acknowledge,
    AlignSpeech,
    CancelResponse,
    CloseSession,
    Command,
    ConfigureListening,
    DropUtterance,
    EndUtterance,
    Hear,
    JudgeTurn,
    Message,
    OpenSession,
    Output,
    Prepare,
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechAligned,
    SpeechGenerated,
    TextPart,
    TranscriptFinal,
    TurnJudged,
    Usage,
    UtterancePart,
)
from duologue.engines.language import Finished, TextPiece
from duologue.engines.pulse import Pulse
from duologue.engines.recognition import Recognition
from duologue.engines.speaking import DRAFT_WINDOW_MS, Voices
from duologue.engines.stand_ins import (
    StandInDetector,
    StandInLanguage,
    StandInRecognizer,
    StandInSynthesizer,
)
from duologue.models.voice import VoiceCatalogue
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

END = Finished("completed", Usage())


def loud(seconds: float) -> bytes:
    samples = np.full(int(seconds * 16_000), 8000, np.int16)
    samples[::2] *= -1
    return bytes_from_int16(samples)


class Setting:
    """A session among stand-ins."""

    def __init__(self) -> None:
        self.language = StandInLanguage()
        self.recognizer = StandInRecognizer()
        self.outputs: list[Output] = []
        self.changed = anyio.Event()
        synthesizer = StandInSynthesizer()
        self.session = CascadeSession(
            OpenSession(session="s"),
            Stages(
                Recognition(self.recognizer, StandInDetector(), Pulse(), lambda: 0.0),
                self.language,
                Voices(VoiceCatalogue([synthesizer]), Pulse()),
            ),
            self.emit,
            lambda: 0.0,
        )

    def emit(self, output: Output) -> None:
        self.outputs.append(output)
        self.changed.set()
        self.changed = anyio.Event()

    def take(self, *commands: Command) -> None:
        for command in commands:
            self.session.take(command)

    async def until(self, kind: type[Output], count: int = 1) -> None:
        with anyio.fail_after(PATIENCE_S):
            while sum(isinstance(output, kind) for output in self.outputs) < count:
                await self.changed.wait()


@asynccontextmanager
async def open_session() -> AsyncIterator[Setting]:
    setting = Setting()
    async with anyio.create_task_group() as group:
        await group.start(setting.session.live)
        try:
            yield setting
        finally:
            setting.recognizer.gate.open()
            setting.session.close()
    assert setting.language.forgotten == ["s"]


def respond(generation: int, *messages: Message, **fields: bool) -> Respond:
    request = ResponseRequest(instructions="Be kind.", messages=messages, **fields)  # type: ignore[arg-type]
    return Respond(session="s", generation=generation, request=request)


def hear(seconds: float, start: int = 0, name: str = "u") -> Hear:
    return Hear(session="s", utterance=name, start=start, pcm=loud(seconds))


HELLO = Message("user", (TextPart("hello"),))


async def test_every_command_is_carried_out() -> None:
    async with open_session() as setting:
        setting.language.answers = [[TextPiece("Hello."), END]]
        setting.take(
            ConfigureListening(session="s", partials=False),
            hear(0.3),
            JudgeTurn(session="s", utterance="u", at=4800),
            EndUtterance(session="s", utterance="u", end=4800),
            AlignSpeech(session="s", reference="r", text="a b", pcm=bytes(4800)),
            hear(0.1, name="dropped"),
            DropUtterance(session="s", utterance="dropped"),
            respond(1, Message("user", (UtterancePart("u"),))),
        )
        for kind in (TurnJudged, TranscriptFinal, SpeechAligned, SpeechGenerated, ResponseEnded):
            await setting.until(kind)
        assert setting.language.requests[0].messages == (Message("user", (TextPart("w0 w1 w2"),)),)


async def test_a_cancel_and_an_acknowledgement_find_their_answer() -> None:
    async with open_session() as setting:
        sentence = "x" * 149 + ".\n "
        pieces = [TextPiece(sentence)] * (DRAFT_WINDOW_MS // 1490 + 20)
        setting.language.answers = [[*pieces, END], [anyio.Event()]]
        setting.take(respond(1, HELLO, speculative=True), respond(2, HELLO))
        await setting.until(SpeechGenerated, DRAFT_WINDOW_MS // 1000)
        await anyio.wait_all_tasks_blocked()
        before = len(setting.outputs)
        setting.take(
            Acknowledge(session="s", generation=9, sent_ms=5),
            CancelResponse(session="s", generation=9),
            Acknowledge(session="s", generation=1, sent_ms=5000),
        )
        await setting.until(SpeechGenerated, before + 1)
        setting.take(CancelResponse(session="s", generation=2))
        ended = [o for o in setting.outputs if isinstance(o, ResponseEnded)]
        assert [(end.generation, end.reason) for end in ended] == [(2, "cancelled")]


async def test_too_many_answers_at_a_time_are_refused_one_by_one() -> None:
    async with open_session() as setting:
        setting.language.answers = [[anyio.Event()] for _ in range(REPLIES_A_SESSION)]
        for generation in range(REPLIES_A_SESSION + 1):
            setting.take(respond(generation, HELLO))
        await setting.until(ResponseEnded)
        (end,) = setting.outputs
        assert isinstance(end, ResponseEnded)
        assert end.generation == REPLIES_A_SESSION
        assert end.failure is not None
        assert end.failure.code == "engine_overloaded"


async def test_closing_stops_everything_and_nothing_is_said_any_more() -> None:
    async with open_session() as setting:
        setting.recognizer.gate.close()
        setting.language.answers = [[TextPiece("Hello there. "), anyio.Event()]]
        setting.take(hear(0.3), EndUtterance(session="s", utterance="u", end=4800))
        setting.take(respond(1, HELLO))
        await setting.until(SpeechGenerated)
        before = len(setting.outputs)
        setting.session.close()
        setting.recognizer.gate.open()
        await anyio.wait_all_tasks_blocked()
    assert len(setting.outputs) == before
    assert setting.language.left == 1


async def test_preparing_warms_as_much_of_the_prompt_as_is_known() -> None:
    async with open_session() as setting:
        setting.take(ConfigureListening(session="s", partials=True))
        spoken = Message("user", (UtterancePart("u"),))
        request = ResponseRequest(instructions="Be kind.", messages=(HELLO, spoken))
        setting.take(Prepare(session="s", request=request))
        await anyio.wait_all_tasks_blocked()
        assert [asked.messages for asked in setting.language.warmed] == [(HELLO,)]
        for part in range(3):
            setting.take(hear(0.3, part * 4800))
            with anyio.fail_after(PATIENCE_S):
                while len(setting.recognizer.calls) <= part:
                    await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(PATIENCE_S):
                while not setting.session._stages.recognition._thread.turnstile.idle:
                    await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
        words = [asked.messages[1].parts[0] for asked in setting.language.warmed[1:]]
        assert words[0] == TextPart("w0 w1 w2")
        assert words[-1] == TextPart(" ".join(f"w{n}" for n in range(9)))


async def test_what_a_session_opens_or_closes_is_not_its_own_business() -> None:
    async with open_session() as setting:
        setting.take(OpenSession(session="s"), CloseSession(session="s"))
        setting.language.answers = [[TextPiece("Hello."), END]]
        setting.take(respond(1, HELLO))
        await setting.until(ResponseEnded)
