"""What sessions hear: utterances to transcripts, turns to judgements, speech to word times.

One recogniser and one turn detector serve all sessions, a call at a time. A transcript that an
answer was drafted from is kept, so that confirming the turn costs no second recognition.
"""

import logging
import re
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Protocol

import anyio.abc
import numpy as np
import numpy.typing as npt

from duologue.codecs.pcm import int16_from_bytes
from duologue.codecs.resample import Resampler
from duologue.engines.backend import Emit
from duologue.engines.engine import (
    HEARD_RATE,
    SPOKEN_RATE,
    AlignSpeech,
    ConfigureListening,
    DropUtterance,
    EndUtterance,
    Hear,
    JudgeTurn,
    OpenSession,
    SpeechAligned,
    TranscriptDelta,
    TranscriptFailed,
    TranscriptFinal,
    TurnJudged,
    WordTime,
)
from duologue.engines.fairness import Rank
from duologue.engines.pulse import Pulse
from duologue.engines.turnstile import ModelThread
from duologue.engines.utterance import KEPT_SECONDS, Utterance
from duologue.models.partials import StableTranscript
from duologue.models.whisper import (
    LONGEST_ALIGNED_SECONDS,
    Transcription,
    WordTiming,
    split_at_quiet,
)

PARTIAL_SAMPLES = HEARD_RATE * 3 // 10
"""New audio that is worth another look when the words are shown."""

WARM_SAMPLES = HEARD_RATE * 6 // 10
"""The same when the words only warm the next prompt."""

REST = 3.0
"""Looks at those who speak, all sessions together, come no more often than so many times what the
last one took: a recogniser that is busy all the time would be busy when a turn ends, too."""

HUSH_SAMPLES = HEARD_RATE * 2 // 100
"""Silence that may become a pause: nothing is begun that the pause would have to wait for."""

PAUSE_SAMPLES = HEARD_RATE * 8 // 100
"""Silence after which an answer may soon be wanted: recognise before it is asked for."""

FOLD_SECONDS = 20.0
TEXTS_KEPT = 64
JOBS_A_SESSION = 8
"""Alignments and judgements that a session may have waiting; more are answered with nothing."""

Float32 = npt.NDArray[np.float32]

log = logging.getLogger(__name__)


class Recognizer(Protocol):
    """See :class:`duologue.models.whisper.Whisper`."""

    def transcribe(
        self,
        audio: Float32,
        *,
        prompt: str = "",
        language: str = "en",
        draft: bool = False,
        cancelled: Callable[[], bool],
    ) -> Transcription: ...

    def align(
        self, audio: Float32, text: str, *, language: str = "en"
    ) -> tuple[WordTiming, ...]: ...


class TurnDetector(Protocol):
    """See :class:`duologue.models.smart_turn.SmartTurn`."""

    def probability(self, audio: Float32) -> float: ...


class RecognitionFailed(Exception):
    """An utterance has no transcript, and why."""


class Ears:
    """What is known of one session's listening.

    ``on_words`` hears the name of an utterance when its words so far are others than before.
    """

    def __init__(
        self,
        opened: OpenSession,
        tasks: anyio.abc.TaskGroup,
        emit: Emit,
        on_words: Callable[[str], None],
    ) -> None:
        self.session = opened.session
        self.tasks = tasks
        self.emit = emit
        self.on_words = on_words
        self.language = opened.language
        self.hint = opened.hint
        self.partials = False
        self.utterances: dict[str, Utterance] = {}
        self.stable: dict[str, StableTranscript] = {}
        self.texts: OrderedDict[str, str] = OrderedDict()
        self.jobs = 0
        self.closed = False

    def keep(self, utterance: str, text: str) -> None:
        """The transcript of an utterance whose audio is no longer needed."""
        self.texts[utterance] = text
        while len(self.texts) > TEXTS_KEPT:
            self.texts.popitem(last=False)


class Recognition:
    """Listens for all sessions. All methods are for the event loop."""

    def __init__(
        self,
        recognizer: Recognizer,
        detector: TurnDetector,
        pulse: Pulse,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock` gives seconds."""
        self._recognizer = recognizer
        self._detector = detector
        self._clock = clock
        self._thread = ModelThread(pulse)
        self._detector_thread = ModelThread(pulse)
        self._rests_until = 0.0

    def forget(self, ears: Ears) -> None:
        """The session is over; its tasks are cancelled by their owner."""
        ears.closed = True
        ears.utterances.clear()
        self._thread.turnstile.forget(ears.session)
        self._detector_thread.turnstile.forget(ears.session)

    # -- commands ---------------------------------------------------------------------------

    def configure(self, ears: Ears, command: ConfigureListening) -> None:
        ears.language = command.language
        ears.hint = command.hint
        ears.partials = command.partials

    def hear(self, ears: Ears, command: Hear) -> None:
        utterance = ears.utterances.get(command.utterance)
        if utterance is None:
            utterance = Utterance(command.utterance, command.start)
            ears.utterances[command.utterance] = utterance
            ears.stable[command.utterance] = StableTranscript()
        utterance.hear(command.start, command.pcm)
        if utterance.long and not utterance.folding:
            utterance.folding = True
            ears.tasks.start_soon(self._fold, ears, utterance)
        elif not utterance.drafting and self._worth_a_look(ears, utterance):
            utterance.drafting = True
            ears.tasks.start_soon(self._draft, ears, utterance)

    def end(self, ears: Ears, command: EndUtterance) -> None:
        utterance = ears.utterances.get(command.utterance)
        if utterance is None:
            utterance = Utterance(command.utterance, command.end)
            ears.utterances[command.utterance] = utterance
        utterance.close(command.end)
        ears.tasks.start_soon(self._finish, ears, utterance)

    def drop(self, ears: Ears, command: DropUtterance) -> None:
        ears.utterances.pop(command.utterance, None)
        ears.stable.pop(command.utterance, None)

    def judge(self, ears: Ears, command: JudgeTurn) -> None:
        if ears.jobs < JOBS_A_SESSION and command.utterance in ears.utterances:
            ears.jobs += 1
            ears.tasks.start_soon(self._judge, ears, command)

    def align(self, ears: Ears, command: AlignSpeech) -> None:
        if ears.jobs < JOBS_A_SESSION:
            ears.jobs += 1
            ears.tasks.start_soon(self._align, ears, command)
        else:
            self._say_aligned(ears, command, ())

    def words_so_far(self, ears: Ears, utterance: str) -> str:
        """The words of an utterance as they were recognised last; they may still change."""
        if utterance in ears.texts:
            return ears.texts[utterance]
        growing = ears.utterances.get(utterance)
        return growing.words if growing is not None else ""

    async def transcript(
        self, ears: Ears, name: str, until: int | None, rank: Callable[[], Rank]
    ) -> str:
        """What was said in an utterance up to a position, "" for one that is not known.

        Raises RecognitionFailed.
        """
        if name in ears.texts:
            return ears.texts[name]
        utterance = ears.utterances.get(name)
        if utterance is None:
            return ""
        end = utterance.heard_until if until is None else until
        return await self._recognise(ears, utterance, end, rank())

    # -- recognising ------------------------------------------------------------------------

    def _worth_a_look(self, ears: Ears, utterance: Utterance) -> bool:
        if utterance.drafted_until >= utterance.quiet_from:
            return False
        if utterance.pauses(HUSH_SAMPLES):
            return utterance.pauses(PAUSE_SAMPLES)
        new = utterance.end - utterance.drafted_until
        wanted = PARTIAL_SAMPLES if ears.partials else WARM_SAMPLES
        return new >= wanted and self._clock() >= self._rests_until and self._thread.turnstile.idle

    async def _recognise(self, ears: Ears, utterance: Utterance, until: int, rank: Rank) -> str:
        known = utterance.known(until)
        if known is not None:
            return known
        async with self._thread.turnstile.turn(ears.session, rank):
            # Whoever was before may have found the same words.
            known = utterance.known(until)
            if known is not None:
                return known
            work = partial(self._transcribe, ears, utterance.open_part(until), False)
            folded = utterance.folded
            try:
                result = await self._thread.run(work)
            except (ValueError, RuntimeError) as error:
                raise RecognitionFailed(str(error)) from error
            text = f"{folded.text} {result.text}".strip()
            utterance.learn(until, text)
            return text

    def _transcribe(self, ears: Ears, audio: Float32, draft: bool) -> Transcription:
        return self._recognizer.transcribe(
            audio,
            prompt=ears.hint,
            language=ears.language,
            draft=draft,
            cancelled=lambda: ears.closed,
        )

    async def _draft(self, ears: Ears, utterance: Utterance) -> None:
        """Recognise what there is so far, when nothing else is to be recognised."""
        rank = Rank.LATER if utterance.pauses(PAUSE_SAMPLES) else Rank.IDLE
        try:
            async with self._thread.turnstile.turn(ears.session, rank):
                if not self._is_open(ears, utterance):
                    return
                until, folded = utterance.end, utterance.folded
                utterance.drafted_until = until
                audio = utterance.open_part(until)
                begun = self._clock()
                result = await self._thread.run(partial(self._transcribe, ears, audio, True))
                now = self._clock()
                self._rests_until = now + (REST - 1) * (now - begun)
            if not result.text:
                return
            text = f"{folded.text} {result.text}".strip()
            news = text != utterance.words
            utterance.learn(until, text)
            if self._is_open(ears, utterance):
                self._say_more(ears, utterance, ears.stable[utterance.name].update(text))
                if news and not utterance.pauses(HUSH_SAMPLES):
                    # In a pause the answer itself may come any moment.
                    ears.on_words(utterance.name)
        except Exception:
            log.exception("session %s: a partial transcript failed", ears.session)
        finally:
            utterance.drafting = False

    def _say_more(self, ears: Ears, utterance: Utterance, delta: str) -> None:
        if ears.partials and delta:
            ears.emit(TranscriptDelta(session=ears.session, utterance=utterance.name, delta=delta))

    async def _fold(self, ears: Ears, utterance: Utterance) -> None:
        """Recognise the beginning of a long utterance for good."""
        try:
            async with self._thread.turnstile.turn(ears.session, Rank.LATER):
                start = utterance.folded.until
                piece = split_at_quiet(utterance.open_part(utterance.end), FOLD_SECONDS)[0]
                result = await self._thread.run(partial(self._transcribe, ears, piece, False))
                utterance.fold(start + len(piece), result.text)
        except Exception:
            # It stays as it is, and is tried again with the next audio.
            log.exception("session %s: a part was not recognised", ears.session)
        finally:
            utterance.folding = False

    async def _finish(self, ears: Ears, utterance: Utterance) -> None:
        assert utterance.closed_at is not None
        end = utterance.closed_at
        try:
            text = await self._recognise(ears, utterance, end, Rank.FIRST)
        except RecognitionFailed as error:
            self._fail(ears, utterance, str(error))
        except Exception:
            log.exception("session %s: an utterance was not recognised", ears.session)
            self._fail(ears, utterance, "The recogniser failed on this utterance.")
        else:
            if self._is_open(ears, utterance):
                stable = ears.stable.get(utterance.name)
                if stable is not None:
                    self._say_more(ears, utterance, stable.finish(text))
                self._forget_audio(ears, utterance, text)
                seconds = (end - utterance.start) / HEARD_RATE
                ears.emit(
                    TranscriptFinal(
                        session=ears.session, utterance=utterance.name, text=text, seconds=seconds
                    )
                )

    def _fail(self, ears: Ears, utterance: Utterance, message: str) -> None:
        if self._is_open(ears, utterance):
            self._forget_audio(ears, utterance, "")
            ears.emit(
                TranscriptFailed(session=ears.session, utterance=utterance.name, message=message)
            )

    def _is_open(self, ears: Ears, utterance: Utterance) -> bool:
        """Neither dropped nor finished, and the session is there."""
        return ears.utterances.get(utterance.name) is utterance

    def _forget_audio(self, ears: Ears, utterance: Utterance, text: str) -> None:
        del ears.utterances[utterance.name]
        ears.stable.pop(utterance.name, None)
        ears.keep(utterance.name, text)

    # -- turns and words --------------------------------------------------------------------

    async def _judge(self, ears: Ears, command: JudgeTurn) -> None:
        try:
            utterance = ears.utterances.get(command.utterance)
            if utterance is None:
                return
            audio = utterance.last(KEPT_SECONDS, command.at)
            probability = await self._detector_thread.call(
                ears.session, Rank.FIRST, partial(self._detector.probability, audio)
            )
        except Exception:
            log.exception("session %s: a turn was not judged", ears.session)
            return
        finally:
            ears.jobs -= 1
        heard = command.utterance in ears.utterances or command.utterance in ears.texts
        if not ears.closed and heard:
            ears.emit(
                TurnJudged(
                    session=ears.session,
                    utterance=command.utterance,
                    at=command.at,
                    probability=probability,
                )
            )

    async def _align(self, ears: Ears, command: AlignSpeech) -> None:
        words: tuple[WordTime, ...] = ()
        try:
            words = await self._thread.call(
                ears.session, Rank.LATER, partial(self._aligned, ears, command)
            )
        except Exception:
            log.exception("session %s: speech was not aligned", ears.session)
        finally:
            ears.jobs -= 1
        self._say_aligned(ears, command, words)

    def _aligned(self, ears: Ears, command: AlignSpeech) -> tuple[WordTime, ...]:
        resampler = Resampler(SPOKEN_RATE, HEARD_RATE, np.float32)
        spoken = int16_from_bytes(command.pcm)
        audio = np.concatenate((resampler.push(spoken), resampler.flush()))
        longest = int(LONGEST_ALIGNED_SECONDS * HEARD_RATE)
        timings = self._recognizer.align(audio[:longest], command.text, language=ears.language)
        pieces = words_with_spaces(command.text)
        if len(pieces) != len(timings):
            return ()
        return tuple(
            WordTime(piece, round(timing.end * 1000))
            for piece, timing in zip(pieces, timings, strict=True)
        )

    def _say_aligned(self, ears: Ears, command: AlignSpeech, words: tuple[WordTime, ...]) -> None:
        if not ears.closed:
            ears.emit(SpeechAligned(session=ears.session, reference=command.reference, words=words))


def words_with_spaces(text: str) -> list[str]:
    """The words, each with the white space behind it, the first also with that before it."""
    return re.findall(r"^\s*\S+\s*|\S+\s*", text)
