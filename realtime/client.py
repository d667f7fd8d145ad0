"""A client of this server, or of any that speaks OpenAI's Realtime protocol.

::

    async with connect("http://127.0.0.1:8765", instructions="Be brief.") as conversation:
        conversation.speak(await FileSource.open(Path("question.wav")))
        async for event in conversation:
            match event:
                case AssistantText(text=text, final=True):
                    print(text)
                case ResponseDone():
                    break

Sound goes in from a :class:`~duologue.realtime.client_sound.Source` and out to a
:class:`~duologue.realtime.client_sound.Sink`: files, the machine's own devices, or your own. Over a
WebSocket the client plays out and tells the server what was heard when it is interrupted; over
WebRTC the server does.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import anyio
import anyio.abc
import msgspec

from duologue.realtime.client_call import open_call_link
from duologue.realtime.client_events import (
    AssistantText,
    ConversationEvent,
    ErrorReceived,
    Event,
    Interrupted,
    OtherEvent,
    ResponseCreated,
    ResponseDone,
    SessionCreated,
    SpeechStarted,
    SpeechStopped,
    ToolCalled,
    UserTranscript,
    read_event,
)
from duologue.realtime.client_link import (
    CONNECT_S,
    ConnectError,
    Disconnected,
    Link,
    open_socket_link,
    plain_group,
)
from duologue.realtime.client_sound import (
    FileSource,
    Nowhere,
    Sink,
    SoundError,
    Source,
    file_sink,
)

__all__ = [
    "AssistantText",
    "ConnectError",
    "Conversation",
    "ConversationEvent",
    "Disconnected",
    "ErrorReceived",
    "FileSource",
    "Interrupted",
    "Nowhere",
    "OtherEvent",
    "ResponseCreated",
    "ResponseDone",
    "SessionCreated",
    "Sink",
    "SoundError",
    "Source",
    "SpeechStarted",
    "SpeechStopped",
    "Tool",
    "ToolCalled",
    "Transport",
    "UserTranscript",
    "connect",
    "file_sink",
]

Transport = Literal["auto", "webrtc", "websocket"]
"""``auto``: WebRTC, or a WebSocket where there is no way for it."""

EVENTS: Final = 256
"""Events that wait to be taken; then the client reads no more until some are."""

TOOLS_AT_ONCE: Final = 8


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call.

    ``parameters``: a JSON Schema. ``call`` gets the arguments by name, and may be a coroutine
    function; what it returns goes to the model: text as it is, anything else as JSON. When it
    raises, the model is told so.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    call: Callable[..., Any]


class Conversation:
    """What :func:`connect` gives. Iterate over it for events; it ends when the connection does.

    Methods that send raise Disconnected when it is over.
    """

    def __init__(self, link: Link, group: anyio.abc.TaskGroup, tools: Sequence[Tool]) -> None:
        self._link = link
        self._group = group
        self._tools = {tool.name: tool for tool in tools}
        self._give, self._events = anyio.create_memory_object_stream[ConversationEvent](EVENTS)
        self._limit = anyio.Semaphore(TOOLS_AT_ONCE)
        self._calling = 0
        self._response = ""
        self._answer_later = False
        self.ended = ""
        """Why it is over, once it is."""

    @property
    def transport(self) -> str:
        """``webrtc`` or ``websocket``."""
        return self._link.transport

    def __aiter__(self) -> "Conversation":
        return self

    async def __anext__(self) -> ConversationEvent:
        try:
            return await self._events.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def send(self, event: Event) -> None:
        """Any event of the protocol."""
        await self._link.send(event)

    async def update(self, **session: Any) -> None:
        """``session.update`` with these fields."""
        await self.send({"type": "session.update", "session": {"type": "realtime", **session}})

    async def say(self, text: str) -> None:
        """A message of the user's in text, to be answered."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        await self.send({"type": "conversation.item.create", "item": item})
        await self.respond()

    async def respond(self, **response: Any) -> None:
        """Ask for an answer now."""
        await self.send({"type": "response.create", **({"response": response} if response else {})})

    async def hear(self, pcm: bytes) -> None:
        """20 ms of what the user says: 24 kHz, mono, signed 16-bit little-endian."""
        await self._link.hear(pcm)

    def speak(self, source: Source) -> anyio.Event:
        """Let the server hear a source, beside everything else. The event is set at its end."""
        done = anyio.Event()
        self._group.start_soon(self._speak, source, done)
        return done

    async def interrupt(self) -> None:
        """Stop the answer that is being given."""
        if self._response:
            await self.send({"type": "response.cancel"})
        await self._link.cut()

    def close(self) -> None:
        """Nobody takes events any more."""
        self._give.close()
        self._events.close()

    # -- within -----------------------------------------------------------------------------

    async def _speak(self, source: Source, done: anyio.Event) -> None:
        try:
            async for piece in source.pieces():
                await self._link.hear(piece)
        except Disconnected:
            pass  # whoever reads the events is told
        finally:
            done.set()

    async def read(self) -> None:
        """Take in what the server sends until the connection is over."""
        try:
            event = await self._first()
            while True:
                await self._note(event)
                await self._give.send(event)
                event = read_event(await self._link.receive())
        except Disconnected as error:
            self.ended = str(error)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            self._give.close()

    async def _first(self) -> ConversationEvent:
        """A server speaks first. Raises Disconnected, also where it does not in time."""
        try:
            with anyio.fail_after(CONNECT_S):
                return read_event(await self._link.receive())
        except TimeoutError:
            raise Disconnected(f"the server said nothing within {CONNECT_S:g} s") from None

    async def _note(self, event: ConversationEvent) -> None:
        match event:
            case ResponseCreated(response_id=response_id):
                self._response = response_id
            case ResponseDone(response_id=response_id) if response_id == self._response:
                self._response = ""
                await self._answer()
            case ToolCalled(name=name) if name in self._tools:
                self._calling += 1
                self._group.start_soon(self._call, self._tools[name], event)
            case _:
                pass

    async def _call(self, tool: Tool, called: ToolCalled) -> None:
        async with self._limit:
            output = await _output(tool, called.arguments)
        self._calling -= 1
        self._answer_later = True
        item = {"type": "function_call_output", "call_id": called.call_id, "output": output}
        try:
            await self.send({"type": "conversation.item.create", "item": item})
            await self._answer()
        except Disconnected:
            pass  # as above

    async def _answer(self) -> None:
        """Go on after tools, once all of them are done and the response that called them is."""
        if self._answer_later and not self._calling and not self._response:
            self._answer_later = False
            await self.respond()


async def _output(tool: Tool, arguments: str) -> str:
    """What a tool says to a call."""
    try:
        result = tool.call(**msgspec.json.decode(arguments or "{}", type=dict[str, Any]))
        if inspect.isawaitable(result):
            result = await _awaited(result)
        return result if isinstance(result, str) else msgspec.json.encode(result).decode()
    except Exception as error:
        return msgspec.json.encode({"error": f"{type(error).__name__}: {error}"}).decode()


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result


@asynccontextmanager
async def connect(
    url: str = "http://127.0.0.1:8765",
    *,
    transport: Transport = "auto",
    key: str = "",
    model: str = "",
    instructions: str | None = None,
    voice: str | None = None,
    tools: Sequence[Tool] = (),
    session: Mapping[str, Any] | None = None,
    sink: Sink | None = None,
    ice_servers: Sequence[str] = (),
) -> AsyncIterator[Conversation]:
    """A conversation with a server, which ends when the block does.

    ``url``: the server's address. ``key``: what it asks for. ``session``: further fields of
    ``session.update``. ``sink``: where the assistant's speech goes; ``None``: nowhere.
    ``ice_servers``: ``stun:`` and ``turn:`` addresses. Raises ConnectError.
    """
    fields = _session(instructions, voice, tools, session or {})
    async with AsyncExitStack() as stack:
        link = await _open(stack, url, transport, sink or Nowhere(), key, model, ice_servers)
        async with plain_group() as group:
            conversation = Conversation(link, group, tools)
            try:
                if fields:
                    await conversation.update(**fields)
                group.start_soon(conversation.read)
                yield conversation
                group.cancel_scope.cancel()
            finally:
                conversation.close()


async def _open(
    stack: AsyncExitStack,
    url: str,
    transport: Transport,
    sink: Sink,
    key: str,
    model: str,
    ice_servers: Sequence[str],
) -> Link:
    if transport != "websocket":
        call = open_call_link(url, sink, key=key, model=model, ice_servers=tuple(ice_servers))
        try:
            return await stack.enter_async_context(call)
        except ConnectError:
            if transport == "webrtc":
                raise
    return await stack.enter_async_context(open_socket_link(url, sink, key=key, model=model))


def _session(
    instructions: str | None,
    voice: str | None,
    tools: Sequence[Tool],
    further: Mapping[str, Any],
) -> dict[str, Any]:
    fields = dict(further)
    if instructions is not None:
        fields["instructions"] = instructions
    if voice is not None:
        audio = dict(fields.get("audio") or {})
        fields["audio"] = audio | {"output": dict(audio.get("output") or {}) | {"voice": voice}}
    if tools:
        fields["tools"] = [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": dict(tool.parameters),
            }
            for tool in tools
        ]
    return fields
