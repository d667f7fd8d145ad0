"""The transcripts of a session that are being made: each is completed or fails, once."""

from duologue.engines.engine import TranscriptFinal
from duologue.sessions.effects import (
    Effect,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.history import History
from duologue.sessions.session_config import LOGPROBS, SessionConfig

LOST = ProtocolError("engine_unavailable", "The recogniser was lost.")


class Transcripts:
    """What the history has of each transcript; the client hears of it where it wants to.

    What comes for an item whose transcript nobody waits for is dropped.
    """

    def __init__(self, config: SessionConfig, history: History, effects: list[Effect]) -> None:
        self._config = config
        self._history = history
        self._effects = effects
        self._awaited: set[str] = set()

    def configure(self, config: SessionConfig) -> None:
        self._config = config

    def awaits(self, item_id: str) -> bool:
        return item_id in self._awaited

    def expect(self, item_id: str) -> None:
        self._awaited.add(item_id)

    def forget(self, item_id: str) -> None:
        """The item is gone; nobody waits for its transcript any more."""
        self._awaited.discard(item_id)

    def lost(self) -> None:
        """The engine is gone, with the transcripts it was making."""
        for item_id in sorted(self._awaited):
            self.fail(item_id, LOST)

    def add_words(self, item_id: str, words: str) -> None:
        """More of a transcript, for the client alone."""
        if self._config.transcription is not None:
            self._effects.append(TranscriptionDelta(item_id, 0, words))

    def complete(self, event: TranscriptFinal) -> None:
        if event.utterance not in self._awaited:
            return
        self._awaited.discard(event.utterance)
        self._history.transcribed(event.utterance, event.text)
        if self._config.transcription is not None:
            logprobs = event.logprobs if LOGPROBS in self._config.include else None
            self._effects.append(
                TranscriptionCompleted(event.utterance, 0, event.text, event.seconds, logprobs)
            )

    def fail(self, item_id: str, error: ProtocolError) -> None:
        """There will be none: the item is taken to have no words."""
        if item_id not in self._awaited:
            return
        self._awaited.discard(item_id)
        self._history.transcribed(item_id, "")
        if self._config.transcription is not None:
            self._effects.append(TranscriptionFailed(item_id, 0, error))
