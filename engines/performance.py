"""A script being played to many sessions at once, from one heap of deadlines.

Deadlines are absolute, so nothing drifts, and lie on whole milliseconds, so that what is due
together leaves together.
"""

import heapq
import itertools
import math
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Literal

import msgspec

from duologue.codecs.video_pattern import pattern
from duologue.engines.backend import Emit
from duologue.engines.engine import (
    HEARD_RATE,
    SPOKEN_RATE,
    Acknowledge,
    AlignSpeech,
    CancelResponse,
    CloseSession,
    Command,
    ConfigureListening,
    DropUtterance,
    EndUtterance,
    EngineFailure,
    Hear,
    JudgeTurn,
    OpenSession,
    PictureGenerated,
    Prepare,
    Respond,
    ResponseEnded,
    See,
    SpeechAligned,
    SpeechGenerated,
    TextGenerated,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
    TranscriptDelta,
    TranscriptFinal,
    TurnJudged,
    Usage,
    WordTime,
)
from duologue.engines.pulse import Pulse
from duologue.engines.script import (
    Choice,
    Clause,
    ScriptedOptions,
    choose,
    count_tokens,
    shorten,
)
from duologue.engines.sight import View, describe_colour, with_note
from duologue.engines.stamps import STAMP_BYTES, Stamp, stamp, tone, tone_hz

REQUESTS_KEPT = 1000
MS = 1_000_000
WORD_HEARD_MS = 300
"""A scripted transcript is recognised at a word per this much audio."""

_PARKED = -1

Steps = Generator[int, None, bool]
"""Part of an answer: it yields when its next step is due (ns), or :data:`_PARKED` until something
is acknowledged."""

EndReason = Literal["completed", "max_output_tokens", "content_filter", "cancelled", "failed"]


class _Utterance:
    def __init__(self, start: int, text: str) -> None:
        self.start = start
        self.end = start
        self.text = text
        self.said = 0

    @property
    def seconds(self) -> float:
        return (self.end - self.start) / HEARD_RATE

    def transcript(self) -> str:
        return self.text or f"utterance of {self.seconds:.1f} s"


class _Answer:
    """One answer being given. ``play`` is ``None`` once it has ended."""

    def __init__(self, session: str, command: Respond, begin_ns: int, input_tokens: int) -> None:
        self.session = session
        self.generation = command.generation
        self.request = command.request
        self.begin_ns = begin_ns
        self.input_tokens = input_tokens
        self.output_tokens = 0
        self.acknowledged_ms = 0
        self.parked = False
        self.hung = False
        self.play: Iterator[int] | None = None


class _Session:
    def __init__(self, partials: bool) -> None:
        self.partials = partials
        self.utterances: dict[str, _Utterance] = {}
        self.answers: dict[int, _Answer] = {}
        self.utterances_heard = 0
        self.turns_judged = 0
        self.replies_given = 0
        self.view: View | None = None


class Performance:
    """Plays a script to many sessions: commands and the time go in, outputs come out.

    Nothing in it waits or reads a clock; all times are nanoseconds on the caller's.
    """

    def __init__(self, options: ScriptedOptions, pulse: Pulse, emit: Emit) -> None:
        self._options = options
        self._pulse = pulse
        self._emit = emit
        self._now_ns = 0
        self._sessions: dict[str, _Session] = {}
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._stuck: list[AbstractContextManager[None]] = []
        self.requests: deque[Respond] = deque(maxlen=REQUESTS_KEPT)
        """The last requests, oldest first."""

    @property
    def sessions(self) -> int:
        """How many are open."""
        return len(self._sessions)

    @property
    def next_due_ns(self) -> int | None:
        """When :meth:`fire` has something to do."""
        return self._due[0][0] if self._due else None

    def fire(self, now_ns: int) -> None:
        """Do everything that is due."""
        self._now_ns = now_ns
        while self._due and self._due[0][0] <= now_ns:
            heapq.heappop(self._due)[2]()

    def take(self, command: Command, now_ns: int) -> None:
        """Obey a command. What it makes due may be earlier than what was due before."""
        self._now_ns = now_ns
        self._take(command)

    def _at(self, due_ns: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (due_ns, next(self._order), action))

    def _soon(self, ms: float) -> int:
        """The whole millisecond that comes next, and `ms` more."""
        return -(-self._now_ns // MS) * MS + int(ms * MS)

    # -- commands -----------------------------------------------------------------------

    def _take(self, command: Command) -> None:
        if isinstance(command, OpenSession):
            self._sessions[command.session] = _Session(partials=True)
            return
        session = self._sessions.get(command.session)
        if session is None:
            return
        match command:
            case Hear():
                self._hear(session, command)
            case Acknowledge():
                self._acknowledge(session, command)
            case CloseSession():
                self._close(command.session)
            case ConfigureListening(partials=partials):
                session.partials = partials
            case EndUtterance():
                self._end_utterance(session, command)
            case DropUtterance(utterance=name):
                session.utterances.pop(name, None)
            case JudgeTurn():
                self._judge(session, command)
            case Respond():
                self._respond(session, command)
            case CancelResponse(generation=generation):
                answer = session.answers.get(generation)
                if answer is not None and not answer.hung:
                    self._end(answer, "cancelled")
            case AlignSpeech():
                words = spread_words(command.text, self._samples(command))
                self._emit(SpeechAligned(command.reference, words, session=command.session))
            case See(jpeg=jpeg):
                session.view = View(describe_colour(jpeg), self._now_ns / 1e9) if jpeg else None
            case Prepare():
                pass  # a script is always warm

    def _samples(self, command: AlignSpeech) -> int:
        """How long the whole text is: of a clause of the script the audio may be the beginning."""
        clauses = (clause for reply in self._options.replies for clause in reply.clauses)
        whole = max((clause.ms for clause in clauses if clause.text == command.text), default=0)
        return max(len(command.pcm) // 2, whole * SPOKEN_RATE // 1000)

    def _close(self, name: str) -> None:
        for answer in self._sessions.pop(name).answers.values():
            answer.play = None

    # -- listening ----------------------------------------------------------------------

    def _hear(self, session: _Session, command: Hear) -> None:
        utterance = session.utterances.get(command.utterance)
        if utterance is None:
            texts = self._options.transcripts
            text = texts[session.utterances_heard % len(texts)] if texts else ""
            session.utterances_heard += 1
            utterance = session.utterances[command.utterance] = _Utterance(command.start, text)
        utterance.end = max(utterance.end, command.start + len(command.pcm) // 2)
        if session.partials and utterance.text:
            words = int(utterance.seconds * 1000 / WORD_HEARD_MS)
            self._say_heard(command.session, command.utterance, utterance, words)

    def _say_heard(self, session: str, name: str, utterance: _Utterance, words: int) -> None:
        pieces = re.findall(r"\s*\S+", utterance.transcript())
        delta = "".join(pieces[utterance.said : words])
        utterance.said = max(utterance.said, min(words, len(pieces)))
        if delta:
            self._emit(TranscriptDelta(name, delta, session=session))

    def _end_utterance(self, session: _Session, command: EndUtterance) -> None:
        utterance = session.utterances.get(command.utterance)
        if utterance is None:
            self._emit(TranscriptFinal(command.utterance, "", 0.0, session=command.session))
            return
        utterance.end = command.end
        due_ns = self._soon(self._options.transcript_ms)
        self._at(due_ns, partial(self._finish_transcript, session, command))

    def _finish_transcript(self, session: _Session, command: EndUtterance) -> None:
        utterance = session.utterances.get(command.utterance)
        if utterance is None or self._sessions.get(command.session) is not session:
            return
        text = utterance.transcript()
        if session.partials:
            words = len(text.split())
            self._say_heard(command.session, command.utterance, utterance, words)
        self._emit(
            TranscriptFinal(command.utterance, text, utterance.seconds, session=command.session)
        )

    def _judge(self, session: _Session, command: JudgeTurn) -> None:
        probabilities = self._options.probabilities
        probability = probabilities[session.turns_judged % len(probabilities)]
        session.turns_judged += 1
        judged = TurnJudged(command.utterance, command.at, probability, session=command.session)

        def say() -> None:
            if self._sessions.get(command.session) is session:
                self._emit(judged)

        if self._options.judge_ms:
            self._at(self._soon(self._options.judge_ms), say)
        else:
            say()

    # -- answering ----------------------------------------------------------------------

    def _respond(self, session: _Session, command: Respond) -> None:
        if session.view is not None:
            shown = with_note(command.request, session.view.note(self._now_ns / 1e9))
            command = msgspec.structs.replace(command, request=shown)
        self.requests.append(command)
        request = command.request
        heard = {name: said.transcript() for name, said in session.utterances.items()}
        tokens = count_tokens(request, heard)
        answer = _Answer(command.session, command, self._soon(0), tokens)
        session.answers[command.generation] = answer
        if tokens > self._options.context_tokens:
            text = f"{tokens} tokens, of {self._options.context_tokens} that fit"
            self._end(answer, "failed", EngineFailure("context_too_long", text))
            return
        choice = choose(self._options, request, heard, session.replies_given)
        session.replies_given += not choice.reply.match and choice.number < len(
            self._options.replies
        )
        answer.play = self._perform(answer, choice)
        self._advance(answer)

    def _advance(self, answer: _Answer) -> None:
        """Take the next step of an answer, and set the time of the one after."""
        if answer.play is None:
            return
        due_ns = next(answer.play, None)
        if due_ns == _PARKED:
            answer.parked = True
        elif due_ns is not None:
            self._at(due_ns, partial(self._advance, answer))

    def _acknowledge(self, session: _Session, command: Acknowledge) -> None:
        answer = session.answers.get(command.generation)
        if answer is None:
            return
        answer.acknowledged_ms = max(answer.acknowledged_ms, command.sent_ms)
        if answer.parked:
            answer.parked = False
            self._advance(answer)

    def _perform(self, answer: _Answer, choice: Choice) -> Iterator[int]:
        reply = choice.reply
        limit = answer.request.max_output_tokens
        clauses = reply.clauses if limit is None else shorten(reply.clauses, limit)
        cut = clauses != reply.clauses
        steps = self._speak if answer.request.modality == "audio" else self._write
        failed = yield from steps(answer, choice, clauses)
        if reply.hang:
            answer.hung = True
            self._stuck.append(self._pulse.step())
            self._stuck[-1].__enter__()
            while True:
                yield _PARKED
        if failed or reply.failure is not None:
            self._end(answer, "failed", reply.failure)
            return
        if not cut:
            yield from self._call(answer, choice)
        self._end(answer, "max_output_tokens" if cut else reply.ending)

    def _speak(self, answer: _Answer, choice: Choice, clauses: tuple[Clause, ...]) -> Steps:
        """Say the clauses; true when the script fails on the way."""
        reply, options, request = choice.reply, self._options, answer.request
        voices = options.voices
        voice = voices.index(request.voice) if request.voice in voices else 0
        chunk = SPOKEN_RATE * options.chunk_ms // 1000
        begin_ns = answer.begin_ns + int(reply.first_ms * MS)
        made = sequence = 0
        for number, clause in enumerate(clauses):
            hz = tone_hz(choice.number, number, voice)
            total = int(clause.ms * SPOKEN_RATE / 1000 / request.speed)
            for start in range(0, total, chunk):
                if reply.failure is not None and sequence >= reply.failure_after:
                    return True
                due_ns = begin_ns
                if reply.pace:
                    due_ns += int(made * 1_000_000_000 / SPOKEN_RATE / reply.pace)
                yield due_ns
                while self._window_is_shut(answer, made):
                    yield _PARKED
                    late_ns = max(0, self._now_ns - due_ns)
                    begin_ns += late_ns
                    due_ns += late_ns
                samples = min(chunk, total - start)
                pcm = tone(hz, start, samples)
                if len(pcm) >= STAMP_BYTES:
                    mark = Stamp(sequence, due_ns, choice.number, number, answer.generation)
                    pcm = stamp(mark) + pcm[STAMP_BYTES:]
                text = clause.text if start == 0 else ""
                answer.output_tokens += len(text.split())
                self._emit(SpeechGenerated(answer.generation, pcm, text, session=answer.session))
                self._picture(answer, made, made + samples)
                made += samples
                sequence += 1
        return False

    def _picture(self, answer: _Answer, start: int, end: int) -> None:
        """The pictures that go with these samples; the first is number 0."""
        options = self._options
        rate = options.picture_rate
        if not rate:
            return
        first, last = (math.ceil(at * rate / SPOKEN_RATE) for at in (start, end))
        for number in range(first, last):
            width, height = options.picture_width, options.picture_height
            self._emit(
                PictureGenerated(
                    answer.generation,
                    number * 1000 / rate,
                    width,
                    height,
                    pattern(number, width, height),
                    session=answer.session,
                )
            )

    def _window_is_shut(self, answer: _Answer, made: int) -> bool:
        window_ms = self._options.window_ms
        if window_ms is None:
            return False
        return made * 1000 // SPOKEN_RATE - answer.acknowledged_ms >= window_ms

    def _write(self, answer: _Answer, choice: Choice, clauses: tuple[Clause, ...]) -> Steps:
        """Write the clauses word by word; true when the script fails on the way."""
        reply = choice.reply
        begin_ns = answer.begin_ns + int(reply.first_ms * MS)
        words = re.findall(r"\s*\S+", "".join(clause.text for clause in clauses))
        for count, word in enumerate(words):
            if reply.failure is not None and count >= reply.failure_after:
                return True
            yield begin_ns + int(count * self._options.word_ms * MS)
            answer.output_tokens += 1
            self._emit(TextGenerated(answer.generation, word, session=answer.session))
        return False

    def _call(self, answer: _Answer, choice: Choice) -> Iterator[int]:
        generation, session = answer.generation, answer.session
        due_ns = max(answer.begin_ns + int(choice.reply.first_ms * MS), self._soon(0))
        for number, call in enumerate(choice.reply.calls):
            name = f"call_{generation}_{number}"
            yield due_ns
            self._emit(ToolCallStarted(generation, name, call.name, session=session))
            for start in range(0, len(call.arguments), call.piece):
                due_ns += int(self._options.word_ms * MS)
                yield due_ns
                delta = call.arguments[start : start + call.piece]
                answer.output_tokens += 1
                self._emit(ToolCallDelta(generation, name, delta, session=session))
            self._emit(ToolCallEnded(generation, name, call.arguments, session=session))

    def _end(
        self, answer: _Answer, reason: EndReason, failure: EngineFailure | None = None
    ) -> None:
        answer.play = None
        del self._sessions[answer.session].answers[answer.generation]
        usage = Usage(input_tokens=answer.input_tokens, output_tokens=answer.output_tokens)
        self._emit(
            ResponseEnded(
                answer.generation, reason, usage=usage, failure=failure, session=answer.session
            )
        )


def spread_words(text: str, samples: int) -> tuple[WordTime, ...]:
    """The words of `text`, spread evenly over `samples` of speech at 24 kHz."""
    words = re.findall(r"^\s*\S+\s*|\S+\s*", text)
    ms = samples * 1000 // SPOKEN_RATE
    return tuple(WordTime(word, ms * (index + 1) // len(words)) for index, word in enumerate(words))
