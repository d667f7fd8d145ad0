"""The ``openai`` package's Live client, unmodified, through all that it does with a session."""

import base64
import io
import wave
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import numpy as np
import pytest
from aiortc import RTCSessionDescription
from openai import AsyncOpenAI, ConflictError, NotFoundError
from openai.types.live import ConnectServerEvent, ServerEvent
from pydantic import TypeAdapter

from load_tests.server import Server, serving
from tests.caller import calling
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.weights]

STRICT: TypeAdapter[ServerEvent] = TypeAdapter(ServerEvent)
BESIDE: TypeAdapter[ConnectServerEvent] = TypeAdapter(ConnectServerEvent)
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture(scope="module")
def recorder() -> Iterator[Server]:
    """A server whose operator wants recordings."""
    with serving(["--engine", "scripted", "--live-recording", "60"]) as running:
        yield running


@asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(api_key="any", base_url=f"{server.url}/v1") as client:
        yield client


class Talk:
    """A connection; every event is held against the types of the package."""

    def __init__(self, connection: Any, types: TypeAdapter[Any] = STRICT) -> None:
        self.connection = connection
        self.types = types
        self.seen: list[Any] = []
        self.frames: list[bytes] = []

    async def next(self) -> Any:
        with anyio.fail_after(PATIENCE_S):
            data = await self.connection.recv_bytes()
        self.types.validate_json(data)
        event = self.connection.parse_event(data)
        if event.type == "session.output_audio.delta":
            self.frames.append(base64.b64decode(event.delta))
        else:
            self.seen.append(event)
        return event

    async def until(self, kind: str, test: Callable[[Any], bool] = lambda event: True) -> Any:
        with anyio.fail_after(PATIENCE_S):
            while True:
                event = await self.next()
                if event.type == kind and test(event):
                    return event
                assert event.type != "error", event

    async def hear(self) -> None:
        """Wait for a frame that is not silent."""
        await self.until(
            "session.output_audio.delta", lambda event: any(base64.b64decode(event.delta))
        )

    async def speak(self, pcm: bytes) -> None:
        for start in range(0, len(pcm), 4800):
            audio = base64.b64encode(pcm[start : start + 4800]).decode()
            await self.connection.session.input_audio.append(audio=audio)

    async def start(self, **session: Any) -> Any:
        await self.connection.session.start(session={"model": "gpt-live-1", **session})
        return await self.until("session.started")

    def text(self, kind: str) -> str:
        return "".join(event.delta for event in self.seen if event.type == kind)


async def test_somebody_talks_and_is_answered(server: Server, question: bytes) -> None:
    async with client_of(server) as client, client.live.connect() as connection:
        talk = Talk(connection)
        started = await talk.start(instructions="Be brief.", audio={"output": {"voice": "marin"}})
        assert started.session.id.startswith("live_")
        assert started.session.audio.output.voice == "marin"
        await talk.speak(question)
        heard = await talk.until("session.input_transcript.delta")
        assert heard.delta.startswith("utterance of")
        await talk.hear()
        said = await talk.until("session.output_transcript.delta")
        assert 0 < said.start_ms < said.end_ms
        await connection.session.close(event_id="bye")
        closed = await talk.until("session.closed")
        assert (closed.reason, closed.client_event_id) == ("close_requested", "bye")
        assert closed.usage.seconds >= 1
        with pytest.raises(Exception, match="1000"):
            await talk.next()


async def test_silence_is_zeros_and_goes_on(server: Server) -> None:
    async with client_of(server) as client, client.live.connect() as connection:
        talk = Talk(connection)
        await talk.start()
        for _ in range(25):
            await talk.next()
        assert all(frame == bytes(1920) for frame in talk.frames)
        assert len(talk.frames) == 25


async def test_the_model_speaks_first_when_it_is_told_to(server: Server) -> None:
    async with client_of(server) as client, client.live.connect() as connection:
        talk = Talk(connection)
        await talk.start(input=[{"role": "user", "content": [{"text": "Hi"}]}])
        session = connection.session
        await session.instructions.append(content="Be kind.", delegation_id=None, event_id="a")
        told = await talk.until("session.instructions.appended")
        assert told.client_event_id == "a"
        assert told.start_ms <= told.end_ms
        await session.thinking.append(content="It is late.", delegation_id=None)
        await talk.until("session.thinking.appended")
        await session.commentary.append(content="Say hello.", delegation_id=None)
        await talk.until("session.commentary.appended")
        await talk.hear()


async def test_a_fixture_is_played_to_the_user(server: Server) -> None:
    tone = (np.sin(np.arange(12_000) / 10) * 9000).astype("<i2").tobytes()
    async with client_of(server) as client, client.live.connect() as connection:
        talk = Talk(connection)
        await talk.start()
        await connection.session.output_audio.fixture.play(
            audio=base64.b64encode(tone).decode(), event_id="f"
        )
        playing = await talk.until("session.output_audio.fixture.playing")
        talk.frames.clear()
        played = await talk.until("session.output_audio.fixture.played")
        assert playing.client_event_id == played.client_event_id == "f"
        assert b"".join(talk.frames).strip(b"\0") == tone.strip(b"\0")


async def test_muting_and_updating_are_answered(server: Server) -> None:
    async with client_of(server) as client, client.live.connect() as connection:
        talk = Talk(connection)
        backend = {"model": "gpt-5.6-luna", "tools": [WEATHER]}
        await talk.start(delegation={"type": "responses", "responses": backend})
        await connection.session.input_audio.mute()
        await talk.until("session.input_audio.muted")
        await connection.session.input_audio.unmute()
        await talk.until("session.input_audio.unmuted")
        change: Any = {"type": "responses", "responses": {"instructions": "Be exact."}}
        await connection.session.update(session={"delegation": change})
        updated = await talk.until("session.updated")
        shown = updated.session.delegation.responses
        assert (shown.model, shown.instructions) == ("gpt-5.6-luna", "Be exact.")


async def test_a_backend_calls_the_tools_of_its_client(server: Server) -> None:
    async with client_of(server) as client, client.live.connect() as connection:
        talk = Talk(connection)
        backend = {"model": "gpt-5.6-luna", "tools": [WEATHER]}
        await talk.start(delegation={"type": "responses", "responses": backend})
        await connection.response.item.create(
            item={"role": "user", "content": "Use get_weather for Rome."}
        )
        await connection.response.create()
        event = await talk.until(
            "response.event", lambda e: e.event["type"] == "response.output_item.done"
        )
        call = event.event["item"]
        assert (call["type"], call["name"], call["status"]) == (
            "function_call",
            "get_weather",
            "completed",
        )
        done = await talk.until("response.event", lambda e: e.event["type"] == "response.completed")
        assert done.event["response"]["usage"]["total_tokens"] > 0
        await connection.response.item.create(
            item={
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": "It rains in Rome.",
            }
        )
        await connection.response.create()
        await talk.until("response.event", lambda e: e.event["type"] == "response.created")
        await talk.hear()
        await talk.until("response.event", lambda e: e.event["type"] == "response.completed")
        await talk.until("session.output_transcript.delta", lambda e: "Rome" in e.delta)
        assert talk.text("session.output_transcript.delta") == "It rains in Rome."


async def test_decision_items_are_kept(server: Server) -> None:
    async with client_of(server) as client, client.live.connect() as connection:
        talk = Talk(connection)
        await talk.start()
        item: Any = {"role": "user", "content": "I am in a hurry."}
        await connection.decision.item.create(item=item)
        created = await talk.until("decision.item.created")
        await connection.decision.item.delete(item_id=created.item.id)
        assert (await talk.until("decision.item.deleted")).item_id == created.item.id


async def test_a_question_is_decided(server: Server) -> None:
    question: Any = {"type": "predicate", "instructions": "Is it urgent?", "name": "urgent"}
    async with client_of(server) as client, client.live.connect() as connection:
        talk = Talk(connection)
        backend: Any = {"model": "any", "questions": [question]}
        await talk.start(delegation={"type": "decisions", "decisions": backend})
        await connection.decision.create(event_id="d")
        made = await talk.until("decision.event")
        [answer] = made.event.decision.answers
        assert (answer.type, answer.name) == ("refusal", "urgent")  # it says something else


async def test_what_is_unknown_is_told_by_its_name(server: Server) -> None:
    async with client_of(server) as client, client.live.connect() as connection:
        talk = Talk(connection)
        await connection.session.start(session={"model": "m", "speed": 2})  # type: ignore[typeddict-unknown-key]
        error = (await talk.next()).error
        assert (error.code, error.param) == ("unknown_parameter", "session.speed")
        await talk.start()
        await connection.send({"type": "session.dance", "event_id": "x"})  # type: ignore[arg-type]
        while (event := await talk.next()).type != "error":
            pass
        assert event.error.client_event_id == "x"
        assert "session.input_audio.mute" in event.error.message


async def test_a_session_is_watched_and_steered_from_beside(
    server: Server, question: bytes
) -> None:
    async with client_of(server) as client, client.live.connect() as connection:
        talk = Talk(connection)
        session_id = (await talk.start()).session.id
        async with client.live.sideband.connect(
            session_id=session_id, graceful_close=True
        ) as attached:
            beside = Talk(attached, BESIDE)
            assert (await beside.until("session.started")).session.id == session_id
            await talk.speak(question)
            await beside.until("session.input_audio.append")
            frame = await beside.until("session.output_audio.delta")
            assert frame.end_ms - frame.start_ms == 40
            await beside.until("session.input_transcript.delta")
            await attached.session.input_audio.mute()
            await beside.until("session.input_audio.muted")
            await talk.until("session.input_audio.muted")
            await attached.session.close()
            await beside.until("session.closed")
            await talk.until("session.closed")


async def test_a_session_is_forked_with_what_was_said(server: Server, question: bytes) -> None:
    async with client_of(server) as client, client.live.connect() as connection:
        talk = Talk(connection)
        session_id = (await talk.start(instructions="Be brief.", store=True)).session.id
        await talk.speak(question)
        await talk.hear()
        async with client.live.forks.connect(session_id=session_id) as forked:
            other = Talk(forked)
            await forked.session.start(session={})
            started = (await other.until("session.started")).session
            assert started.id != session_id
            assert started.instructions == "Be brief."
            await forked.session.close()
            await other.until("session.closed")
        await connection.session.close()
        await talk.until("session.closed")
        async with client.live.forks.connect(session_id=session_id) as forked:
            other = Talk(forked)
            await forked.session.start(session={})
            await other.until("session.started")


async def test_a_stored_session_is_heard_again(recorder: Server, question: bytes) -> None:
    async with client_of(recorder) as client, client.live.connect() as connection:
        talk = Talk(connection)
        session_id = (await talk.start(store=True)).session.id
        await talk.speak(question)
        await talk.hear()
        await connection.session.close()
        await talk.until("session.closed")
        recording = await client.live.sessions.download_recording(session_id)
        with wave.open(io.BytesIO(recording.read())) as file:
            assert (file.getnchannels(), file.getframerate()) == (2, 24_000)
            sound = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, 2)
        assert np.abs(sound).max(axis=0).min() > 500


async def test_a_call_is_made_watched_and_hung_up(server: Server) -> None:
    async with client_of(server) as client, calling() as caller:
        made = await client.live.create(
            session={"model": "gpt-live-1", "store": True},
            transport={"type": "webrtc", "sdp": await caller.offer()},
        )
        assert made.session.id.startswith("live_")
        await caller.connection.setRemoteDescription(
            RTCSessionDescription(made.transport.sdp, "answer")
        )
        started = await caller.event("session.started")
        assert started["session"]["id"] == made.session.id
        async with client.live.sideband.connect(session_id=made.session.id) as attached:
            beside = Talk(attached, BESIDE)
            await beside.until("session.started")
            await beside.until("session.input_audio.append")
            await attached.session.commentary.append(content="Say hello.", delegation_id=None)
            await caller.until(caller.heard)
            with pytest.raises(ConflictError):
                await client.live.sessions.refer(made.session.id, target_uri="tel:+1")
            await client.live.sessions.hangup(made.session.id)
            assert (await beside.until("session.closed")).reason == "close_requested"
        await caller.until(lambda: caller.gone)
        with pytest.raises(NotFoundError):
            await client.live.sessions.hangup(made.session.id)
        async with calling() as again:
            forked = await client.live.sessions.fork(
                made.session.id, transport={"type": "webrtc", "sdp": await again.offer()}
            )
            await again.connection.setRemoteDescription(
                RTCSessionDescription(forked.transport.sdp, "answer")
            )
            await again.event("session.started")
