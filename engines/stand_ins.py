"""Stand-ins for the cascade's models: known answers, steps that wait to be let on; no weights.

They follow the same protocols and run in the same threads as the models, so everything around the
models can be tested, and played with on a machine that has none.
"""

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
import numpy as np
import numpy.typing as npt

from duologue.engines.chat_messages import Json
from duologue.engines.engine import ResponseRequest
from duologue.engines.fairness import Rank
from duologue.engines.language import Generated
from duologue.engines.llama_impl import Completed, Completion, OnStep
from duologue.models.whisper import Transcription, WordTiming

RATE = 16_000
WORD_SAMPLES = RATE // 10
STUCK_SECONDS = 30.0
"""How long a closed gate holds a thread before it gives up: a bound for failures."""

Float32 = npt.NDArray[np.float32]


class Gate:
    """Holds threads up while it is closed."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.arrived = threading.Semaphore(0)

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self, cancelled: Callable[[], bool] = lambda: False) -> bool:
        """Wait until it is open; false when cancelled before. Raises TimeoutError."""
        self.arrived.release()
        for _ in range(int(STUCK_SECONDS * 200)):
            if cancelled():
                return False
            if self._open.wait(0.005):
                return True
        raise TimeoutError("a gate was never opened")


class StandInRecognizer:
    """Hears a word in every 100 ms that are loud: ``w0 w1 w2``."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.calls: list[tuple[int, bool]] = []
        """The samples of each call, and whether it was a draft."""
        self.hints: list[str] = []
        self.failure: Exception | None = None

    def transcribe(
        self,
        audio: Float32,
        *,
        prompt: str = "",
        language: str = "en",
        draft: bool = False,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Transcription:
        self.calls.append((len(audio), draft))
        self.hints.append(prompt)
        self.gate.pass_through(cancelled)
        if self.failure is not None:
            raise self.failure
        if language != "en":
            raise ValueError(f"these weights have no language {language!r}")
        blocks = audio[: len(audio) // WORD_SAMPLES * WORD_SAMPLES].reshape(-1, WORD_SAMPLES)
        loud = int((np.abs(blocks).mean(axis=1) > 0.05).sum())
        text = " ".join(f"w{index}" for index in range(loud))
        return Transcription(text, len(audio) / RATE, 0.0, 0.0)

    def align(self, audio: Float32, text: str, *, language: str = "en") -> tuple[WordTiming, ...]:
        if self.failure is not None:
            raise self.failure
        words = text.split()
        length = len(audio) / RATE / max(1, len(words))
        return tuple(
            WordTiming(word, index * length, (index + 1) * length)
            for index, word in enumerate(words)
        )


class StandInDetector:
    """Is always as sure as it is told to be."""

    def __init__(self, probability: float = 0.75) -> None:
        self.answer = probability
        self.heard: list[int] = []

    def probability(self, audio: Float32) -> float:
        self.heard.append(len(audio))
        return self.answer


class StandInSynthesizer:
    """A tone of 10 ms for every letter, nothing for a text without letters."""

    def __init__(self, rate: int = 24_000, voices: tuple[str, ...] = ("tone",)) -> None:
        self.rate = rate
        self.voices = voices
        self.gate = Gate()
        self.said: list[str] = []
        self.cancelled: list[str] = []
        self.failure: Exception | None = None

    def synthesize(
        self, text: str, *, voice: str, speed: float, cancelled: Callable[[], bool]
    ) -> Float32:
        self.said.append(text)
        if not self.gate.pass_through(cancelled):
            self.cancelled.append(text)
            return np.zeros(0, np.float32)
        if self.failure is not None:
            raise self.failure
        letters = sum(character.isalnum() for character in text)
        samples = int(letters * self.rate / 100 / speed)
        tone: Float32 = (0.5 * np.sin(np.arange(samples) * 0.1)).astype(np.float32)
        return tone


class StandInLanguage:
    """Answers with the pieces it is given. A number among them waits for so many steps."""

    def __init__(self) -> None:
        self.answers: list[Sequence[Generated | Exception | anyio.Event]] = []
        self.requests: list[ResponseRequest] = []
        self.warmed: list[ResponseRequest] = []
        self.ranks: list[Rank] = []
        self.read: list[Generated] = []
        self.left = 0
        """How many answers are over, read to their end or not."""
        self.forgotten: list[str] = []
        self.remote = False
        self.closed = False

    model = "stand-in"
    context_tokens = 1000
    sees = False

    async def load(self) -> None:
        pass

    async def aclose(self) -> None:
        self.closed = True

    async def warm(self, session: str, request: ResponseRequest) -> None:
        self.warmed.append(request)

    def forget(self, session: str) -> None:
        self.forgotten.append(session)

    @asynccontextmanager
    async def answer(
        self, session: str, request: ResponseRequest, rank: Callable[[], Rank]
    ) -> AsyncIterator[AsyncIterator[Generated]]:
        self.requests.append(request)
        pieces = self.answers.pop(0)
        try:
            yield self._pieces(pieces, rank)
        finally:
            self.left += 1

    async def _pieces(
        self, pieces: Sequence[Generated | Exception | anyio.Event], rank: Callable[[], Rank]
    ) -> AsyncIterator[Generated]:
        for piece in pieces:
            await anyio.lowlevel.checkpoint()
            self.ranks.append(rank())
            if isinstance(piece, anyio.Event):
                await piece.wait()
            elif isinstance(piece, Exception):
                raise piece
            else:
                self.read.append(piece)
                yield piece


class StandInCompleter:
    """llama.cpp without a model: a token is a word, an answer the next of ``answers``.

    Each slot keeps what it evaluated; evaluation goes in steps of ``batch`` tokens.
    """

    def __init__(self, context: int = 200, batch: int = 8) -> None:
        self.context = context
        self.batch = batch
        self.answers: list[str] = []
        self.gate = Gate()
        self.completions: list[Completion] = []
        self.evaluated = 0
        self.closed = False
        self._slots: dict[int, list[int]] = {}
        self._words: dict[str, int] = {}
        self._lock = threading.Lock()

    def render(self, messages: Sequence[Json]) -> str:
        lines = [f"<{message['role']}> {message['content']} </>" for message in messages]
        return " ".join([*lines, "<assistant>"])

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        return [self._words.setdefault(word, len(self._words)) for word in text.split()]

    def complete(self, completion: Completion, on_step: OnStep) -> Completed:
        with self._lock:
            self.completions.append(completion)
        held = self._slots.get(completion.slot, [])
        tokens = list(completion.tokens)
        cached = 0
        while cached < min(len(held), len(tokens) - 1) and held[cached] == tokens[cached]:
            cached += 1
        evaluated = 0
        while True:
            self.gate.pass_through()
            self._slots[completion.slot] = tokens[: cached + evaluated]
            if on_step("", evaluated):
                return Completed("stopped", cached, evaluated, 0)
            if cached + evaluated == len(tokens):
                break
            step = min(self.batch, len(tokens) - cached - evaluated)
            evaluated += step
            self.evaluated += step
        return self._generate(completion, cached, evaluated, on_step)

    def _generate(
        self, completion: Completion, cached: int, evaluated: int, on_step: OnStep
    ) -> Completed:
        if completion.most == 0:
            return Completed("length", cached, evaluated, 0)
        names = {index: word for word, index in self._words.items()}
        prompt = " ".join(names[token] for token in completion.tokens)
        said = prompt.rpartition("<assistant>")[2].split()
        left = self.answers[0].split()[len(said) :]
        for count, word in enumerate(left, start=1):
            if count > completion.most:
                return Completed("length", cached, evaluated, completion.most)
            self.gate.pass_through()
            self._slots[completion.slot].append(self._words.setdefault(word, len(self._words)))
            if on_step(f" {word}", evaluated):
                return Completed("stopped", cached, evaluated, count)
        self.answers.pop(0)
        return Completed("stop", cached, evaluated, len(left))

    def close(self) -> None:
        self.closed = True
