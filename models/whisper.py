"""Whisper through CTranslate2: sound in, words out, guarded against its inventions.

Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision" (2022). The model was
trained on windows of 30 s; here a window is only as long as the sound needs, which makes a short
utterance several times cheaper. Left to itself Whisper repeats phrases for ever on some sounds and
thanks silence for watching, so every text is judged before it is believed (`transcript_guards`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ctranslate2
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from duologue.models.log_mel import HOP, RATE, log_mel
from duologue.models.transcript_guards import Decoded, is_audible, is_believable, is_speech

LONGEST_ALIGNED_SECONDS = 30.0

_WINDOW_SECONDS = 12.0
"""As long as the shortest window: longer ones cost more, and the tiny model skips and repeats more
in them (recordings joined to 25 s: 4.1 % word errors with 12 s, 5.9 % with 20 s, 6.5 % with 28 s).
"""
_LEAST_FRAMES = 1200
_MOST_FRAMES = 3000
_MOST_TOKENS = 448
"""The decoder's context. CTranslate2 allows half of `max_length` to be generated."""
_TOKENS_PER_SECOND = 8.0
_SPARE_TOKENS = 15
_PROMPT_TOKENS = 223
_ATTEMPTS = ((0.0, 1.1), (0.0, 1.3), (0.4, 1.3))
"""Temperature and repetition penalty of each attempt. At 1.0 the model loops on 2.5 % of short
recordings, from 1.15 on it skips words; 1.3 breaks the loops that remain."""
_SECONDS_PER_POSITION = 0.02

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TokenProbability:
    """A token's text and the natural logarithm of its probability."""

    text: str
    log_probability: float


@dataclass(frozen=True, slots=True)
class Transcription:
    """What was said in `seconds` of sound; an empty text when nothing was.

    `average_log_probability` is the mean over the text's tokens of the natural logarithm, 0.0
    without text. `no_speech_probability` is the model's own estimate at the first window, 1.0 when
    the sound was too quiet or short to ask. `tokens` is filled on request only.
    """

    text: str
    seconds: float
    average_log_probability: float
    no_speech_probability: float
    tokens: tuple[TokenProbability, ...] = ()


@dataclass(frozen=True, slots=True)
class WordTiming:
    """When a word sounds, in seconds from the start of the audio; `start` <= `end`."""

    word: str
    start: float
    end: float


def never() -> bool:
    """The cancel flag of a call that nobody will cancel."""
    return False


class Whisper:
    """The network and its tokenizer, loaded once.

    Calls from several threads are safe; they run one after another.
    """

    def __init__(self, folder: Path, *, threads: int = 1) -> None:
        """Load a CTranslate2 model folder with its `tokenizer.json`.

        Raises FileNotFoundError when a file is missing, RuntimeError or ValueError when one holds
        something else. One thread is faster than two for the tiny model.
        """
        for name in ("model.bin", "config.json", "tokenizer.json"):
            if not (folder / name).is_file():
                raise FileNotFoundError(folder / name)
        self._model = ctranslate2.models.Whisper(
            str(folder), device="cpu", compute_type="int8", intra_threads=threads, inter_threads=1
        )
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._no_timestamps = self._token("<|notimestamps|>")
        self.multilingual: bool = self._model.is_multilingual

    def supports(self, language: str) -> bool:
        """Whether `language` (an ISO 639-1 code) can be transcribed by these weights."""
        if not self.multilingual:
            return language == "en"
        return self._tokenizer.token_to_id(f"<|{language}|>") is not None

    def transcribe(
        self,
        audio: Samples,
        *,
        prompt: str = "",
        language: str = "en",
        draft: bool = False,
        token_probabilities: bool = False,
        cancelled: Callable[[], bool] = never,
    ) -> Transcription:
        """The words of `audio`, float32 at 16 kHz within -1 to 1, of any length.

        Sound beyond 12 s is cut at its quietest moments. `prompt` primes the vocabulary, as a text
        that came before; its last 223 tokens count. A `draft` is decoded once and comes back empty
        where a final text would be tried again. `cancelled` is asked between the steps, each a few
        hundred milliseconds at most; once it is true the text comes back empty. Raises ValueError
        for a language the weights do not have.
        """
        start = self._start_tokens(language)
        seconds = audio.size / RATE
        prefix = self._prompt_tokens(prompt)
        texts: list[str] = []
        tokens: list[TokenProbability] = []
        log_probability, count, no_speech = 0.0, 0, 1.0
        for index, window in enumerate(split_at_quiet(audio)):
            if not is_audible(window):
                continue
            decoded = self._window(window, prefix, start, draft, cancelled)
            if cancelled():
                return Transcription("", seconds, 0.0, no_speech)
            if index == 0:
                no_speech = decoded.no_speech_probability
            if not decoded.text:
                continue
            texts.append(decoded.text)
            log_probability += decoded.average_log_probability * len(decoded.tokens)
            count += len(decoded.tokens)
            if token_probabilities:
                tokens += self._token_probabilities(window, decoded.tokens, start)
        average = log_probability / count if count else 0.0
        return Transcription(" ".join(texts), seconds, average, no_speech, tuple(tokens))

    def align(self, audio: Samples, text: str, *, language: str = "en") -> tuple[WordTiming, ...]:
        """When each word of `text` sounds in `audio`, the words as `text.split()` gives them.

        The audio is float32 at 16 kHz and at most 30 s; longer raises ValueError. By dynamic time
        warping over the decoder's cross attention, as Whisper's authors do for word timestamps: a
        word's edge is good to about 0.1 s. An empty text gives an empty tuple.
        """
        if audio.size > LONGEST_ALIGNED_SECONDS * RATE:
            raise ValueError(f"{audio.size / RATE:.1f} s of audio; at most 30 s can be aligned")
        words = text.split()
        pieces = [self._encode(f" {word}") for word in words]
        ids = [token for piece in pieces for token in piece][: _MOST_TOKENS // 2 - 8]
        if not ids or audio.size == 0:
            return ()
        seconds = audio.size / RATE
        frames = _window_frames(audio.size)
        sounding = max(2, min(frames, audio.size // HOP))
        (result,) = self._model.align(
            self._features(audio, frames), self._start_tokens(language), [ids], sounding
        )
        # The path runs through the tokens and, last, the end of the text: the first position on
        # each row is where that token begins.
        starts: dict[int, float] = {}
        for token, position in result.alignments:
            starts.setdefault(token, min(position * _SECONDS_PER_POSITION, seconds))
        timings: list[WordTiming] = []
        at, row = 0.0, 0
        for word, piece in zip(words, pieces, strict=True):
            begin = max(at, starts.get(row, seconds))
            row += len(piece)
            at = max(begin, starts.get(row, seconds))
            timings.append(WordTiming(word, begin, at))
        return tuple(timings)

    def _window(
        self,
        audio: Samples,
        prefix: list[int],
        start: list[int],
        draft: bool,
        cancelled: Callable[[], bool],
    ) -> Decoded:
        """One window's text, empty when no attempt gives a text that can be believed."""
        encoded = self._features(audio, _window_frames(audio.size))
        prompt = [*prefix, *start, self._no_timestamps]
        seconds = audio.size / RATE
        budget = int(_TOKENS_PER_SECOND * seconds) + _SPARE_TOKENS
        no_speech = 0.0
        for temperature, penalty in _ATTEMPTS[: 1 if draft else None]:
            if cancelled():
                break
            (result,) = self._model.generate(
                encoded,
                [prompt],
                beam_size=1,
                max_length=min(_MOST_TOKENS, max(2 * budget, budget + len(prompt))),
                repetition_penalty=penalty,
                sampling_temperature=temperature,
                sampling_topk=1 if temperature == 0.0 else 0,
                return_scores=True,
                return_no_speech_prob=True,
            )
            ids = result.sequences_ids[0]
            no_speech = result.no_speech_prob
            text = self._tokenizer.decode(ids).strip()
            decoded = Decoded(text, tuple(ids), result.scores[0], no_speech)
            if not is_speech(decoded):
                break
            if is_believable(decoded, seconds):
                return decoded
        return Decoded("", (), 0.0, no_speech)

    def _features(self, audio: Samples, frames: int) -> ctranslate2.StorageView:
        features = log_mel(audio, frames)[np.newaxis]
        return self._model.encode(ctranslate2.StorageView.from_array(features))

    def _token_probabilities(
        self, audio: Samples, ids: tuple[int, ...], start: list[int]
    ) -> list[TokenProbability]:
        frames = _window_frames(audio.size)
        encoded = self._features(audio, frames)
        (result,) = self._model.align(encoded, start, [list(ids)], frames)
        texts = [self._tokenizer.decode([token]) for token in ids]
        return [
            TokenProbability(text, float(np.log(max(probability, 1e-10))))
            for text, probability in zip(texts, result.text_token_probs, strict=True)
        ]

    def _start_tokens(self, language: str) -> list[int]:
        if not self.supports(language):
            raise ValueError(f"these weights have no language {language!r}")
        names = ["<|startoftranscript|>"]
        if self.multilingual:
            names += [f"<|{language}|>", "<|transcribe|>"]
        return [self._token(name) for name in names]

    def _prompt_tokens(self, prompt: str) -> list[int]:
        words = " ".join(prompt.split())
        if not words:
            return []
        return [self._token("<|startofprev|>"), *self._encode(f" {words}")[-_PROMPT_TOKENS:]]

    def _token(self, name: str) -> int:
        token = self._tokenizer.token_to_id(name)
        if token is None:
            raise ValueError(f"the tokenizer has no {name}: these are not Whisper's files")
        return token

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def split_at_quiet(audio: Samples, longest: float = _WINDOW_SECONDS) -> list[Samples]:
    """Cut sound at 16 kHz into pieces of at most `longest` seconds; joined they are the input.

    Each cut lies in the second half of its piece, in the middle of the quietest 200 ms there.
    """
    most = int(longest * RATE)
    step, span = RATE // 50, 10
    pieces: list[Samples] = []
    while audio.size > most:
        search = audio[most // 2 : most]
        energy = np.square(search[: search.size // step * step].reshape(-1, step)).mean(axis=1)
        quiet = np.convolve(energy, np.ones(span), mode="valid")
        cut = most // 2 + (int(np.argmin(quiet)) + span // 2) * step
        pieces.append(audio[:cut])
        audio = audio[cut:]
    pieces.append(audio)
    return pieces


def _window_frames(samples: int) -> int:
    """Frames of the encoder's window: even, and never under 12 s, where the model breaks down."""
    needed = -(-samples // (2 * HOP)) * 2
    return min(max(needed, _LEAST_FRAMES), _MOST_FRAMES)
