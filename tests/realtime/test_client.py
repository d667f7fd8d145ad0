"""The client holds a conversation, over each transport."""

import json
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from duologue.codecs.wav import read_wav
from duologue.realtime.client import (
    AssistantText,
    ConnectError,
    Conversation,
    ConversationEvent,
    ErrorReceived,
    FileSource,
    Interrupted,
    ResponseDone,
    SessionCreated,
    SoundError,
    SpeechStarted,
    Tool,
    ToolCalled,
    connect,
    file_sink,
)
from duologue.realtime.client_link import ConnectError as LinkError, address
from load_tests.server import serving
from tests.conftest import ScriptedServer
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.weights]

QUESTION = Path(__file__).parent.parent / "data" / "question.wav"
TRANSPORTS = ["websocket", "webrtc"]


async def until(conversation: Conversation, kind: type[Any]) -> list[ConversationEvent]:
    """Events up to the first of a kind; that one is the last."""
    seen: list[ConversationEvent] = []
    with anyio.fail_after(PATIENCE_S):
        async for event in conversation:
            seen.append(event)
            if isinstance(event, kind):
                return seen
    raise AssertionError(f"it ended: {conversation.ended}; {seen}")


def texts(events: list[ConversationEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, AssistantText) and event.final]


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_recording_is_answered_and_the_answer_is_heard(
    transport: Any, scripted_server: ScriptedServer, tmp_path: Path
) -> None:
    path = tmp_path / "heard.wav"
    async with file_sink(path) as sink:
        async with connect(scripted_server.url, transport=transport, sink=sink) as conversation:
            assert conversation.transport == transport
            assert isinstance((await until(conversation, SessionCreated))[-1], SessionCreated)
            conversation.speak(await FileSource.open(QUESTION, 30.0))
            events = await until(conversation, ResponseDone)
            done = events[-1]
            assert isinstance(done, ResponseDone)
            assert done.status == "completed"
            assert any(isinstance(event, SpeechStarted) for event in events)
            assert texts(events) == ["Hello, I am a script. What can I do for you?"]
            await anyio.sleep_until(anyio.current_time() + 1)  # it is being heard
    loud = np.abs(read_wav(path.read_bytes()).mono().samples.astype(np.int32)) > 500
    assert loud.sum() > 12_000


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_an_interruption_cuts_what_is_being_said(
    transport: Any, scripted_server: ScriptedServer
) -> None:
    async with connect(scripted_server.url, transport=transport) as conversation:
        await conversation.say("a long story, please")
        await until(conversation, AssistantText)
        await conversation.interrupt()
        events = await until(conversation, Interrupted)
        cut = events[-1]
        assert isinstance(cut, Interrupted)
        assert cut.audio_end_ms < 20_000
        # It is not over: the next question is answered.
        await conversation.say("and now?")
        said: list[str] = []
        while not said:
            said = texts(await until(conversation, ResponseDone))


async def test_tools_are_called_and_the_answer_goes_on(scripted_server: ScriptedServer) -> None:
    asked: list[str] = []

    async def weather(city: str) -> str:
        asked.append(city)
        return f"It rains in {city}."

    tool = Tool("weather", "The weather.", {"type": "object"}, weather)
    async with connect(scripted_server.url, transport="websocket", tools=[tool]) as conversation:
        await conversation.say('Please use weather {"city": "Oslo"}')
        called = (await until(conversation, ToolCalled))[-1]
        assert isinstance(called, ToolCalled)
        assert json.loads(called.arguments) == {"city": "Oslo"}
        await until(conversation, ResponseDone)
        assert texts(await until(conversation, ResponseDone)) == ["It rains in Oslo."]
    assert asked == ["Oslo"]


async def test_a_tool_that_breaks_tells_the_model_so(scripted_server: ScriptedServer) -> None:
    def broken() -> None:
        raise RuntimeError("never mind")

    tool = Tool("broken", "It breaks.", {"type": "object"}, broken)
    async with connect(scripted_server.url, transport="websocket", tools=[tool]) as conversation:
        await conversation.say("Please use broken {}")
        await until(conversation, ResponseDone)
        [said] = texts(await until(conversation, ResponseDone))
        assert "RuntimeError: never mind" in said


async def test_a_mistake_is_told_and_the_conversation_goes_on(
    scripted_server: ScriptedServer,
) -> None:
    async with connect(scripted_server.url, transport="websocket") as conversation:
        await conversation.send({"type": "no.such.event"})
        events = await until(conversation, ErrorReceived)
        assert isinstance(events[-1], ErrorReceived)
        await conversation.say("hello")
        assert texts(await until(conversation, ResponseDone))


@pytest.mark.parametrize("transport", [*TRANSPORTS, "auto"])
async def test_nobody_is_there(transport: Any) -> None:
    with pytest.raises(ConnectError, match="127.0.0.1:9"):
        async with connect("127.0.0.1:9", transport=transport):
            pass


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_wrong_key_is_refused_with_the_servers_words(transport: Any) -> None:
    with serving(["--engine", "scripted", "--api-keys", "the-right-key"]) as server:
        with pytest.raises(ConnectError, match="refused"):
            async with connect(server.url, transport=transport, key="the-wrong-key"):
                pass
        async with connect(server.url, transport=transport, key="the-right-key") as conversation:
            await until(conversation, SessionCreated)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("localhost:8765", "http://localhost:8765"),
        ("ws://host:1/v1/realtime", "http://host:1"),
        ("https://host/v1", "https://host"),
    ],
)
def test_an_address_may_be_given_in_many_ways(given: str, expected: str) -> None:
    assert address(given) == expected


@pytest.mark.parametrize("url", ["ftp://host", "http://", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(LinkError, match="no address"):
        address(url)


async def test_a_file_is_written_while_nobody_waits_for_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "heard.wav"
    async with file_sink(path) as sink:
        for value in range(5):
            sink.write(bytes([value, 0]) * 480)
        sink.flush()
    samples = read_wav(path.read_bytes()).mono().samples
    assert samples[::480].tolist() == [0, 1, 2, 3, 4]
    assert len(samples) == 5 * 480


async def test_a_file_that_is_not_there_or_no_wav_is_told(tmp_path: Path) -> None:
    with pytest.raises(SoundError, match="No such file"):
        await FileSource.open(tmp_path / "none.wav")
    path = tmp_path / "text.wav"
    path.write_text("not a wav")
    with pytest.raises(SoundError, match="text.wav"):
        await FileSource.open(path)


async def test_a_file_is_spoken_at_the_pace_of_the_clock(tmp_path: Path) -> None:
    source = await FileSource.open(QUESTION, patience_s=0.1)
    began = anyio.current_time()
    pieces = [piece async for piece in source.pieces()]
    assert {len(piece) for piece in pieces} == {960}
    assert len(pieces) * 0.02 >= source.seconds + 0.1
    assert anyio.current_time() - began >= source.seconds
