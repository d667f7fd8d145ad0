"""A session: events in, effects out, time as an argument.

The caller's loop is: ``receive`` what happens, ``handle_timer`` when ``next_deadline`` has come,
and after each perform what ``take_effects`` gives. Nothing here waits, reads a clock or raises for
anything a client does.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from duologue.engines.engine import (
    EngineSpec,
    PictureGenerated,
    ResponseEnded,
    See,
    SpeechAligned,
    SpeechGenerated,
    SpeechOffered,
    TextGenerated,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
    TranscriptDelta,
    TranscriptFailed,
    TranscriptFinal,
    TurnJudged,
)
from duologue.sessions.answering import Answering
from duologue.sessions.effects import (
    CleanUp,
    CloseTransport,
    Effect,
    ErrorReported,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    SessionCreated,
    SessionUpdated,
    ToEngine,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import (
    Attached,
    AudioReceived,
    CancelResponse,
    CleanedUp,
    ClearAudio,
    ClearOutput,
    CloseRequested,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    Detached,
    EngineLost,
    EngineReady,
    Event,
    PictureSeen,
    PlaybackReported,
    Rejected,
    ResponseParams,
    RetrieveItem,
    TruncateItem,
    UpdateSession,
    VoiceProbability,
)
from duologue.sessions.history import History
from duologue.sessions.items import InputAudio, InputImage, MessageItem
from duologue.sessions.listening import Listening
from duologue.sessions.session_config import SessionConfig, SessionLimits, TurnPolicy
from duologue.sessions.turns import CONNECTION, Connection, ConnectionSignal, step

ENDED = (Connection.CLOSING, Connection.CLOSED, Connection.CLEANUP_FAILED, Connection.FAILED)


class Session:
    """One conversation. See the module for how to drive it."""

    def __init__(
        self,
        session_id: str,
        config: SessionConfig,
        spec: EngineSpec,
        limits: SessionLimits,
        new_id: Callable[[str], str],
        now: float,
        *,
        plays_out: bool = False,
    ) -> None:
        """``new_id(prefix)`` makes ids; ``plays_out``: the server owns playout (WebRTC)."""
        self.id = session_id
        self.config = config
        self.connection = Connection.ATTACHED
        self._spec = spec
        if spec.duplex is not None:
            limits = replace(limits, turn_policy=TurnPolicy.OVERLAP)
        self._limits = limits
        self._make_id = new_id
        self._plays_out = plays_out
        self._effects: list[Effect] = []
        self.history = History(limits.max_items, limits.max_text)
        self.answering = Answering(
            session_id,
            self._new_id("conv"),
            spec,
            limits,
            self.history,
            self._effects,
            self._new_id,
            plays_out,
        )
        self._effects.append(SessionCreated(config))
        self.listening = Listening(
            session_id,
            config,
            limits,
            self.history,
            self.answering,
            self._effects,
            self._new_id,
        )
        self._active_at = now
        self.expires_at = now + limits.max_duration
        self._detached_at = math.inf

    def _new_id(self, prefix: str) -> str:
        """An id that no item has, since clients choose ids too."""
        while (made := self._make_id(prefix)) in self.history:
            pass
        return made

    # -- the four verbs ---------------------------------------------------------------------

    def receive(self, event: Event, now: float) -> None:
        """Something has happened. Call ``take_effects`` next."""
        handler = _HANDLERS[type(event)]
        if self.connection in ENDED:
            if isinstance(event, CleanedUp):
                self._clean(event, now)
            return
        self._active_at = now
        try:
            handler(self, event, now)
        except ProtocolError as error:
            self._effects.append(ErrorReported(error.answering(event.event_id)))  # type: ignore[union-attr]
        self.answering.settle(self.config, now)

    def handle_timer(self, now: float) -> None:
        """Time has passed. Afterwards ``next_deadline() > now``."""
        if self.connection in ENDED:
            return
        self.listening.handle_timer(now)
        self.answering.settle(self.config, now)
        if now >= self._detached_at + self._limits.grace:
            self._end(1000, "the client did not come back")
        elif now >= self.expires_at:
            self._expire("session_expired", "The session has reached its longest duration.")
        elif now >= self._active_at + self._limits.idle_timeout:
            self._expire("session_idle", "The session was idle for too long.")

    def next_deadline(self) -> float:
        """When ``handle_timer`` must be called at the latest; infinite when there is no need."""
        if self.connection in ENDED:
            return math.inf
        return min(
            self.listening.next_deadline(),
            self.answering.next_deadline(),
            self._detached_at + self._limits.grace,
            self.expires_at,
            self._active_at + self._limits.idle_timeout,
        )

    def take_effects(self) -> list[Effect]:
        """What is to be done now, in order; each is given once."""
        effects = list(self._effects)
        self._effects.clear()
        return effects

    def abandon(self) -> None:
        """Something outside broke: the session has failed, unless it has ended in its own way."""
        if self.connection not in ENDED:
            self.connection = step(CONNECTION, self.connection, ConnectionSignal.FAIL)

    def room(self) -> int:
        """Samples that the input buffer still takes; audio beyond is refused, not dropped."""
        return self.listening.room()

    # -- the client's events ----------------------------------------------------------------

    def _update(self, event: UpdateSession, now: float) -> None:
        config = self.config.merged(event.patch)
        if config.voice != self.config.voice and self.answering.ever_spoke:
            raise ProtocolError(
                "cannot_update_voice",
                "Cannot update a conversation's voice if assistant audio is present.",
                "session.audio.output.voice",
            )
        before, self.config = self.config, config
        if config != before:
            self.answering.drop_draft()
        self.listening.configure(config)
        if config.kind == "realtime" and (
            config.instructions != before.instructions or config.tools != before.tools
        ):
            self.answering.prepare(self.config)
        self._effects.append(SessionUpdated(config))

    def _commit_audio(self, event: CommitAudio, now: float) -> None:
        self.listening.commit_audio()

    def _clear_audio(self, event: ClearAudio, now: float) -> None:
        self.listening.clear_audio()

    def _clear_output(self, event: ClearOutput, now: float) -> None:
        if not self._plays_out:
            raise ProtocolError(
                "invalid_event_for_transport",
                "output_audio_buffer.clear has a meaning only where the server plays audio out "
                "(WebRTC).",
            )
        self.answering.playout.stop(now)

    def _create_item(self, event: CreateItem, now: float) -> None:
        item = event.item
        if not item.id:
            item = replace(item, id=self._new_id("item"))
        if self.listening.names(item.id):
            raise ProtocolError(
                "item_create_duplicate_item_id",
                f"Error adding item: an item with ID '{item.id}' already exists.",
                "item.id",
            )
        unknown = False
        if isinstance(item, MessageItem):
            kinds = {type(part) for part in item.content}
            if InputImage in kinds and not self._spec.sees:
                raise ProtocolError(
                    "unsupported", "The model of this session can't see images.", "item.content"
                )
            unknown = InputAudio(None) in item.content
        if unknown and event.audio is None:
            raise ProtocolError(
                "missing_required_parameter",
                "An input_audio part needs audio or a transcript.",
                "item.content",
            )
        form = self.config.input_format
        longest = self._limits.max_buffer_seconds * form.rate * form.sample_bytes
        if event.audio is not None and len(event.audio) > longest:
            raise ProtocolError("event_too_large", "The item's audio is too long.", "item.content")
        self.history.add(item, event.previous_item_id)
        previous = self.history.before(item.id)
        self._effects += (ItemAdded(item, previous), ItemDone(item, previous))
        if unknown and event.audio is not None:
            self.listening.supply(item.id, event.audio)

    def _delete_item(self, event: DeleteItem, now: float) -> None:
        self.history.delete(event.item_id)
        self.answering.playout.playback.forget(event.item_id)
        self.listening.forget(event.item_id)
        self._effects.append(ItemDeleted(event.item_id))

    def _retrieve_item(self, event: RetrieveItem, now: float) -> None:
        item = self.history.get(event.item_id)
        if item is None:
            raise ProtocolError(
                "item_retrieve_invalid_item_id",
                f"Error retrieving item: the item with ID '{event.item_id}' does not exist.",
                "item_id",
            )
        self._effects.append(ItemRetrieved(item))

    def _truncate_item(self, event: TruncateItem, now: float) -> None:
        self.answering.playout.truncate(event.item_id, event.content_index, event.audio_end_ms, now)
        self.listening.prepare()

    def _create_response(self, event: CreateResponse, now: float) -> None:
        if self.config.kind == "transcription":
            raise ProtocolError(
                "invalid_event_for_session", "A transcription session makes no responses."
            )
        self.answering.create(self.config, event.params, now)

    def _cancel_response(self, event: CancelResponse, now: float) -> None:
        self.answering.cancel(event.response_id, now)

    def _reject(self, event: Rejected, now: float) -> None:
        self._effects.append(ErrorReported(event.error))

    # -- what the user says -----------------------------------------------------------------

    def _receive_audio(self, event: AudioReceived, now: float) -> None:
        self.listening.receive_audio(event, now)

    def _receive_voice(self, event: VoiceProbability, now: float) -> None:
        self.listening.receive_voice(event, now)

    def _receive_picture(self, event: PictureSeen, now: float) -> None:
        if self._spec.sees and self.answering.engine_ready:
            self._effects.append(ToEngine(See(session=self.id, jpeg=event.jpeg or b"")))

    # -- what the engine says ---------------------------------------------------------------

    def _receive_output(self, event: Any, now: float) -> None:
        self.answering.receive(event, now)

    def _take_offer(self, event: SpeechOffered, now: float) -> None:
        if self.config.kind == "realtime" and not self.answering.busy:
            self.answering.create(self.config, ResponseParams(), now)

    def _receive_alignment(self, event: SpeechAligned, now: float) -> None:
        self.answering.playout.aligned(event)
        self.listening.prepare()

    def _receive_judgement(self, event: TurnJudged, now: float) -> None:
        self.listening.receive_judgement(event, now)

    def _receive_words(self, event: TranscriptDelta, now: float) -> None:
        self.listening.receive_words(event)

    def _receive_transcript(self, event: TranscriptFinal, now: float) -> None:
        self.listening.receive_transcript(event)

    def _fail_transcript(self, event: TranscriptFailed, now: float) -> None:
        self.listening.fail_transcript(event)

    def _lose_engine(self, event: EngineLost, now: float) -> None:
        self.answering.lost()
        self.listening.lost()

    def _regain_engine(self, event: EngineReady, now: float) -> None:
        if not self.answering.engine_ready:
            self.answering.engine_ready = True
            self.listening.regained()
            if self.config.kind == "realtime":
                self.answering.prepare(self.config)

    # -- the connection ---------------------------------------------------------------------

    def _attach(self, event: Attached, now: float) -> None:
        self.connection = step(CONNECTION, self.connection, ConnectionSignal.ATTACH)
        self._detached_at = math.inf

    def _detach(self, event: Detached, now: float) -> None:
        if not event.resumable:
            self._end(1000, "the client is gone")
            return
        self.connection = step(CONNECTION, self.connection, ConnectionSignal.DETACH)
        self._detached_at = now

    def _close(self, event: CloseRequested, now: float) -> None:
        self._end(event.code, event.reason)

    def _clean(self, event: CleanedUp, now: float) -> None:
        signal = ConnectionSignal.CLEANED if event.ok else ConnectionSignal.NOT_CLEANED
        self.connection = step(CONNECTION, self.connection, signal)

    def _report_playback(self, event: PlaybackReported, now: float) -> None:
        self.answering.playout.playback.report(event.item_id, event.played_ms, now)

    def _expire(self, code: str, message: str) -> None:
        self._effects.append(ErrorReported(ProtocolError(code, message)))
        self._end(1000, message)

    def _end(self, code: int, reason: str) -> None:
        self.answering.stop_everything()
        self.connection = step(CONNECTION, self.connection, ConnectionSignal.CLOSE)
        self._effects += (CloseTransport(code, reason), CleanUp())


_HANDLERS: Mapping[type, Callable[[Session, Any, float], None]] = {
    UpdateSession: Session._update,
    CommitAudio: Session._commit_audio,
    ClearAudio: Session._clear_audio,
    ClearOutput: Session._clear_output,
    CreateItem: Session._create_item,
    DeleteItem: Session._delete_item,
    RetrieveItem: Session._retrieve_item,
    TruncateItem: Session._truncate_item,
    CreateResponse: Session._create_response,
    CancelResponse: Session._cancel_response,
    Rejected: Session._reject,
    AudioReceived: Session._receive_audio,
    VoiceProbability: Session._receive_voice,
    PictureSeen: Session._receive_picture,
    PlaybackReported: Session._report_playback,
    TranscriptDelta: Session._receive_words,
    TranscriptFinal: Session._receive_transcript,
    TranscriptFailed: Session._fail_transcript,
    TurnJudged: Session._receive_judgement,
    TextGenerated: Session._receive_output,
    SpeechGenerated: Session._receive_output,
    PictureGenerated: Session._receive_output,
    ToolCallStarted: Session._receive_output,
    ToolCallDelta: Session._receive_output,
    ToolCallEnded: Session._receive_output,
    ResponseEnded: Session._receive_output,
    SpeechAligned: Session._receive_alignment,
    SpeechOffered: Session._take_offer,
    Attached: Session._attach,
    Detached: Session._detach,
    CloseRequested: Session._close,
    CleanedUp: Session._clean,
    EngineLost: Session._lose_engine,
    EngineReady: Session._regain_engine,
}
