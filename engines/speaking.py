"""Text to speech for all sessions: one call at a time, and no further ahead than is listened to."""

from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

import numpy as np

from duologue.codecs.pcm import bytes_from_int16, int16_from_float
from duologue.codecs.resample import Resampler
from duologue.engines.engine import SPOKEN_RATE
from duologue.engines.fairness import Rank
from duologue.engines.pipeline.pipeline_run import Connector, Inbox, Outlet, RunKey
from duologue.engines.pipeline.stage_graph import Kind
from duologue.engines.pulse import Pulse
from duologue.engines.stage_messages import Clause, Spoken
from duologue.engines.turnstile import ModelThread
from duologue.models.voice import FASTEST, SLOWEST, Voice, VoiceCatalogue

WINDOW_MS = 20_000
"""Audio that may be made beyond what the listener has been sent."""

DRAFT_WINDOW_MS = 6_000
"""The same while nobody has asked for the answer yet."""

URGENT_MS = 1_500
"""With less than this left to play, the next clause is as urgent as a first one."""

PIECE_MS = 1_000
"""Speech travels in pieces of at most this length."""

_BYTES_A_MS = SPOKEN_RATE * 2 // 1000


class VoiceStage(Connector, Protocol):
    """Voices, wherever they are. Takes clauses and gives what was spoken of each."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of all voices. Known once they are ready."""

    @property
    def default(self) -> str:
        """The voice of clauses that name none."""

    def forget(self, session: str) -> None:
        """The session is over."""


class Voices:
    """The synthesizers behind one turnstile. See :class:`VoiceStage`."""

    def __init__(self, catalogue: VoiceCatalogue, pulse: Pulse) -> None:
        self.catalogue = catalogue
        self._thread = ModelThread(pulse)

    @property
    def names(self) -> tuple[str, ...]:
        return self.catalogue.names

    @property
    def default(self) -> str:
        return self.catalogue.default

    async def run(self, key: RunKey, inbox: Inbox, outlet: Outlet) -> None:
        """Say the clauses of one request in turn."""
        async for chunk in inbox:
            clause = cast(Clause, chunk.items[0])
            voice = self.catalogue.find(clause.voice)
            pcm = await self.say(
                key.session, clause.rank, clause.text, voice, clause.speed, lambda: inbox.stopped
            )
            await outlet.put(Kind.SPEECH, Spoken(clause.text, pcm))

    def forget(self, session: str) -> None:
        """The session is over."""
        self._thread.turnstile.forget(session)

    async def say(
        self,
        session: str,
        rank: Rank,
        text: str,
        voice: Voice,
        speed: float,
        cancelled: Callable[[], bool],
    ) -> bytes:
        """`text` as int16 at 24 kHz; nothing where there is nothing to say, or when cancelled."""
        work = partial(_spoken, text, voice, min(max(speed, SLOWEST), FASTEST), cancelled)
        return await self._thread.call(session, rank, work)


def _spoken(text: str, voice: Voice, speed: float, cancelled: Callable[[], bool]) -> bytes:
    synthesizer = voice.synthesizer
    speech = synthesizer.synthesize(text, voice=voice.name, speed=speed, cancelled=cancelled)
    if synthesizer.rate == SPOKEN_RATE:
        return bytes_from_int16(int16_from_float(speech))
    # A clause begins and ends in silence, so each may be converted by itself.
    resampler = Resampler(synthesizer.rate, SPOKEN_RATE, np.int16)
    return bytes_from_int16(np.concatenate((resampler.push(speech), resampler.flush())))


def pieces(pcm: bytes) -> list[bytes]:
    """The speech in the pieces that it travels in; at least one, if empty."""
    step = PIECE_MS * _BYTES_A_MS
    return [pcm[at : at + step] for at in range(0, len(pcm), step)] or [b""]


def length_ms(pcm: bytes) -> float:
    """How long int16 at 24 kHz plays."""
    return len(pcm) / _BYTES_A_MS


class SpeechWindow:
    """How far one answer's speech is ahead of its listener; pure.

    Times are seconds on any one clock.
    """

    def __init__(self, draft: bool) -> None:
        self.draft = draft
        self.made_ms = 0.0
        self._sent_ms = 0.0
        self._playing_since: float | None = None

    @property
    def open(self) -> bool:
        """Whether more may be made."""
        return self.made_ms - self._sent_ms < (DRAFT_WINDOW_MS if self.draft else WINDOW_MS)

    def make(self, ms: float, now: float) -> None:
        """More speech was made."""
        self.made_ms += ms
        self._begin(now)

    def acknowledge(self, sent_ms: float, now: float) -> None:
        """The listener was sent so much in all, so somebody does want the answer."""
        self.draft = False
        self._sent_ms = max(self._sent_ms, min(sent_ms, self.made_ms))
        self._begin(now)

    def rank(self, now: float) -> Rank:
        """How urgent more speech is."""
        if not self.made_ms:
            return Rank.DRAFT_FIRST if self.draft else Rank.FIRST
        if self.draft:
            return Rank.DRAFT_LATER
        left = self.left_ms(now)
        return Rank.LATER if left is None or left >= URGENT_MS else Rank.FIRST

    def left_ms(self, now: float) -> float | None:
        """How much speech is left to play, below 0 after a pause; ``None`` while none plays."""
        if self._playing_since is None:
            return None
        return self.made_ms - (now - self._playing_since) * 1000

    def _begin(self, now: float) -> None:
        """It plays from its first sound on, or, of a draft, from when it was wanted."""
        if self._playing_since is None and self.made_ms and not self.draft:
            self._playing_since = now
