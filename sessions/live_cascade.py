"""A recogniser, a language model and a voice as what speaks in a Live session.

Live commands become events of the session core, and what the core says becomes Live events. Turns
are the core's own, with a fixed patience and barge-in; what was heard is what left the mixer.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

from duologue.codecs.media import Int16Samples
from duologue.engines.engine import HEARD_RATE
from duologue.sessions import effects
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import (
    CancelResponse,
    ClearOutput,
    ClientEvent,
    CreateItem,
    CreateResponse,
    ResponseParams,
    UpdateSession,
)
from duologue.sessions.items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputText,
    MessageItem,
)
from duologue.sessions.live_config import (
    ClientDelegation,
    DecisionsDelegation,
    Delegation,
    LiveConfig,
    ResponsesDelegation,
    TranscriptEvent,
)
from duologue.sessions.live_decisions import Decisions
from duologue.sessions.live_delegation import Delegations
from duologue.sessions.live_events import (
    AppendContext,
    ContextAppended,
    CreateDecision,
    CreateResponse as LiveCreateResponse,
    CreateResponseItem,
    InputTranscript,
    OutputTranscript,
    Speaker,
    TurnMarked,
)
from duologue.sessions.live_session import LiveSession
from duologue.sessions.live_transcript import (
    Fragment,
    HeardTimeline,
    SpokenWords,
    WrittenWords,
)
from duologue.sessions.session_config import (
    FunctionTool,
    ServerVad,
    SessionConfig,
    SessionPatch,
    Transcription,
    TurnPolicy,
)

OURS: Final = "live"
"""The event id of what nobody asked for: errors about it are nobody's."""
DELEGATE: Final = FunctionTool(
    "delegate",
    "Hand a task over that you can't do yourself: looking something up, or doing something for "
    "the user. Not for conversation, nor for what you know.",
    '{"type":"object","properties":{}}',
)
HEARD_PER_MS: Final = HEARD_RATE // 1000
WORDS: Final[Mapping[str, str]] = {
    "instructions": "{}",
    "thinking": "For your information, not to be said unless it matters: {}",
    "commentary": "Tell the user this now, in your own words: {}",
}
ACKNOWLEDGE: Final = "Tell the user in a few words that you are looking into it. Say nothing else."


def cascade_config(config: LiveConfig, base: SessionConfig, recognizer: str) -> SessionConfig:
    """What a Live session means to the core. ``base``: the operator's defaults."""
    made = replace(
        base,
        instructions=_instructions(config, base),
        voice=config.voice or base.voice,
        modality="audio",
        turn_detection=ServerVad(),
        turn_policy=TurnPolicy.BARGE_IN,
        transcription=Transcription(model=recognizer),
    )
    return made.merged(SessionPatch(_tools(config.delegation)))


def _instructions(config: LiveConfig, base: SessionConfig) -> str:
    said = config.instructions.strip() or base.instructions
    if isinstance(config.delegation, ResponsesDelegation) and config.delegation.instructions:
        said = f"{said}\n\n{config.delegation.instructions}".strip()
    return said


def _tools(delegation: Delegation | None) -> dict[str, object]:
    """What of a core's configuration follows from a delegation."""
    if isinstance(delegation, ResponsesDelegation):
        return {
            "tools": delegation.tools,
            "tool_choice": delegation.tool_choice if delegation.tools else "auto",
            "parallel_tool_calls": delegation.parallel_tool_calls,
        }
    tools = (DELEGATE,) if isinstance(delegation, ClientDelegation) else ()
    return {"tools": tools, "tool_choice": "auto"}


class CascadeVoice:
    """A core's client. ``pending`` waits to be given to the core, in order.

    ``hear`` takes sound for the core and ``report`` what was heard of an item; both act at once.
    """

    rate: Final = HEARD_RATE

    def __init__(
        self,
        session: LiveSession,
        base: SessionConfig,
        clock: Callable[[], float],
        hear: Callable[[bytes], None],
        report: Callable[[str, float], None],
    ) -> None:
        self.pending: deque[ClientEvent] = deque()
        self._session = session
        self._base = base
        self._clock = clock
        self._hear = hear
        self._report = report
        self._words = SpokenWords()
        self._input = HeardTimeline()
        self._appended: dict[str, tuple[AppendContext, int]] = {}
        self._delegations = Delegations(session)
        self._decisions = Decisions(self._tell, session.events.append, OURS, base.model)
        self._decided: set[str] = set()
        self._written = WrittenWords()
        self._response: str | None = None
        self._asked = False
        self._speaking = False
        self._wanted = False
        self.ended: str | None = None
        """The code of the error with which the core ends the session, if it does."""
        for item in session.config.history:
            self._tell(CreateItem(OURS, item))

    def _tell(self, event: ClientEvent) -> None:
        self.pending.append(event)

    # -- what clients command ---------------------------------------------------------------

    def configure(self, config: LiveConfig) -> None:
        changes = _tools(config.delegation)
        changes["instructions"] = _instructions(config, self._base)
        self._tell(UpdateSession(OURS, SessionPatch(changes)))

    def append(self, command: AppendContext, now: float) -> None:
        call_id = self._delegations.take_call(command.delegation_id)
        item_id = self._session.new_id("item")
        self._appended[item_id] = (command, self._session.place(now))
        if call_id is not None:
            self._tell(
                CreateItem(command.event_id, FunctionOutputItem(item_id, call_id, command.content))
            )
        else:
            text = WORDS[command.kind].format(command.content)
            self._tell(
                CreateItem(command.event_id, MessageItem(item_id, "system", (InputText(text),)))
            )
        self._wanted = self._wanted or command.kind == "commentary"

    def add_item(self, command: CreateResponseItem) -> None:
        self._delegations.check_responses()
        item = command.item
        if not item.id:
            item = replace(item, id=self._session.new_id("item"))
        self._tell(CreateItem(command.event_id, item))

    def respond(self, command: LiveCreateResponse) -> None:
        self._delegations.check_responses()
        self._delegations.continues(command.event_id)
        self._wanted = True

    def decide(self, command: CreateDecision, texts: tuple[str, ...]) -> None:
        delegation = self._session.config.delegation
        if not isinstance(delegation, DecisionsDelegation):
            message = "This needs a session whose delegation is of the type 'decisions'."
            raise ProtocolError("invalid_event_for_session", message)
        if command.event_id in self._decided:
            raise ProtocolError("invalid_value", "This event was sent before.", "event_id")
        if self._decisions.full:
            message = "Too many decisions wait: wait until some are made."
            raise ProtocolError("rate_limit_exceeded", message)
        self._decided.add(command.event_id)
        self._decisions.decide(delegation.questions, texts)

    def _trigger(self, kind: TranscriptEvent) -> None:
        """Somebody has said something: decide what was to be decided then."""
        for trigger in self._session.config.triggers:
            if trigger.event_type == kind:
                self._decisions.decide(
                    trigger.questions,
                    self._session.decision_texts,
                    kind,
                    self._session.new_id("trig"),
                )

    def interrupt(self) -> None:
        if self._response is not None:
            self._tell(CancelResponse(OURS))
        self._tell(ClearOutput(OURS))
        self._words.forget()

    def settle(self, now: float) -> None:
        """Ask for what is to be said, once nobody speaks."""
        free = self._response is None and not self._asked and not self._speaking
        if not free or self._session.mixer.fixture:
            return
        if self._wanted:
            self._wanted = False
            self._ask(ResponseParams())
        elif self._delegations.acknowledges(now):
            self._ask(ResponseParams(instructions=ACKNOWLEDGE, tools=()))

    def _ask(self, params: ResponseParams) -> None:
        self._asked = True
        self._tell(CreateResponse(OURS, params))

    # -- sound ------------------------------------------------------------------------------

    def hear(self, samples: Int16Samples, now: float) -> None:
        self._input.hear(len(samples) / HEARD_PER_MS, self._session.place(now))
        self._hear(samples.astype("<i2").tobytes())

    def heard(self, items: tuple[tuple[str, float], ...], start_ms: int, end_ms: int) -> None:
        for item_id, played in items:
            fragment = self._words.advance(item_id, played, start_ms, end_ms)
            if fragment is not None:
                said = OutputTranscript(fragment.text, fragment.start_ms, fragment.end_ms)
                self._session.events.append(said)
            self._report(item_id, played)

    def steer(
        self, effect: effects.FlushPlayout | effects.DuckPlayout | effects.RestorePlayout
    ) -> None:
        match effect:
            case effects.FlushPlayout():
                self._session.mixer.flush()
                self._words.forget()
            case effects.DuckPlayout():
                self._session.mixer.duck()
            case effects.RestorePlayout():
                self._session.mixer.restore()

    # -- what the core says -----------------------------------------------------------------

    def told(self, event: effects.ServerEvent) -> None:
        """The core tells its client something."""
        handler = _TOLD.get(type(event))
        if handler is not None:
            handler(self, event, self._clock())

    def _said(self, event: effects.TranscriptDeltaSaid, now: float) -> None:
        self._words.say(event.item_id, event.delta, event.start_ms)

    def _sound(self, event: effects.AudioDelta, now: float) -> None:
        self._words.sent(event.item_id, len(event.pcm) / 48)
        self._session.mixer.play(event.item_id, event.pcm)

    def _sound_ended(self, event: effects.AudioDone, now: float) -> None:
        self._words.finish(event.item_id)

    def _speech_started(self, event: effects.SpeechStarted, now: float) -> None:
        self._speaking = True
        self._session.awake(now)
        self._mark("user", "started", self._input.place(event.audio_start_ms))
        self._written.begin(event.item_id, self._input.place(event.audio_start_ms))

    def _speech_stopped(self, event: effects.SpeechStopped, now: float) -> None:
        self._speaking = False
        self._session.awake(now)
        self._mark("user", "ended", self._input.place(event.audio_end_ms))

    def _mark(self, speaker: Speaker, state: Literal["started", "ended"], at: int) -> None:
        if self._session.config.turn_marks:
            self._session.events.append(TurnMarked(speaker, state, at))

    def _heard_begins(self, event: effects.PlaybackStarted, now: float) -> None:
        self._mark("assistant", "started", self._session.place(now))

    def _heard_ends(
        self, event: effects.PlaybackStopped | effects.PlaybackCleared, now: float
    ) -> None:
        self._trigger("session.output_transcript.delta")
        self._mark("assistant", "ended", self._session.place(now))

    def _transcribed(self, event: effects.TranscriptionDelta, now: float) -> None:
        self._write(self._written.add(event.item_id, event.delta, self._session.place(now)))

    def _transcription_done(self, event: effects.TranscriptionCompleted, now: float) -> None:
        place = self._session.place(now)
        self._write(self._written.finish(event.item_id, event.transcript, place))
        if event.transcript.strip():
            self._trigger("session.input_transcript.delta")

    def _transcription_failed(self, event: effects.TranscriptionFailed, now: float) -> None:
        self._written.forget(event.item_id)

    def _write(self, fragment: Fragment | None) -> None:
        if fragment is not None:
            self._session.events.append(
                InputTranscript(fragment.text, fragment.start_ms, fragment.end_ms)
            )

    def _item_added(self, event: effects.ItemAdded, now: float) -> None:
        appended = self._appended.pop(event.item.id, None)
        if appended is not None:
            command, start = appended
            self._session.events.append(
                ContextAppended(command.kind, start, self._session.place(now), command.event_id)
            )

    def _response_created(self, event: effects.ResponseCreated, now: float) -> None:
        if event.response.conversation_id is None:
            return
        if not self._asked and not self._appended:
            # The answer to a turn: what was to be said is in its prompt.
            self._wanted = False
        self._response, self._asked = event.response.id, False
        self._delegations.response_created(event.response.id)

    def _item_done(self, event: effects.OutputItemDone, now: float) -> None:
        if isinstance(event.item, FunctionCallItem):
            if event.item.status == "completed":
                self._delegations.called(event.response_id, event.item, now)
        elif isinstance(event.item, MessageItem):
            self._delegations.item_done(event.response_id, event.item)

    def _response_done(self, event: effects.ResponseDone, now: float) -> None:
        if event.response.id == self._response:
            self._response = None
        self._delegations.response_done(event.response)
        self._decisions.response_done(event.response)

    def _error(self, event: effects.ErrorReported, now: float) -> None:
        error = event.error
        if error.code in ("session_expired", "session_idle"):
            self.ended = error.code
        elif error.event_id == OURS:
            if error.code == "conversation_already_has_active_response":
                self._wanted, self._asked = True, False
            elif error.code in ("bad_response_create", "context_too_long") and not self._asked:
                self._decisions.failed()
            elif self._asked:
                # What was to be said can't be: for example, the conversation has grown too long.
                self._asked = False
                self._session.fail(error.answering(None))
        else:
            self._session.fail(error)


_TOLD: Mapping[type, Callable[[CascadeVoice, Any, float], None]] = {
    effects.TranscriptDeltaSaid: CascadeVoice._said,
    effects.AudioDelta: CascadeVoice._sound,
    effects.AudioDone: CascadeVoice._sound_ended,
    effects.SpeechStarted: CascadeVoice._speech_started,
    effects.SpeechStopped: CascadeVoice._speech_stopped,
    effects.PlaybackStarted: CascadeVoice._heard_begins,
    effects.PlaybackStopped: CascadeVoice._heard_ends,
    effects.PlaybackCleared: CascadeVoice._heard_ends,
    effects.TranscriptionDelta: CascadeVoice._transcribed,
    effects.TranscriptionCompleted: CascadeVoice._transcription_done,
    effects.TranscriptionFailed: CascadeVoice._transcription_failed,
    effects.ItemAdded: CascadeVoice._item_added,
    effects.ResponseCreated: CascadeVoice._response_created,
    effects.OutputItemDone: CascadeVoice._item_done,
    effects.ResponseDone: CascadeVoice._response_done,
    effects.ErrorReported: CascadeVoice._error,
}
