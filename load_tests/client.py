"""One client of the Realtime protocol over a WebSocket, and what it hears and when."""

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import msgspec
import websockets
from websockets.asyncio.client import ClientConnection, connect

from duologue.engines.stamps import find_stamps
from load_tests.clock import nanoseconds, now
from load_tests.ear import Ear

JsonObject = dict[str, object]


class ClientError(Exception):
    """The server said something that it should not have, or nothing where it should."""


class _Error(msgspec.Struct):
    message: str = ""
    code: str | None = None
    event_id: str | None = None


class _Item(msgspec.Struct):
    id: str | None = None
    type: str = ""
    role: str | None = None


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
    """When each interrupted item fell silent."""
    late_audio: int = 0
    """Pieces of audio of an answer that arrived after the user's interruption of it."""
    events: int = 0


class Client:
    """Reads everything that comes and plays it; interrupts itself as clients do."""

    def __init__(self, socket: ClientConnection, opened: float, *, keep: bool = False) -> None:
        self._socket = socket
        self._changed = anyio.Event()
        self._types: dict[str, int] = {}
        self.opened = opened
        self.created: float | None = None
        self.closed = False
        self.ear = Ear(keep=keep)
        self.heard = Heard()

    async def send(self, event: JsonObject) -> None:
        await self.send_text(msgspec.json.encode(event).decode())

    async def send_text(self, text: str) -> None:
        """Send an event. Raises ClientError when the connection is gone."""
        try:
            await self._socket.send(text)
        except websockets.ConnectionClosed as error:
            raise ClientError(f"closed by the server: {error}") from None

    async def read(self) -> None:
        """Take everything in until the connection is closed."""
        decoder = msgspec.json.Decoder(_Event)
        try:
            async for data in self._socket:
                moment = now()
                await self._take(decoder.decode(data), moment)
                self._changed.set()
                self._changed = anyio.Event()
        except websockets.ConnectionClosedError as error:
            self.heard.errors.append(f"closed by the server: {error}")
        self.closed = True
        self._changed.set()

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

    async def _take(self, event: _Event, moment: float) -> None:
        heard = self.heard
        heard.events += 1
        self._types[event.type] = self._types.get(event.type, 0) + 1
        match event.type:
            case "response.output_audio.delta":
                self._listen(event, moment)
            case "response.output_audio.done":
                self.ear.complete(event.item_id)
            case "response.output_audio_transcript.delta" | "response.output_text.delta":
                heard.answers[event.response_id].transcript += event.delta
            case "input_audio_buffer.speech_started":
                heard.speech_started.append((moment, event.item_id))
                await self._be_interrupted(moment)
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
            case _:
                pass

    def _listen(self, event: _Event, moment: float) -> None:
        pcm = base64.b64decode(event.delta)
        answer = self.heard.answers[event.response_id]
        answer.audio_bytes += len(pcm)
        if event.item_id in self.heard.cut:
            self.heard.late_audio += 1
            return
        if answer.first_audio is None:
            answer.first_audio, answer.item_id = moment, event.item_id
        self.ear.receive(event.item_id, pcm, moment)
        for _, stamp in find_stamps(pcm):
            due = nanoseconds(stamp.due_ns)
            if due < answer.created:
                self.heard.drafted += 1
            else:
                self.heard.added_latency.append(moment - due)

    async def _be_interrupted(self, moment: float) -> None:
        cut = self.ear.flush(moment)
        if cut is None:
            return
        item_id, heard_ms = cut
        self.heard.cut[item_id] = moment
        await self.send(
            {
                "type": "conversation.item.truncate",
                "item_id": item_id,
                "content_index": 0,
                "audio_end_ms": heard_ms,
            }
        )


@asynccontextmanager
async def open_client(
    url: str, *, key: str = "", model: str = "", keep: bool = False, seconds: float = 10.0
) -> AsyncIterator[Client]:
    """A connected client whose session has been created.

    ``url``: the server's, as ``http://127.0.0.1:8765``. Raises ClientError when there is no
    session within ``seconds``.
    """
    address = f"{url.replace('http', 'ws', 1).rstrip('/')}/v1/realtime?model={model or 'any'}"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    opened = now()
    try:
        socket = await connect(
            address,
            additional_headers=headers,
            compression=None,
            max_size=None,
            max_queue=256,
            open_timeout=seconds,
            close_timeout=2.0,
            ping_interval=None,
            proxy=None,
        )
    except (OSError, TimeoutError, websockets.WebSocketException) as error:
        raise ClientError(f"can't connect: {error}") from None
    try:
        async with anyio.create_task_group() as tasks:
            client = Client(socket, opened, keep=keep)
            tasks.start_soon(client.read)
            await client.until(lambda: client.created is not None, seconds, "session.created")
            yield client
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        raise _cause(group) from None
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(2.0):
            await socket.close()


def _cause(group: BaseExceptionGroup) -> BaseException:
    """The one ClientError that a group is about, or else the group."""
    ours, others = group.split(ClientError)
    if ours is None or others is not None:
        return group
    error: BaseException = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
