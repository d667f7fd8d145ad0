"""A frame-locked model as what speaks in a Live session.

The model hears a frame and says one for each of the session's frames, and decides by itself who
speaks. What is told to it is forced into its text; what it says is told as it is made. What the
user says is written down beside it, where there is a recogniser.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from duologue.codecs.media import Int16Samples
from duologue.codecs.pcm import bytes_from_int16, int16_from_bytes
from duologue.engines.duplex import (
    DuplexCommand,
    DuplexFailed,
    DuplexOutput,
    DuplexParked,
    DuplexSpec,
    ForceText,
    FrameHeard,
    FrameSpoken,
    InterruptDuplex,
    TextForced,
)
from duologue.sessions.errors import CODES, ProtocolError
from duologue.sessions.live_config import LiveConfig
from duologue.sessions.live_events import (
    AppendContext,
    ContextAppended,
    CreateDecision,
    CreateResponse,
    CreateResponseItem,
    OutputTranscript,
    TurnMarked,
)
from duologue.sessions.live_listening import LiveListening
from duologue.sessions.live_session import LiveSession
from duologue.sessions.live_voice import LivePace

QUIET: Final = 13.0
"""Root mean square of a frame (of 32,768) below which nobody hears it: it becomes zeros, which is
what clients tell silence by."""
TURN_OVER: Final = 8
"""Frames of silence after which the model's turn is over: 0.64 s of Moshi's."""
MOST_FORCED: Final = 64
"""Texts that may wait to be forced."""
ITEM: Final = "model"


def duplex_pace(spec: DuplexSpec) -> LivePace:
    """A frame of output for each of the model's; one that is late is waited for as long again."""
    return LivePace(round(spec.frame_ms), 2 * spec.frame_ms / 1000)


class DuplexVoice:
    """``tell`` takes what goes to the model, and must not raise."""

    rate: Final = 24_000

    def __init__(
        self,
        session: LiveSession,
        spec: DuplexSpec,
        tell: Callable[[DuplexCommand], None],
        listening: LiveListening | None = None,
    ) -> None:
        """The spec's rate must be 24 kHz."""
        self._session = session
        self._listening = listening
        self._spec = spec
        self._tell = tell
        self._waiting = np.zeros(0, np.int16)
        self._sequence = 0
        self._forced: dict[str, AppendContext] = {}
        self._origin: int | None = None
        self._still = TURN_OVER
        # The model's clock begins with the first frame that it hears.
        self._send(np.zeros(spec.frame_samples, np.int16))

    # -- what clients command ---------------------------------------------------------------

    def configure(self, config: LiveConfig) -> None:
        """The model hands nothing over: there is nothing to change."""

    def append(self, command: AppendContext, now: float) -> None:
        if command.delegation_id is not None:
            message = f"There is no delegation '{command.delegation_id}' to the client."
            raise ProtocolError("delegation_not_found", message, "delegation_id")
        if len(self._forced) >= MOST_FORCED:
            message = "Too much waits to be told to the model: wait for it to be appended."
            raise ProtocolError("rate_limit_exceeded", message)
        reference = self._session.new_id("text")
        self._forced[reference] = command
        self._tell(
            ForceText(session="", reference=reference, kind=command.kind, text=command.content)
        )

    def add_item(self, command: CreateResponseItem) -> None:
        raise ProtocolError("unsupported", "This model hands nothing over to a backend.")

    def respond(self, command: CreateResponse) -> None:
        raise ProtocolError("unsupported", "This model hands nothing over to a backend.")

    def decide(self, command: CreateDecision, texts: tuple[str, ...]) -> None:
        raise ProtocolError("unsupported", "No model here answers decisions.")

    def interrupt(self) -> None:
        self._tell(InterruptDuplex(session=""))

    def settle(self, now: float) -> None:
        """Where no sound comes, the user is silent."""
        if self._listening is not None:
            self._listening.settle(now)

    # -- sound ------------------------------------------------------------------------------

    def hear(self, samples: Int16Samples, now: float) -> None:
        size = self._spec.frame_samples
        self._waiting = np.concatenate((self._waiting, samples))
        while len(self._waiting) >= size:
            self._send(self._waiting[:size])
            self._waiting = self._waiting[size:]
        if self._listening is not None:
            self._listening.hear(samples, now)

    def _send(self, frame: Int16Samples) -> None:
        self._tell(FrameHeard(session="", sequence=self._sequence, pcm=bytes_from_int16(frame)))
        self._sequence += 1

    def heard(self, items: tuple[tuple[str, float], ...], start_ms: int, end_ms: int) -> None:
        """The model's own state has heard what it said."""

    # -- what the model says ----------------------------------------------------------------

    def told(self, output: DuplexOutput, now: float) -> None:
        """The model says something."""
        match output:
            case FrameSpoken():
                self._spoken(output, now)
            case TextForced():
                command = self._forced.pop(output.reference, None)
                if command is not None:
                    self._session.events.append(
                        ContextAppended(
                            command.kind,
                            self._place(output.start, now),
                            self._place(output.end, now),
                            command.event_id,
                        )
                    )
            case DuplexParked():
                self._session.stopped_speaking()
                self._origin = None
            case DuplexFailed():
                self._failed(output)
            case _:
                pass

    def _spoken(self, output: FrameSpoken, now: float) -> None:
        session = self._session
        start = session.next_place()
        if self._origin is None:
            session.began_to_speak()
            self._origin = start - round(output.tick * self._spec.frame_ms)
        samples = int16_from_bytes(output.pcm)
        wide = samples.astype(np.float32)
        still = float(np.sqrt(wide.dot(wide) / max(len(wide), 1))) < QUIET
        if still:
            samples = np.zeros(len(samples), np.int16)
        else:
            session.awake(now)
        if not session.mixer.fixture and not session.too_late():
            session.mixer.play(ITEM, samples.astype("<i2").tobytes())
        self._follow_turn(still, start)
        if output.text:
            end = start + round(self._spec.frame_ms)
            session.events.append(OutputTranscript(output.text, start, end))

    def _follow_turn(self, still: bool, start: int) -> None:
        before, self._still = self._still, self._still + 1 if still else 0
        if not self._session.config.turn_marks:
            return
        if not still and before >= TURN_OVER:
            self._session.events.append(TurnMarked("assistant", "started", start))
        elif self._still == TURN_OVER and before < TURN_OVER:
            self._session.events.append(TurnMarked("assistant", "ended", start))

    def _place(self, tick: int, now: float) -> int:
        """Where on the timeline a tick of the model lies."""
        if self._origin is None:
            return self._session.place(now)
        return max(0, self._origin + round(tick * self._spec.frame_ms))

    def _failed(self, output: DuplexFailed) -> None:
        command = self._forced.pop(output.reference, None)
        code = output.code if output.code in CODES else "engine_error"
        event_id = None if command is None else command.event_id
        self._session.fail(ProtocolError(code, output.message, None, event_id))
