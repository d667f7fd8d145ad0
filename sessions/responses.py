"""One response: what the engine brings becomes items and events, in the order clients rely on.

Text and calls leave when they are made. Audio leaves as the listener needs it, so a response whose
engine has finished is done for the client only when its last audio has left.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from duologue.engines.engine import (
    Acknowledge,
    PictureGenerated,
    ResponseEnded,
    SpeechGenerated,
    TextGenerated,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
)
from duologue.sessions.effects import (
    ArgumentsDelta,
    ArgumentsDone,
    AudioDelta,
    AudioDone,
    AudioUsage,
    ContentPartAdded,
    ContentPartDone,
    Effect,
    EndReason,
    ItemAdded,
    ItemDone,
    OutputItemAdded,
    OutputItemDone,
    ResponseCreated,
    ResponseDone,
    ResponseStatus,
    ResponseView,
    ShowPicture,
    TextDelta,
    TextDone,
    ToEngine,
    TranscriptDeltaSaid,
    TranscriptSaid,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.history import History
from duologue.sessions.items import (
    FunctionCallItem,
    Item,
    MessageItem,
    OutputAudio,
    OutputText,
    Status,
)
from duologue.sessions.playback import BYTES_PER_MS, SpokenItem
from duologue.sessions.playout import Playout
from duologue.sessions.session_config import AudioFormat, Modality
from duologue.sessions.turns import GENERATION, Generation, GenerationSignal, step

ACKNOWLEDGE_MS = 1_000
INPUT_AUDIO_TOKENS_PER_SECOND = 10
OUTPUT_AUDIO_TOKENS_PER_SECOND = 20
_EPSILON = 1e-6


GeneratedOutput = (
    TextGenerated
    | SpeechGenerated
    | PictureGenerated
    | ToolCallStarted
    | ToolCallDelta
    | ToolCallEnded
)


@dataclass(frozen=True, slots=True)
class ResponseSettings:
    """What was asked of a response, with everything that was left out filled in."""

    conversation_id: str | None
    modality: Modality
    voice: str
    output_format: AudioFormat
    max_output_tokens: int | None
    metadata: dict[str, str] | None
    input_audio_seconds: float = 0.0


@dataclass(slots=True)
class _MessageSlot:
    index: int
    item_id: str
    modality: Modality
    text: str = ""
    spoken: SpokenItem | None = None
    complete: bool = False
    done: Item | None = None


@dataclass(slots=True)
class _CallSlot:
    index: int
    item_id: str
    call_id: str
    name: str
    arguments: str = ""
    done: Item | None = None


@dataclass(slots=True)
class LiveResponse:
    """A response from its creation to its end; every method adds to ``effects``."""

    id: str
    generation: int
    session_id: str
    settings: ResponseSettings
    history: History | None
    playout: Playout
    effects: list[Effect]
    new_id: Callable[[str], str]
    lead: float
    delta_ms: int
    engine: Generation = Generation.OPEN
    done: bool = False
    _slots: list[_MessageSlot | _CallSlot] = field(default_factory=list)
    _audio: deque[tuple[_MessageSlot, bytes]] = field(default_factory=deque)
    _end: ResponseEnded | None = None
    _sent_ms: float = 0.0
    _acknowledged_ms: float = 0.0

    def begin(self) -> None:
        self.effects.append(ResponseCreated(self._view("in_progress")))

    @property
    def spoken_items(self) -> list[SpokenItem]:
        return [s.spoken for s in self._slots if isinstance(s, _MessageSlot) and s.spoken]

    @property
    def audible(self) -> bool:
        """Whether any of its audio has been sent."""
        return self._sent_ms > 0

    # -- what the engine brings -------------------------------------------------------------

    def receive(self, output: GeneratedOutput, now: float) -> None:
        """One output of the engine for this response; nothing counts after its last message."""
        if self.done or self.engine is Generation.CLOSED:
            return
        match output:
            case TextGenerated():
                slot = self._message("text")
                slot.text += output.text
                self.effects.append(
                    TextDelta(self.id, slot.item_id, slot.index, 0, output.text),
                )
            case SpeechGenerated():
                self._speak(output, now)
            case PictureGenerated():
                self.effects.append(ShowPicture(self.id, output))
            case ToolCallStarted():
                self._start_call(output)
            case ToolCallDelta():
                if (call := self._call(output.call_id)) is not None:
                    call.arguments += output.delta
                    self.effects.append(
                        ArgumentsDelta(
                            self.id, call.item_id, call.index, call.call_id, output.delta
                        )
                    )
            case ToolCallEnded():
                if (call := self._call(output.call_id)) is not None:
                    call.arguments = output.arguments
                    self._close_call(call, "completed")

    def end(self, end: ResponseEnded, now: float) -> None:
        """The engine has said its last."""
        if self.done or self.engine is Generation.CLOSED:
            return
        self.engine = step(GENERATION, self.engine, GenerationSignal.END)
        self._end = end
        if end.reason in ("failed", "cancelled"):
            self._drop_audio()
        else:
            for spoken in self.spoken_items:
                spoken.whole = True
        self.pump(now)

    def _speak(self, output: SpeechGenerated, now: float) -> None:
        slot = self._message("audio")
        assert slot.spoken is not None
        start_ms = slot.spoken.generated_ms
        slot.spoken.generate(output.text, output.pcm, output.clause_ms)
        slot.text += output.text
        if output.text:
            self.effects.append(
                TranscriptDeltaSaid(self.id, slot.item_id, slot.index, 0, output.text, start_ms)
            )
        step_bytes = self.delta_ms * BYTES_PER_MS
        for offset in range(0, len(output.pcm), step_bytes):
            self._audio.append((slot, output.pcm[offset : offset + step_bytes]))
        self.pump(now)

    def _message(self, modality: Modality) -> _MessageSlot:
        last = self._slots[-1] if self._slots else None
        if isinstance(last, _MessageSlot) and last.modality == modality:
            return last
        self._complete_messages()
        slot = _MessageSlot(len(self._slots), self.new_id("item"), modality)
        if modality == "audio":
            slot.spoken = self.playout.playback.open(
                slot.item_id, self.id, self.history is not None
            )
        self._slots.append(slot)
        self._add(slot.index, MessageItem(slot.item_id, "assistant", (), "in_progress"))
        self.effects.append(ContentPartAdded(self.id, slot.item_id, slot.index, 0, modality))
        return slot

    def _start_call(self, output: ToolCallStarted) -> None:
        self._complete_messages()
        slot = _CallSlot(len(self._slots), self.new_id("item"), output.call_id, output.name)
        self._slots.append(slot)
        self._add(
            slot.index,
            FunctionCallItem(slot.item_id, slot.call_id, slot.name, "", "in_progress"),
        )

    def _call(self, call_id: str) -> _CallSlot | None:
        for slot in reversed(self._slots):
            if isinstance(slot, _CallSlot) and slot.call_id == call_id and slot.done is None:
                return slot
        return None

    def _add(self, index: int, item: Item) -> None:
        self.effects.append(OutputItemAdded(self.id, index, item))
        if self.history is not None:
            self.history.add(item, bounded=False)
            self.effects.append(ItemAdded(item, self.history.before(item.id)))

    # -- what leaves ------------------------------------------------------------------------

    def pump(self, now: float) -> None:
        """Send the audio that the listener has room for, and end what is thereby complete."""
        if self.done:
            return
        while self._audio and self.playout.playback.lead(now) <= self.lead + _EPSILON:
            slot, pcm = self._audio.popleft()
            assert slot.spoken is not None
            length = len(pcm) / BYTES_PER_MS
            self.playout.playback.sent(slot.spoken, length, now)
            self._sent_ms += length
            self.effects.append(
                AudioDelta(self.id, slot.item_id, slot.index, 0, pcm, self.settings.output_format)
            )
            self.playout.begin(now)
            if slot.complete and not self._waits(slot):
                self._close_message(slot, "completed")
        if self._sent_ms >= self._acknowledged_ms + ACKNOWLEDGE_MS:
            self._acknowledged_ms = self._sent_ms
            if self.engine is Generation.OPEN:
                self.effects.append(
                    ToEngine(
                        Acknowledge(
                            session=self.session_id,
                            generation=self.generation,
                            sent_ms=int(self._sent_ms),
                        )
                    )
                )
        if self._end is not None and not self._audio:
            self._finish(self._end)

    def next_deadline(self) -> float:
        """When the listener has room for more audio; infinite when none waits."""
        if self.done or not self._audio:
            return math.inf
        return self.playout.playback.end - self.lead

    def _waits(self, slot: _MessageSlot) -> bool:
        return any(waiting is slot for waiting, _ in self._audio)

    def _complete_messages(self) -> None:
        """Another item begins: messages end as soon as their audio has left."""
        for slot in self._slots:
            if isinstance(slot, _MessageSlot) and not slot.complete:
                slot.complete = True
                if slot.spoken is not None:
                    slot.spoken.whole = True
                if not self._waits(slot):
                    self._close_message(slot, "completed")

    def _finish(self, end: ResponseEnded) -> None:
        match end.reason:
            case "completed":
                self._close("completed", None, None)
            case "max_output_tokens" | "content_filter":
                self._close("incomplete", end.reason, None)
            case "cancelled":
                self._close("cancelled", "client_cancelled", None)
            case "failed":
                code = end.failure.code if end.failure else "engine_error"
                message = end.failure.message if end.failure else "The model failed."
                self._close("failed", None, ProtocolError(code, message))

    def cancel(self, reason: EndReason) -> None:
        """End now, as cancelled: nothing that is still made for it matters any more."""
        self.engine = step(GENERATION, self.engine, GenerationSignal.CANCEL)
        self._drop_audio()
        self._close("cancelled", reason, None)

    def fail(self, error: ProtocolError) -> None:
        """End now, as failed."""
        self.engine = step(GENERATION, self.engine, GenerationSignal.END)
        self._drop_audio()
        self._close("failed", None, error)

    def _drop_audio(self) -> None:
        """What has not been sent won't be heard."""
        self._audio.clear()
        for spoken in self.spoken_items:
            spoken.forget_audio(before_ms=0.0, after_ms=spoken.sent_ms)
            if spoken.generated_ms > spoken.sent_ms or not spoken.whole:
                spoken.cut(spoken.sent_ms, by_client=False)

    def _close(
        self, status: ResponseStatus, reason: EndReason | None, error: ProtocolError | None
    ) -> None:
        if self.done:
            return
        self.done = True
        item_status: Status = "completed" if status == "completed" else "incomplete"
        for slot in self._slots:
            if isinstance(slot, _CallSlot):
                self._close_call(slot, "incomplete")
            else:
                self._close_message(slot, item_status)
        output = tuple(slot.done for slot in self._slots if slot.done is not None)
        self.effects.append(
            ResponseDone(self._view(status, output=output, reason=reason, error=error))
        )

    def _close_message(self, slot: _MessageSlot, status: Status) -> None:
        if slot.done is not None:
            return
        where = (self.id, slot.item_id, slot.index, 0)
        if slot.modality == "audio":
            self.effects += (AudioDone(*where), TranscriptSaid(*where, slot.text))
            item = MessageItem(slot.item_id, "assistant", (OutputAudio(slot.text),), status)
        else:
            self.effects.append(TextDone(*where, slot.text))
            item = MessageItem(slot.item_id, "assistant", (OutputText(slot.text),), status)
        slot.done = item
        self.effects.append(ContentPartDone(*where, slot.modality, slot.text))
        self._item_done(slot.index, item)
        if slot.spoken is not None:
            slot.spoken.closed = True
            self.playout.shorten(slot.spoken)

    def _close_call(self, slot: _CallSlot, status: Status) -> None:
        if slot.done is not None:
            return
        item = FunctionCallItem(slot.item_id, slot.call_id, slot.name, slot.arguments, status)
        slot.done = item
        if status == "completed":
            self.effects.append(
                ArgumentsDone(
                    self.id, slot.item_id, slot.index, slot.call_id, slot.name, slot.arguments
                )
            )
        self._item_done(slot.index, item)

    def _item_done(self, index: int, item: Item) -> None:
        self.effects.append(OutputItemDone(self.id, index, item))
        if self.history is not None and item.id in self.history:
            self.history.replace(item)
            self.effects.append(ItemDone(item, self.history.before(item.id)))

    def _view(
        self,
        status: ResponseStatus,
        output: tuple[Item, ...] = (),
        reason: EndReason | None = None,
        error: ProtocolError | None = None,
    ) -> ResponseView:
        usage = None
        if status != "in_progress":
            heard = self.settings.input_audio_seconds * INPUT_AUDIO_TOKENS_PER_SECOND
            usage = AudioUsage(
                self._end.usage if self._end is not None else AudioUsage().text,
                int(heard),
                int(self._sent_ms / 1000 * OUTPUT_AUDIO_TOKENS_PER_SECOND),
            )
        return ResponseView(
            id=self.id,
            status=status,
            conversation_id=self.settings.conversation_id,
            modality=self.settings.modality,
            voice=self.settings.voice,
            output_format=self.settings.output_format,
            max_output_tokens=self.settings.max_output_tokens,
            metadata=self.settings.metadata,
            output=output,
            reason=reason,
            error=error,
            usage=usage,
        )
