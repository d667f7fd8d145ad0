"""The user's side of a session: the input buffer, utterances, turns and their transcripts.

Positions are samples at 16 kHz since the session's first sample.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from duologue.engines.engine import (
    ConfigureListening,
    JudgeTurn,
    TranscriptDelta,
    TranscriptFailed,
    TranscriptFinal,
    TurnJudged,
)
from duologue.sessions.answering import Answering
from duologue.sessions.effects import (
    CloseUtterance,
    DropUtterance,
    Effect,
    InputCleared,
    InputCommitted,
    InputTimedOut,
    ItemAdded,
    ItemDone,
    OpenUtterance,
    SpeechStarted,
    SpeechStopped,
    SupplyUtterance,
    ToEngine,
)
from duologue.sessions.endpointing import (
    RATE,
    REACH,
    Edge,
    Ended,
    Endpointer,
    JudgementDue,
    Paused,
    Resumed,
    Started,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import AudioReceived, VoiceProbability
from duologue.sessions.history import History
from duologue.sessions.items import InputAudio, MessageItem
from duologue.sessions.session_config import (
    ServerVad,
    SessionConfig,
    SessionLimits,
    TurnPolicy,
)
from duologue.sessions.suspicion import Suspicion
from duologue.sessions.transcripts import LOST, Transcripts
from duologue.sessions.turns import COUPLINGS, Assistant, Reaction, User

LEAST_COMMIT_MS = 100
SEMANTIC_PADDING_MS = 300
SAMPLES_PER_MS = RATE // 1000


@dataclass(slots=True)
class Utterance:
    """What the user is saying. ``announced``: the client knows of it."""

    item_id: str
    start: int
    announced: bool = False
    overlap_until: float = math.inf
    """When an overlap that is being judged has lasted long enough to be an interruption."""
    judged: bool = False
    """The user paused before that: if they go on, it is an interruption."""
    words: str = ""
    """What was recognised before the client knew of it."""


class Listening:
    """Everything the user says, from the first voiced frame to the last word of its transcript."""

    def __init__(
        self,
        session_id: str,
        config: SessionConfig,
        limits: SessionLimits,
        history: History,
        answering: Answering,
        effects: list[Effect],
        new_id: Callable[[str], str],
    ) -> None:
        self.id = session_id
        self.config = config
        self._limits = limits
        self.history = history
        self.answering = answering
        self._effects = effects
        self._new_id = new_id
        self.endpointer = Endpointer(config.turn_detection, limits)
        self._position = 0
        self._buffer_start = 0
        self._committed = 0
        self._utterance: Utterance | None = None
        self._transcripts = Transcripts(config, history, effects)
        self._suspicion = Suspicion()
        self._configure_engine()

    # -- the session's own ------------------------------------------------------------------

    def configure(self, config: SessionConfig) -> None:
        """The client has changed the session."""
        before, self.config = self.config, config
        self._transcripts.configure(config)
        if config.turn_detection != before.turn_detection:
            if before.turn_detection is None:
                self._drop_utterance()
            self.endpointer.configure(config.turn_detection)
            if config.turn_detection is None:
                self._turn_manual(before)
        if config.transcription != before.transcription:
            self._configure_engine()

    def _turn_manual(self, before: SessionConfig) -> None:
        """From now on the client says when a turn ends; one under way goes on until it does."""
        if self._utterance is None:
            heard = self._position - _padding(before)
            self._buffer_start = max(self._buffer_start, heard)
        else:
            self._utterance.overlap_until = math.inf
            self.answering.restore()

    def names(self, item_id: str) -> bool:
        """Whether an item that is still being said has this id."""
        return self._utterance is not None and self._utterance.item_id == item_id

    def supply(self, item_id: str, audio: bytes) -> None:
        """A user's item came with its audio: have it transcribed."""
        self._effects.append(SupplyUtterance(item_id, audio))
        self._await_transcript(item_id)

    def forget(self, item_id: str) -> None:
        self._transcripts.forget(item_id)

    def lost(self) -> None:
        """The engine is gone, with the transcripts it was making."""
        self._transcripts.lost()

    def regained(self) -> None:
        """There is an engine again: it needs to hear what is being said from its beginning."""
        self._configure_engine()
        if self._utterance is not None:
            self._effects.append(OpenUtterance(self._utterance.item_id, self._utterance.start))

    def handle_timer(self, now: float) -> None:
        self._follow(self.endpointer.handle_timer(now), now)
        utterance = self._utterance
        if utterance is not None and not utterance.announced and now >= utterance.overlap_until:
            utterance.overlap_until = math.inf
            if self.endpointer.paused:
                utterance.judged = True
            else:
                self._announce(utterance, now)
        if self._suspicion.expires(now):
            self._relax()
        if now >= self._idle_prompt_at():
            self._prompt_idle_user(now)

    def next_deadline(self) -> float:
        deadline = min(
            self.endpointer.next_deadline(),
            self._suspicion.next_deadline(),
            self._idle_prompt_at(),
        )
        if self._utterance is not None and not self._utterance.announced:
            deadline = min(deadline, self._utterance.overlap_until)
        return deadline

    def room(self) -> int:
        """Samples that the input buffer still takes; audio beyond is refused, not dropped.

        Where turns end by themselves there is always room: one that is too long is ended.
        """
        if self.config.turn_detection is not None:
            return int(self._limits.max_buffer_seconds * RATE)
        return self._room_left()

    def _room_left(self) -> int:
        start = self._utterance.start if self._utterance is not None else self._buffer_start
        return int(self._limits.max_buffer_seconds * RATE) - (self._position - start)

    def commit_audio(self) -> None:
        buffered = (self._position - self._buffer_start) / SAMPLES_PER_MS
        if buffered < LEAST_COMMIT_MS:
            raise ProtocolError(
                "input_audio_buffer_commit_empty",
                "Error committing input audio buffer: buffer too small. Expected at least "
                f"{LEAST_COMMIT_MS}ms of audio, but buffer only has {buffered:.2f}ms of audio.",
            )
        self.answering.drop_draft()
        self.answering.restore()
        self.endpointer.reset()
        utterance = self._utterance or self._open(self._buffer_start)
        self._commit(utterance, self._position, self._position)

    def clear_audio(self) -> None:
        self.answering.drop_draft()
        self.answering.restore()
        self.endpointer.reset()
        self._drop_utterance()
        self._buffer_start = self._position
        self._effects.append(InputCleared())

    # -- what the user says -----------------------------------------------------------------

    def receive_audio(self, event: AudioReceived, now: float) -> None:
        self._position = event.end
        self.endpointer.received(now)
        if self._utterance is None:
            if self.config.turn_detection is None:
                self._open(self._buffer_start)
            else:
                self._buffer_start = max(self._buffer_start, self._position - REACH)

    def receive_voice(self, event: VoiceProbability, now: float) -> None:
        self._follow(self.endpointer.frame(event.end, event.probability, now), now)
        self._suspect(event.probability, now)
        if self.config.turn_detection is not None and self._room_left() <= 0:
            self.endpointer.reset()
            self._follow([Ended(self._position, self._position)], now)

    def _follow(self, edges: list[Edge], now: float) -> None:
        for edge in edges:
            match edge:
                case Started():
                    self._start_speech(edge, now)
                case Paused():
                    self._pause(edge)
                case JudgementDue():
                    assert self._utterance is not None
                    name = self._utterance.item_id
                    self._tell(JudgeTurn(session=self.id, utterance=name, at=edge.at))
                case Resumed():
                    self.answering.drop_draft()
                    self._resume(now)
                case Ended():
                    self._end_turn(edge, now)

    def _suspect(self, probability: float, now: float) -> None:
        """Hush the assistant at the first sign of an interruption, where we can take that back."""
        if self._utterance is not None or self.answering.state is not Assistant.SPEAKING:
            return
        if self._reaction() is not None and self._suspicion.rises(probability, now):
            self.answering.playout.duck()

    def _relax(self) -> None:
        """Nobody took the floor, or somebody has: there is nothing to suspect any more."""
        self._suspicion.end()
        self.answering.playout.restore()

    def _start_speech(self, edge: Started, now: float) -> None:
        start = max(self._buffer_start, edge.at - _padding(self.config))
        utterance = self._open(start)
        if self._reaction() is Reaction.JUDGE:
            utterance.overlap_until = now + self._limits.overlap_judgement
            self.answering.duck()
            self._suspicion.end()
            return
        self._announce(utterance, now)

    def _reaction(self) -> Reaction | None:
        """What the assistant does now that the user speaks."""
        detection = self.config.turn_detection
        policy = self.config.turn_policy or self._limits.turn_policy
        if detection is None or not detection.interrupt_response:
            policy = TurnPolicy.MANUAL
        return COUPLINGS[policy].get((User.SPEAKING, self.answering.state))

    def _announce(self, utterance: Utterance, now: float) -> None:
        """The client hears of the speech; the assistant yields where the policy says so."""
        utterance.announced = True
        utterance.overlap_until = math.inf
        self.answering.quiet_since = math.inf
        self._effects.append(SpeechStarted(utterance.start // SAMPLES_PER_MS, utterance.item_id))
        if self._reaction() is not None:
            self.answering.interrupt(now)
        self.answering.restore()
        self._relax()
        if utterance.words:
            self._transcripts.add_words(utterance.item_id, utterance.words)
        self.prepare()

    def prepare(self) -> None:
        """The prompt of the turn that is under way may be warmed, if it will be answered."""
        utterance = self._utterance
        if utterance is not None and utterance.announced and self._turns_are_answered:
            self.answering.prepare(self.config, utterance.item_id)

    @property
    def _turns_are_answered(self) -> bool:
        """Whether the end of a turn asks for a response by itself."""
        detection = self.config.turn_detection
        return (
            self.config.kind == "realtime"
            and detection is not None
            and detection.create_response
            and not self.answering.decides
        )

    def _resume(self, now: float) -> None:
        """The user goes on after a pause; an overlap that outlasts one is an interruption."""
        utterance = self._utterance
        assert utterance is not None
        if utterance.judged and not utterance.announced:
            self._announce(utterance, now)

    def _pause(self, edge: Paused) -> None:
        utterance = self._utterance
        assert utterance is not None
        if utterance.announced and self._turns_are_answered:
            self.answering.speculate(
                self.config, utterance.item_id, edge.until, self.history.version + 1
            )

    def _end_turn(self, edge: Ended, now: float) -> None:
        utterance = self._utterance
        assert utterance is not None
        if not utterance.announced:
            if self.answering.state in (Assistant.SPEAKING, Assistant.DUCKED):
                self._drop_utterance()
                self._buffer_start = edge.end
                self.answering.restore()
                return
            self._announce(utterance, now)
        self._effects.append(SpeechStopped(edge.end // SAMPLES_PER_MS, utterance.item_id))
        self._commit(utterance, edge.until, edge.end)
        if self._turns_are_answered:
            self.answering.create_for_turn(self.config, now)

    def _open(self, start: int) -> Utterance:
        self._utterance = Utterance(self._new_id("item"), start)
        self._effects.append(OpenUtterance(self._utterance.item_id, start))
        return self._utterance

    def _commit(self, utterance: Utterance, until: int, end: int) -> None:
        """The utterance becomes an item of the conversation."""
        item = MessageItem(utterance.item_id, "user", (InputAudio(None),))
        previous = self.history.last_id
        self.history.add(item, bounded=False)
        self._effects += (
            InputCommitted(item.id, previous),
            ItemAdded(item, previous),
            ItemDone(item, previous),
            CloseUtterance(utterance.item_id, until, end),
        )
        self._await_transcript(item.id)
        self.answering.heard((until - utterance.start) / RATE)
        self.answering.quiet_since = math.inf
        self._buffer_start = self._committed = end
        self._utterance = None

    def _drop_utterance(self) -> None:
        if self._utterance is not None:
            self._effects.append(DropUtterance(self._utterance.item_id))
            self._utterance = None

    def _idle_timeout(self) -> float:
        """Seconds of silence after which the user is prompted; infinite for never."""
        detection = self.config.turn_detection
        if not isinstance(detection, ServerVad) or detection.idle_timeout_ms is None:
            return math.inf
        return detection.idle_timeout_ms / 1000

    def _idle_prompt_at(self) -> float:
        if (
            self.config.kind != "realtime"
            or self.answering.state is not Assistant.QUIET
            or not self.answering.engine_ready
            or self._utterance is not None
        ):
            return math.inf
        return self.answering.quiet_since + self._idle_timeout()

    def _prompt_idle_user(self, now: float) -> None:
        item = MessageItem(self._new_id("item"), "user", (InputAudio(""),))
        end = self._position
        start = max(self._committed, end - int(self._idle_timeout() * RATE))
        previous = self.history.last_id
        self.history.add(item, bounded=False)
        self._buffer_start = self._committed = end
        self._effects += (
            InputTimedOut(start // SAMPLES_PER_MS, end // SAMPLES_PER_MS, item.id),
            InputCommitted(item.id, previous),
            ItemAdded(item, previous),
            ItemDone(item, previous),
        )
        self.answering.quiet_since = math.inf
        self.answering.create_for_turn(self.config, now, note="The user has been silent.")

    def receive_judgement(self, event: TurnJudged, now: float) -> None:
        if self._utterance is not None and event.utterance == self._utterance.item_id:
            self._follow(self.endpointer.judged(event.at, event.probability, now), now)

    def receive_words(self, event: TranscriptDelta) -> None:
        speaking = self._utterance
        if speaking is not None and event.utterance == speaking.item_id:
            if not speaking.announced and self.config.turn_detection is not None:
                speaking.words += event.delta
                return
        elif not self._transcripts.awaits(event.utterance):
            return
        self._transcripts.add_words(event.utterance, event.delta)

    def receive_transcript(self, event: TranscriptFinal) -> None:
        self._transcripts.complete(event)

    def fail_transcript(self, event: TranscriptFailed) -> None:
        self._transcripts.fail(event.utterance, ProtocolError("engine_error", event.message))

    def _await_transcript(self, item_id: str) -> None:
        self._transcripts.expect(item_id)
        if not self.answering.engine_ready:
            self._transcripts.fail(item_id, LOST)

    def _configure_engine(self) -> None:
        transcription = self.config.transcription
        self._tell(
            ConfigureListening(
                session=self.id,
                language=(transcription.language if transcription else "") or "en",
                hint=transcription.prompt if transcription else "",
                partials=transcription is not None,
            )
        )

    def _tell(self, command: ConfigureListening | JudgeTurn) -> None:
        if self.answering.engine_ready:
            self._effects.append(ToEngine(command))


def _padding(config: SessionConfig) -> int:
    """Samples before the first voiced one that belong to an utterance."""
    ms = SEMANTIC_PADDING_MS
    if isinstance(config.turn_detection, ServerVad):
        ms = config.turn_detection.prefix_padding_ms
    return ms * SAMPLES_PER_MS
