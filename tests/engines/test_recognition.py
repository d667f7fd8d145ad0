"""Listening with stand-ins: a loud 100 ms is a word."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest
from hypothesis import given, strategies as st

from duologue.codecs.pcm import bytes_from_int16
from duologue.engines import recognition as recognition_module
from duologue.engines.engine import (
    AlignSpeech,
    ConfigureListening,
    DropUtterance,
    EndUtterance,
    Hear,
    JudgeTurn,
    OpenSession,
    Output,
    SpeechAligned,
    TranscriptDelta,
    TranscriptFailed,
    TranscriptFinal,
    TurnJudged,
    WordTime,
)
from duologue.engines.fairness import Rank
from duologue.engines.pulse import Pulse
from duologue.engines.recognition import (
    JOBS_A_SESSION,
    TEXTS_KEPT,
    Ears,
    Recognition,
    RecognitionFailed,
    words_with_spaces,
)
from duologue.engines.stand_ins import StandInDetector, StandInRecognizer
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

RATE = 16_000


def loud(seconds: float) -> bytes:
    samples = np.full(int(seconds * RATE), 8000, np.int16)
    samples[::2] *= -1
    return bytes_from_int16(samples)


def quiet(seconds: float) -> bytes:
    return bytes(int(seconds * RATE) * 2)


class Time:
    """A clock that only the test moves."""

    now = 10.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Room:
    """One session that listens."""

    recognizer: StandInRecognizer
    detector: StandInDetector
    recognition: Recognition
    ears: Ears
    outputs: list[Output]
    news: list[str]
    at: dict[str, int] = field(default_factory=dict)

    def hear(self, *pieces: bytes, name: str = "u") -> None:
        for pcm in pieces:
            start = self.at.get(name, 0)
            command = Hear(session="s", utterance=name, start=start, pcm=pcm)
            self.recognition.hear(self.ears, command)
            self.at[name] = start + len(pcm) // 2

    def end(self, at: int | None = None, name: str = "u") -> None:
        end = self.at.get(name, 0) if at is None else at
        self.recognition.end(self.ears, EndUtterance(session="s", utterance=name, end=end))

    async def settle(self) -> None:
        """Until nothing is under way any more."""
        with anyio.fail_after(PATIENCE_S):
            await anyio.wait_all_tasks_blocked()
            while not (
                self.recognition._thread.turnstile.idle
                and self.recognition._detector_thread.turnstile.idle
            ):
                # A hop to a thread and back leaves the others room to run.
                await anyio.to_thread.run_sync(lambda: None)
                await anyio.wait_all_tasks_blocked()

    async def arrive(self) -> None:
        """Until the recogniser is at its gate."""
        with anyio.fail_after(PATIENCE_S):
            await anyio.to_thread.run_sync(self.recognizer.gate.arrived.acquire)

    def of(self, kind: type[Any]) -> list[Any]:
        return [output for output in self.outputs if isinstance(output, kind)]


@asynccontextmanager
async def room(
    partials: bool = False, clock: Callable[[], float] = lambda: 0.0, **opened: str
) -> AsyncIterator[Room]:
    recognizer, detector = StandInRecognizer(), StandInDetector()
    recognition = Recognition(recognizer, detector, Pulse(), clock)
    outputs: list[Output] = []
    news: list[str] = []
    async with anyio.create_task_group() as group:
        ears = Ears(OpenSession(session="s", **opened), group, outputs.append, news.append)
        if partials:
            recognition.configure(ears, ConfigureListening(session="s", partials=True))
        try:
            yield Room(recognizer, detector, recognition, ears, outputs, news)
        finally:
            recognizer.gate.open()
            group.cancel_scope.cancel()


async def test_an_utterance_becomes_one_final_transcript() -> None:
    async with room() as r:
        r.hear(loud(0.2), loud(0.1))
        r.end()
        await r.settle()
    assert r.outputs == [TranscriptFinal(session="s", utterance="u", text="w0 w1 w2", seconds=0.3)]


async def test_only_what_lies_before_the_end_is_recognised() -> None:
    async with room() as r:
        r.hear(loud(0.5))
        r.end(at=3200)
        await r.settle()
    assert r.of(TranscriptFinal)[0].text == "w0 w1"
    assert r.of(TranscriptFinal)[0].seconds == 0.2


async def test_an_utterance_without_audio_has_an_empty_transcript() -> None:
    async with room() as r:
        r.end(at=500)
        await r.settle()
    assert [output.text for output in r.of(TranscriptFinal)] == [""]


async def test_confirming_a_turn_costs_nothing_when_its_words_are_known() -> None:
    async with room() as r:
        r.hear(loud(0.3))
        text = await r.recognition.transcript(r.ears, "u", 4800, lambda: Rank.DRAFT_FIRST)
        assert text == "w0 w1 w2"
        calls = len(r.recognizer.calls)
        r.hear(quiet(0.05))
        r.end(at=4800)
        await r.settle()
        assert r.of(TranscriptFinal)[0].text == text
        assert len(r.recognizer.calls) == calls


async def test_a_draft_and_the_final_that_wait_together_are_recognised_once() -> None:
    async with room() as r:
        r.recognizer.gate.close()
        r.hear(loud(0.3))
        texts: list[str] = []

        async def want() -> None:
            texts.append(await r.recognition.transcript(r.ears, "u", 4800, lambda: Rank.FIRST))

        r.ears.tasks.start_soon(want)
        r.end(at=4800)
        await r.arrive()
        r.recognizer.gate.open()
        await r.settle()
        assert len(r.recognizer.calls) == 1
        assert texts == [r.of(TranscriptFinal)[0].text] == ["w0 w1 w2"]


async def test_a_pause_is_recognised_before_anybody_asks() -> None:
    async with room() as r:
        r.hear(loud(0.3), quiet(0.1))
        await r.settle()
        assert len(r.recognizer.calls) == 1
        await r.recognition.transcript(r.ears, "u", 4800, lambda: Rank.DRAFT_FIRST)
        r.hear(quiet(0.1))
        await r.settle()
        assert len(r.recognizer.calls) == 1


async def test_speech_that_goes_on_is_recognised_again() -> None:
    async with room() as r:
        r.hear(loud(0.3))
        assert await r.recognition.transcript(r.ears, "u", 4800, lambda: Rank.FIRST) == "w0 w1 w2"
        r.hear(loud(0.2))
        r.end()
        await r.settle()
    assert r.of(TranscriptFinal)[0].text == "w0 w1 w2 w3 w4"


async def test_partials_show_words_once_two_looks_agree_and_join_to_the_whole() -> None:
    async with room(partials=True) as r:
        for _ in range(4):
            r.hear(loud(0.3))
            await r.settle()
        deltas = "".join(delta.delta for delta in r.of(TranscriptDelta))
        assert deltas == " ".join(f"w{n}" for n in range(9))
        r.end()
        await r.settle()
        deltas = "".join(delta.delta for delta in r.of(TranscriptDelta))
        assert deltas == r.of(TranscriptFinal)[0].text
        assert isinstance(r.outputs[-1], TranscriptFinal)


async def test_without_a_wish_for_partials_there_are_fewer_looks_and_none_is_told() -> None:
    async with room() as r:
        for _ in range(5):
            r.hear(loud(0.1))
        await r.settle()
        assert r.recognizer.calls == []
        r.hear(loud(0.1))
        await r.settle()
        assert r.recognizer.calls == [(9600, True)]
        assert r.news == ["u"]
        assert r.outputs == []


async def test_a_slow_recogniser_looks_less_often_at_all_sessions_together() -> None:
    time = Time()
    async with room(partials=True, clock=time) as r:
        r.recognizer.gate.close()
        r.hear(loud(0.3))
        await r.arrive()
        time.now += 0.4
        r.recognizer.gate.open()
        await r.settle()
        for passed in (0.3, 0.3, 0.3):
            time.now += passed
            for name in ("u", "other"):
                r.hear(loud(0.3), name=name)
                await r.settle()
        # 0.4 s of work, then a rest of 0.8 s.
        assert r.recognizer.calls == [(4800, True), (4 * 4800, True), (3 * 4800, True)]


async def test_nothing_is_begun_in_a_hush_that_may_become_a_pause() -> None:
    async with room(partials=True) as r:
        r.hear(loud(0.28), quiet(0.04))
        await r.settle()
        assert r.recognizer.calls == []
        r.hear(quiet(0.04))
        await r.settle()
        assert len(r.recognizer.calls) == 1


async def test_silence_after_a_look_is_not_looked_at_again() -> None:
    async with room(partials=True) as r:
        r.hear(loud(0.3), quiet(0.1))
        await r.settle()
        for _ in range(10):
            r.hear(quiet(0.1))
            await r.settle()
        assert len(r.recognizer.calls) == 1


async def test_partials_are_one_at_a_time_and_take_all_there_is() -> None:
    async with room(partials=True) as r:
        r.recognizer.gate.close()
        r.hear(loud(0.3))
        await r.arrive()
        for _ in range(5):
            r.hear(loud(0.3))
        await anyio.wait_all_tasks_blocked()
        assert [size for size, _ in r.recognizer.calls] == [4800]
        r.recognizer.gate.open()
        await r.settle()
        r.hear(loud(0.1))
        await r.settle()
        assert [size for size, _ in r.recognizer.calls] == [4800, 4800 * 6 + 1600]


async def test_a_final_goes_before_partials_that_wait() -> None:
    async with room(partials=True) as r:
        r.recognizer.gate.close()
        r.hear(loud(0.3), name="a")
        await r.arrive()
        r.hear(loud(0.5), name="b")
        r.hear(loud(0.7), name="c")
        r.end(name="c")
        await anyio.wait_all_tasks_blocked()
        r.recognizer.gate.open()
        await r.settle()
    assert [size for size, _ in r.recognizer.calls][:2] == [4800, 11200]


async def test_words_are_news_for_who_prepares_an_answer() -> None:
    async with room(partials=True) as r:
        for _ in range(3):
            r.hear(loud(0.3))
            await r.settle()
        assert r.news
        assert r.recognition.words_so_far(r.ears, "u") == " ".join(f"w{n}" for n in range(9))
        assert r.recognition.words_so_far(r.ears, "unknown") == ""
        r.end()
        await r.settle()
        assert r.recognition.words_so_far(r.ears, "u").endswith("w8")


async def test_a_dropped_utterance_is_never_mentioned() -> None:
    async with room(partials=True) as r:
        r.recognizer.gate.close()
        r.hear(loud(0.3))
        r.end()
        await r.arrive()
        r.recognition.judge(r.ears, JudgeTurn(session="s", utterance="u", at=100))
        r.recognition.drop(r.ears, DropUtterance(session="s", utterance="u"))
        r.recognizer.gate.open()
        await r.settle()
        assert r.outputs == []
        assert await r.recognition.transcript(r.ears, "u", None, lambda: Rank.FIRST) == ""


async def test_a_closed_session_is_never_mentioned() -> None:
    async with room() as r:
        r.recognizer.gate.close()
        r.hear(loud(0.3))
        r.end()
        r.recognition.align(
            r.ears, AlignSpeech(session="s", reference="r", text="a", pcm=bytes(480))
        )
        await r.arrive()
        r.recognition.forget(r.ears)
        r.recognizer.gate.open()
        await r.settle()
    assert r.outputs == []


async def test_a_failure_is_answered_and_the_session_goes_on() -> None:
    async with room() as r:
        r.recognizer.failure = RuntimeError("the weights are gone")
        r.hear(loud(0.3))
        with pytest.raises(RecognitionFailed, match="gone"):
            await r.recognition.transcript(r.ears, "u", 4800, lambda: Rank.FIRST)
        r.end()
        await r.settle()
        (failed,) = r.outputs
        assert failed == TranscriptFailed(
            session="s", utterance="u", message="the weights are gone"
        )
        r.recognizer.failure = None
        r.hear(loud(0.1), name="next")
        r.end(name="next")
        await r.settle()
        assert r.of(TranscriptFinal)[0].text == "w0"


@pytest.mark.filterwarnings("ignore")
async def test_an_unexpected_failure_is_answered_without_its_details() -> None:
    async with room(partials=True) as r:
        r.recognizer.failure = KeyError("inside")
        r.hear(loud(0.3))
        await r.settle()
        r.end()
        await r.settle()
        (failed,) = r.of(TranscriptFailed)
        assert "inside" not in failed.message


async def test_a_language_that_the_weights_lack_is_told() -> None:
    async with room(language="de") as r:
        r.hear(loud(0.3))
        r.end()
        await r.settle()
        assert "'de'" in r.of(TranscriptFailed)[0].message
        r.recognition.configure(r.ears, ConfigureListening(session="s", hint="Duologue"))
        r.hear(loud(0.3), name="v")
        r.end(name="v")
        await r.settle()
        assert r.of(TranscriptFinal)
        assert r.recognizer.hints[-1] == "Duologue"


async def test_a_long_utterance_is_recognised_in_parts_that_join() -> None:
    async with room() as r:
        for _ in range(50):
            r.hear(loud(0.9), quiet(0.1))
            await r.settle()
        r.end()
        await r.settle()
        assert max(size for size, _ in r.recognizer.calls) <= 28 * RATE
        assert len(r.of(TranscriptFinal)[0].text.split()) == pytest.approx(450, abs=6)


async def test_a_turn_is_judged_on_what_was_heard_up_to_a_position() -> None:
    async with room() as r:
        r.hear(*[loud(1)] * 10)
        r.recognition.judge(r.ears, JudgeTurn(session="s", utterance="u", at=3 * RATE))
        r.recognition.judge(r.ears, JudgeTurn(session="s", utterance="u", at=10 * RATE))
        r.recognition.judge(r.ears, JudgeTurn(session="s", utterance="unknown", at=5))
        await r.settle()
    assert r.of(TurnJudged) == [
        TurnJudged(session="s", utterance="u", at=3 * RATE, probability=0.75),
        TurnJudged(session="s", utterance="u", at=10 * RATE, probability=0.75),
    ]
    assert r.detector.heard == [3 * RATE, 8 * RATE]


def spoken(seconds: float, text: str, reference: str = "r") -> AlignSpeech:
    pcm = bytes(int(seconds * 24_000) * 2)
    return AlignSpeech(session="s", reference=reference, text=text, pcm=pcm)


async def test_aligned_words_join_to_the_text_and_have_their_times() -> None:
    async with room() as r:
        r.recognition.align(r.ears, spoken(1.0, " Well,  hello\nyou. "))
        await r.settle()
    (aligned,) = r.of(SpeechAligned)
    assert aligned.reference == "r"
    assert aligned.words == (
        WordTime(" Well,  ", 333),
        WordTime("hello\n", 667),
        WordTime("you. ", 1000),
    )


async def test_every_alignment_is_answered_even_where_it_fails_or_there_are_too_many() -> None:
    async with room() as r:
        r.recognizer.failure = RuntimeError("no")
        r.recognition.align(r.ears, spoken(0.1, "a", "broken"))
        await r.settle()
        r.recognizer.failure = None
        r.recognition.align(r.ears, spoken(0.1, "", "empty"))
        await r.settle()
        for number in range(JOBS_A_SESSION + 1):
            r.recognition.align(r.ears, spoken(0.1, "a", f"{number}"))
        await r.settle()
    answers = {aligned.reference: aligned.words for aligned in r.of(SpeechAligned)}
    assert answers["broken"] == answers["empty"] == answers[str(JOBS_A_SESSION)] == ()
    assert all(answers[str(number)] for number in range(JOBS_A_SESSION))


async def test_a_long_clause_is_aligned_as_far_as_can_be() -> None:
    async with room() as r:
        r.recognition.align(r.ears, spoken(45.0, "a b"))
        await r.settle()
    assert r.of(SpeechAligned)[0].words[-1].end_ms == 30_000


async def test_texts_of_old_utterances_are_let_go() -> None:
    async with room() as r:
        for number in range(TEXTS_KEPT + 1):
            r.ears.keep(f"{number}", "text")
        assert "0" not in r.ears.texts
        assert len(r.ears.texts) == TEXTS_KEPT


@given(st.text(alphabet="ab \n.", max_size=40))
def test_words_with_their_spaces_join_to_the_text(text: str) -> None:
    pieces = words_with_spaces(text)
    assert len(pieces) == len(text.split())
    if pieces:
        assert "".join(pieces) == text


def test_the_look_ahead_is_short_enough_for_a_draft_at_two_hundred_milliseconds() -> None:
    assert recognition_module.PAUSE_SAMPLES <= RATE // 10
