"""The assistant's side of a session: drafts, responses, what is heard of them.

One response at a time writes to the conversation. A draft is an answer to a turn that may not be
over: the client knows nothing of it until the turn is. Whatever the engine brings for a generation
that is neither is dropped here, so nothing made for an older one is ever heard.
"""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from duologue.engines.engine import (
    Acknowledge,
    AlignSpeech,
    CancelResponse,
    EngineSpec,
    Message,
    PictureGenerated,
    Prepare,
    Respond,
    ResponseEnded,
    TextPart,
    UtterancePart,
)
from duologue.sessions.effects import Effect, EndReason, ErrorReported, ShowPicture, ToEngine
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import ResponseParams
from duologue.sessions.history import History
from duologue.sessions.playout import Playout
from duologue.sessions.prompting import messages
from duologue.sessions.response_requests import answer_limit, input_items, response_request
from duologue.sessions.responses import GeneratedOutput, LiveResponse, ResponseSettings
from duologue.sessions.session_config import SessionConfig, SessionLimits
from duologue.sessions.turns import ASSISTANT, Assistant, AssistantSignal, Generation, step

DRAFT_PICTURES = 50
"""Two seconds of an answer's video that wait until it is known whether it is wanted."""
OF_NO_ANSWER = 0
"""The generation of pictures that belong to none."""
UNAVAILABLE = ProtocolError(
    "engine_unavailable", "The model is not available at the moment.", retry_after_ms=1000
)


@dataclass(slots=True)
class Draft:
    """An answer that nobody has been told of."""

    generation: int
    until: int
    basis: tuple[int, SessionConfig]
    outputs: list[GeneratedOutput | ResponseEnded] = field(default_factory=list)
    pictures: int = 0

    def take(self, output: GeneratedOutput | ResponseEnded) -> None:
        """Keep it until the answer is wanted. Of its pictures the first ones."""
        if isinstance(output, PictureGenerated):
            self.pictures += 1
            if self.pictures > DRAFT_PICTURES:
                return
        self.outputs.append(output)


class Answering:
    """Everything the assistant says, and how it stops."""

    def __init__(
        self,
        session_id: str,
        conversation_id: str,
        spec: EngineSpec,
        limits: SessionLimits,
        history: History,
        effects: list[Effect],
        new_id: Callable[[str], str],
        plays_out: bool,
    ) -> None:
        self._session_id = session_id
        self._conversation_id = conversation_id
        self._spec = spec
        self._limits = limits
        self._history = history
        self._effects = effects
        self._new_id = new_id
        self._generation = 0
        self._draft: Draft | None = None
        self._active: LiveResponse | None = None
        self._out_of_band: dict[int, LiveResponse] = {}
        self._yielding: set[int] = set()
        self._queued = False
        self._heard_seconds = 0.0
        self.playout = Playout(session_id, history, effects, self._tell, plays_out)
        self.state = Assistant.QUIET
        self.engine_ready = True
        self.quiet_since = math.inf
        """When the last answer had been heard, if the user has said nothing since."""
        self.ever_spoke = False

    @property
    def busy(self) -> bool:
        """There is an answer, so there can't be another one."""
        return self._active is not None

    @property
    def decides(self) -> bool:
        """The model speaks when it wants to: the end of a turn asks for nothing."""
        return self._spec.duplex is not None

    # -- asking -----------------------------------------------------------------------------

    def heard(self, seconds: float) -> None:
        """The next response answers this much more audio (for its usage)."""
        self._heard_seconds += seconds

    def prepare(self, config: SessionConfig, utterance: str = "") -> None:
        """Let the engine warm the next prompt, which will go on with this utterance if any.

        One that can't fit is refused when it is asked for.
        """
        if not self.engine_ready or self._active is not None:
            return
        pending = UtterancePart(utterance) if utterance else None
        with suppress(ProtocolError):
            request = response_request(
                self._spec, config, ResponseParams(), messages(self._history, pending)
            )
            self._tell(Prepare(session=self._session_id, request=request))

    def create(
        self, config: SessionConfig, params: ResponseParams, now: float, note: str | None = None
    ) -> None:
        """Start a response. Raises ProtocolError when there can't be one.

        ``note`` is a remark to the model alone, after everything that was said.
        """
        if params.conversation and self._active is not None:
            raise ProtocolError(
                "conversation_already_has_active_response",
                "Conversation already has an active response in progress: "
                f"{self._active.id}. Wait until the response is finished before creating a new "
                "one.",
            )
        if not params.conversation and len(self._out_of_band) >= self._limits.max_out_of_band:
            raise ProtocolError(
                "bad_response_create", "Too many out-of-band responses are active.", "response"
            )
        prompt = messages(input_items(params, self._history, self._spec))
        if note is not None:
            prompt = (*prompt, Message("system", (TextPart(note),)))
        request = response_request(self._spec, config, params, prompt)
        if params.conversation:
            self.drop_draft()
        response = self._begin(config, params, self._next_generation())
        if not self.engine_ready:
            self._effects.append(ErrorReported(UNAVAILABLE))
            response.fail(UNAVAILABLE)
            return
        self._tell(
            Respond(session=self._session_id, generation=response.generation, request=request)
        )

    def create_for_turn(self, config: SessionConfig, now: float, note: str | None = None) -> None:
        """Answer a turn that is over: with its draft, now, or after the response that is active."""
        draft, self._draft = self._draft, None
        if self._active is not None:
            self._discard(draft)
            self._queued = True
            return
        if draft is None or note is not None or draft.basis != (self._history.version, config):
            self._discard(draft)
            try:
                self.create(config, ResponseParams(), now, note)
            except ProtocolError as error:
                self._effects.append(ErrorReported(error))
            return
        response = self._begin(config, ResponseParams(), draft.generation)
        # Now somebody waits for it, so the engine may no longer put it last.
        self._tell(Acknowledge(session=self._session_id, generation=draft.generation, sent_ms=0))
        for output in draft.outputs:
            self._receive(response, output, now)

    def speculate(
        self, config: SessionConfig, utterance: str, until: int, committed_version: int
    ) -> None:
        """Draft an answer to an utterance that may be over.

        ``committed_version`` is the history's version once the utterance is in it.
        """
        if self._active is not None or not self.engine_ready:
            return
        self.drop_draft()
        prompt = messages(self._history, UtterancePart(utterance, until))
        try:
            request = response_request(
                self._spec, config, ResponseParams(), prompt, speculative=True
            )
        except ProtocolError:
            return
        self._draft = Draft(self._next_generation(), until, (committed_version, config))
        self._tell(
            Respond(session=self._session_id, generation=self._draft.generation, request=request)
        )

    def drop_draft(self) -> None:
        """The turn was not over."""
        draft, self._draft = self._draft, None
        self._discard(draft)

    def _discard(self, draft: Draft | None) -> None:
        if draft is not None and not any(isinstance(o, ResponseEnded) for o in draft.outputs):
            self._tell(CancelResponse(session=self._session_id, generation=draft.generation))

    def _begin(self, config: SessionConfig, params: ResponseParams, number: int) -> LiveResponse:
        settings = ResponseSettings(
            conversation_id=self._conversation_id if params.conversation else None,
            modality=params.modality or config.modality,
            voice=params.voice or config.voice,
            output_format=params.output_format or config.output_format,
            max_output_tokens=answer_limit(config, params),
            metadata=params.metadata,
            input_audio_seconds=self._heard_seconds if params.conversation else 0.0,
        )
        response = LiveResponse(
            id=self._new_id("resp"),
            generation=number,
            session_id=self._session_id,
            settings=settings,
            history=self._history if params.conversation else None,
            playout=self.playout,
            effects=self._effects,
            new_id=self._new_id,
            lead=self.playout.lead(self._limits.audio_lead),
            delta_ms=self._limits.delta_ms,
        )
        if params.conversation:
            self._heard_seconds = 0.0
            self._active = response
            self._queued = False
            self.state = step(ASSISTANT, self.state, AssistantSignal.REQUESTED)
        else:
            self._out_of_band[number] = response
        response.begin()
        return response

    def _next_generation(self) -> int:
        self._generation += 1
        return self._generation

    def _tell(
        self, command: Respond | CancelResponse | Prepare | AlignSpeech | Acknowledge
    ) -> None:
        if self.engine_ready:
            self._effects.append(ToEngine(command))

    # -- what the engine brings -------------------------------------------------------------

    def receive(self, output: GeneratedOutput | ResponseEnded, now: float) -> None:
        """An output of the engine; one that is for nobody is dropped."""
        number = output.generation
        if isinstance(output, ResponseEnded):
            self._yielding.discard(number)
        if isinstance(output, PictureGenerated) and number == OF_NO_ANSWER:
            self._effects.append(ShowPicture("", output))
        elif self._draft is not None and number == self._draft.generation:
            self._draft.take(output)
        elif self._active is not None and number == self._active.generation:
            self._receive(self._active, output, now)
        elif number in self._out_of_band:
            self._receive(self._out_of_band[number], output, now)

    def _receive(
        self, response: LiveResponse, output: GeneratedOutput | ResponseEnded, now: float
    ) -> None:
        if isinstance(output, ResponseEnded):
            if output.reason == "failed" and output.failure is not None:
                failure = output.failure
                self._effects.append(ErrorReported(ProtocolError(failure.code, failure.message)))
            response.end(output, now)
        else:
            response.receive(output, now)

    def lost(self) -> None:
        """The engine is gone: what was under way has failed."""
        self.engine_ready = False
        self._draft = None
        self._yielding.clear()
        self._queued = False
        responses = self._responses()
        if responses:
            self._effects.append(ErrorReported(UNAVAILABLE))
        for response in responses:
            response.fail(UNAVAILABLE)

    # -- stopping ---------------------------------------------------------------------------

    def interrupt(self, now: float) -> None:
        """The user speaks: stop, and remember how much was heard."""
        self._queued = False
        if self._active is not None:
            self._stop(self._active, "turn_detected")
        self.playout.stop(now)
        self.state = step(ASSISTANT, self.state, AssistantSignal.CANCELLED)

    def duck(self) -> None:
        """An overlap is being judged."""
        if self.playout.duck():
            self.state = step(ASSISTANT, self.state, AssistantSignal.OVERLAPPED)

    def restore(self) -> None:
        """It was a backchannel, or nobody judges it any more."""
        if self.state is Assistant.DUCKED:
            self.playout.restore()
            self.state = step(ASSISTANT, self.state, AssistantSignal.RESTORED)

    def cancel(self, response_id: str | None, now: float) -> None:
        """A client's cancel. Raises ProtocolError where there is nothing to cancel."""
        response = self._active
        if response_id is not None:
            response = next((r for r in self._responses() if r.id == response_id), None)
        if response is None:
            raise ProtocolError(
                "response_cancel_not_active", "Cancellation failed: no active response found"
            )
        self._stop(response, "client_cancelled")
        for spoken in response.spoken_items:
            self.playout.keep_heard(spoken)
        if response is self._active and self.playout.silent(now):
            self.state = step(ASSISTANT, self.state, AssistantSignal.CANCELLED)

    def stop_everything(self) -> None:
        """The session ends."""
        self._queued = False
        self.drop_draft()
        for response in self._responses():
            self._stop(response, "client_cancelled")

    def _stop(self, response: LiveResponse, reason: EndReason) -> None:
        if response.engine is Generation.OPEN:
            self._tell(CancelResponse(session=self._session_id, generation=response.generation))
            self._yielding.add(response.generation)
        response.cancel(reason)

    # -- time -------------------------------------------------------------------------------

    def settle(self, config: SessionConfig, now: float) -> None:
        """Send what there is room for and let go of what is over."""
        before = self.state
        for response in self._responses():
            response.pump(now)
        for number, response in list(self._out_of_band.items()):
            if response.done:
                del self._out_of_band[number]
        active = self._active
        if active is not None and active.audible:
            self.ever_spoke = True
            self.state = step(ASSISTANT, self.state, AssistantSignal.AUDIBLE)
        if active is not None and active.done:
            self._active = None
        if self._active is None and not self._yielding:
            self.state = step(ASSISTANT, self.state, AssistantSignal.CONFIRMED)
        if self._active is None and self.playout.silent(now):
            self.state = step(ASSISTANT, self.state, AssistantSignal.FINISHED)
        if self.state is Assistant.QUIET and before is not Assistant.QUIET:
            self.quiet_since = now
            if before is Assistant.DUCKED:
                self.playout.restore()
        self.playout.settle(now, [response.id for response in self._responses()])
        if self._queued and self._active is None:
            self._queued = False
            self.create_for_turn(config, now)

    def next_deadline(self) -> float:
        """When audio may leave, or the last of it will have been heard."""
        deadlines = [self.playout.next_deadline()]
        deadlines += [response.next_deadline() for response in self._responses()]
        audible = self.state in (Assistant.THINKING, Assistant.SPEAKING, Assistant.DUCKED)
        if self._active is None and audible:
            deadlines.append(self.playout.playback.end)
        return min(deadlines)

    def _responses(self) -> list[LiveResponse]:
        """All that are under way."""
        responses = [*self._out_of_band.values()]
        if self._active is not None:
            responses.append(self._active)
        return responses
