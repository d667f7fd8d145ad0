"""One client of the Realtime protocol, whatever carries it, and what it hears and when."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import anyio
import msgspec

from load_tests.recordings import Samples

JsonObject = dict[str, object]


class ClientError(Exception):
    """The server said something that it should not have, or nothing where it should."""


class _Error(msgspec.Struct):
    message: str = ""
    code: str | None = None
    event_id: str | None = None


class _Part(msgspec.Struct):
    transcript: str | None = None


class _Item(msgspec.Struct):
    id: str | None = None
    type: str = ""
    role: str | None = None
    content: list[_Part] = []


class _Details(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    id: str = ""
    status: str = ""
    status_details: _Details | None = None


class _Event(msgspec.Struct):
    """The fields of server events that are looked at here."""

    type: str
    item_id: str = ""
    response_id: str = ""
    delta: str = ""
    transcript: str = ""
    error: _Error | None = None
    item: _Item | None = None
    response: _Response | None = None
    audio_end_ms: int = 0


Event = _Event


@dataclass(slots=True)
class Answer:
    """A response as the client saw it; times on the client's clock."""

    id: str
    created: float
    item_id: str = ""
    first_audio: float | None = None
    done: float | None = None
    status: str = "in_progress"
    transcript: str = ""
    audio_bytes: int = 0


@dataclass(slots=True)
class Heard:
    """Everything that a run measures on one connection."""

    answers: dict[str, Answer] = field(default_factory=dict)
    added_latency: list[float] = field(default_factory=list)
    """Seconds from when the script said a piece of speech to its arrival here."""
    drafted: int = 0
    """Pieces of speech that were made before the answer was released; not in the above."""
    speech_started: list[tuple[float, str]] = field(default_factory=list)
    speech_stopped: list[tuple[float, str]] = field(default_factory=list)
    transcripts: dict[str, str] = field(default_factory=dict)
    transcription_ended: set[str] = field(default_factory=set)
    committed: list[tuple[float, str]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    cut: dict[str, float] = field(default_factory=dict)
    """When each item was cut that was interrupted."""
    heard_ms: dict[str, int] = field(default_factory=dict)
    """How much of it had been heard, as the server says."""
    written: dict[str, str] = field(default_factory=dict)
    """The words of items that were asked for."""
    late_audio: int = 0
    """Pieces of audio of an answer that arrived after the user's interruption of it."""
    events: int = 0


class Client(ABC):
    """Takes in everything that comes. What carries it is the subclasses' part."""

    rate: ClassVar[int]
    """Of what :meth:`send_sound` takes and :meth:`played` gives, in Hz."""

    def __init__(self, opened: float) -> None:
        self._changed = anyio.Event()
        self._types: dict[str, int] = {}
        self._decoder = msgspec.json.Decoder(Event)
        self.opened = opened
        self.created: float | None = None
        self.closed = False
        self.heard = Heard()

    # -- what carries it --------------------------------------------------------------------

    @abstractmethod
    async def send_text(self, text: str) -> None:
        """Send an event. Raises ClientError when the connection is gone."""

    @abstractmethod
    async def send_sound(self, samples: Samples) -> None:
        """Send 20 ms of the microphone."""

    @abstractmethod
    def audible(self, moment: float) -> bool:
        """Whether something will be heard at this time, as far as is known."""

    @abstractmethod
    async def quiet(self) -> None:
        """Wait until what there is has been heard."""

    @abstractmethod
    async def stopped(self, answer: Answer, noticed: float) -> float | None:
        """When an answer was last heard that was interrupted; ``None`` if it ended by itself.

        ``noticed``: when the server said that somebody speaks.
        """

    @abstractmethod
    def played(self) -> list[tuple[float, Samples]]:
        """What was heard, if that was to be kept."""

    @abstractmethod
    def gaps(self) -> list[float]:
        """Seconds of silence within an answer, each where the next piece came too late."""

    # -- what is the same -------------------------------------------------------------------

    async def send(self, event: JsonObject) -> None:
        await self.send_text(msgspec.json.encode(event).decode())

    async def until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until something is so. Raises ClientError when it is not so in time."""
        with anyio.move_on_after(seconds):
            while not condition():
                if self.closed:
                    raise ClientError(f"closed while waiting for {what}")
                await self._changed.wait()
            return
        raise ClientError(f"no {what} within {seconds:.0f} s")

    async def configure(self, session: JsonObject, seconds: float = 10.0) -> None:
        """Change the session and wait until it is changed."""
        before = self.count("session.updated")
        await self.send({"type": "session.update", "session": {"type": "realtime", **session}})
        await self.until(lambda: self.count("session.updated") > before, seconds, "session.updated")

    def count(self, event_type: str) -> int:
        """How many events of a type have come."""
        return self._types.get(event_type, 0)

    @property
    def answers(self) -> list[Answer]:
        """All answers in the order of their creation."""
        return list(self.heard.answers.values())

    def take(self, text: str | bytes, moment: float) -> Event:
        """An event has come; notes what it says."""
        event = self._decoder.decode(text)
        heard = self.heard
        heard.events += 1
        self._types[event.type] = self._types.get(event.type, 0) + 1
        match event.type:
            case "response.output_audio_transcript.delta" | "response.output_text.delta":
                answer = heard.answers[event.response_id]
                answer.transcript += event.delta
                answer.item_id = event.item_id
            case "input_audio_buffer.speech_started":
                heard.speech_started.append((moment, event.item_id))
            case "input_audio_buffer.speech_stopped":
                heard.speech_stopped.append((moment, event.item_id))
            case "input_audio_buffer.committed":
                heard.committed.append((moment, event.item_id))
            case "conversation.item.input_audio_transcription.completed":
                heard.transcripts[event.item_id] = event.transcript
                heard.transcription_ended.add(event.item_id)
            case "conversation.item.input_audio_transcription.failed":
                heard.transcription_ended.add(event.item_id)
                heard.errors.append("transcription failed")
            case "session.created":
                self.created = moment
            case "response.created" if event.response is not None:
                heard.answers[event.response.id] = Answer(event.response.id, moment)
            case "response.done" if event.response is not None:
                answer = heard.answers[event.response.id]
                answer.done, answer.status = moment, event.response.status
            case "error" if event.error is not None:
                heard.errors.append(f"{event.error.code}: {event.error.message}")
            case "conversation.item.truncated":
                heard.cut.setdefault(event.item_id, moment)
                heard.heard_ms[event.item_id] = event.audio_end_ms
            case "conversation.item.retrieved" if event.item is not None:
                words = [part.transcript or "" for part in event.item.content]
                heard.written[event.item.id or ""] = " ".join(words)
            case _:
                pass
        self.stir()
        return event

    def stir(self) -> None:
        """Something has changed for those that wait for it."""
        self._changed.set()
        self._changed = anyio.Event()

    def end(self, reason: str = "") -> None:
        """The connection is over; with a reason it is an error."""
        if reason:
            self.heard.errors.append(reason)
        self.closed = True
        self._changed.set()


def cause(group: BaseExceptionGroup) -> BaseException:
    """The one ClientError that a group is about, or else the group."""
    ours, others = group.split(ClientError)
    if ours is None or others is not None:
        return group
    error: BaseException = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
