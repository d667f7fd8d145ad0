"""The ``openai`` package's own client, unmodified, through all that it does with a session."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from openai.types.realtime import RealtimeServerEvent
from openai.types.websocket_reconnection import ReconnectingEvent
from pydantic import TypeAdapter

from load_tests.server import Server
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.weights]

STRICT: TypeAdapter[RealtimeServerEvent] = TypeAdapter(RealtimeServerEvent)
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}


class Session:
    """The client's connection; every event is parsed by the client and held against its types."""

    def __init__(self, connection: AsyncRealtimeConnection) -> None:
        self.connection = connection
        self.types: list[str] = []

    async def until(self, kind: str) -> Any:
        with anyio.fail_after(PATIENCE_S):
            while True:
                data = await self.connection.recv_bytes()
                STRICT.validate_json(data)
                event = self.connection.parse_event(data)
                self.types.append(event.type)
                if event.type == kind:
                    return event
                assert event.type != "error", event

    async def speak(self, pcm: bytes) -> None:
        for start in range(0, len(pcm), 9600):
            audio = base64.b64encode(pcm[start : start + 9600]).decode()
            await self.connection.input_audio_buffer.append(audio=audio)

    async def listen(self, turn_detection: Any) -> Any:
        await self.connection.session.update(
            session={
                "type": "realtime",
                "audio": {
                    "input": {
                        "turn_detection": turn_detection,
                        "transcription": {"model": "gpt-4o-mini-transcribe"},
                    }
                },
            }
        )
        return (await self.until("session.updated")).session

    async def say(self, text: str, **fields: Any) -> Any:
        await self.connection.conversation.item.create(
            item={
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": text}],
            },
            **fields,
        )
        return await self.until("conversation.item.done")

    async def prompt(self) -> list[tuple[str, str]]:
        """The role and the text of each message that the engine is asked with."""
        await self.connection.response.create(
            response={
                "conversation": "none",
                "output_modalities": ["text"],
                "instructions": "repeat the prompt as json",
            }
        )
        text = (await self.until("response.output_text.done")).text
        await self.until("response.done")
        return [
            (message["role"], "".join(part.get("text", "") for part in message["parts"]))
            for message in json.loads(text)["messages"]
        ]


@asynccontextmanager
async def open_session(server: Server, **options: Any) -> AsyncIterator[Session]:
    client = AsyncOpenAI(api_key="any", base_url=f"{server.url}/v1")
    async with client, client.realtime.connect(model="gpt-realtime", **options) as connection:
        session = Session(connection)
        created = await session.until("session.created")
        assert created.session.type == "realtime"
        yield session


async def test_a_spoken_turn_is_answered_in_the_order_that_clients_rely_on(
    server: Server, question: bytes
) -> None:
    async with open_session(server) as session:
        await session.listen({"type": "server_vad"})
        session.types.clear()
        await session.speak(question)
        started = await session.until("input_audio_buffer.speech_started")
        await session.until("input_audio_buffer.speech_stopped")
        committed = await session.until("input_audio_buffer.committed")
        added = await session.until("conversation.item.added")
        assert started.item_id == committed.item_id == added.item.id
        await session.until("response.created")
        assistant = await session.until("conversation.item.added")
        part = await session.until("response.content_part.added")
        assert part.part.type == "audio"
        delta = await session.until("response.output_audio.delta")
        assert delta.item_id == assistant.item.id
        assert len(base64.b64decode(delta.delta)) % 2 == 0
        done = await session.until("response.done")
        assert done.response.status == "completed"
        assert done.response.usage.total_tokens > 0
        assert "conversation.item.input_audio_transcription.completed" in session.types
        tail = [kind for kind in session.types if kind.endswith(".done")][-6:]
        assert tail == [
            "response.output_audio.done",
            "response.output_audio_transcript.done",
            "response.content_part.done",
            "response.output_item.done",
            "conversation.item.done",
            "response.done",
        ]


async def test_history_is_seeded_where_it_is_asked_for(server: Server) -> None:
    async with open_session(server) as session:
        last = await session.say("The last one.")
        await session.say("The first one.", previous_item_id="root")
        await session.connection.conversation.item.create(
            item={
                "type": "message",
                "role": "assistant",
                "id": "middle",
                "content": [{"type": "output_text", "text": "The middle one."}],
            },
            previous_item_id=None,
        )
        added = await session.until("conversation.item.added")
        assert (added.item.id, added.previous_item_id) == ("middle", last.item.id)
        await session.connection.conversation.item.retrieve(item_id="middle")
        retrieved = await session.until("conversation.item.retrieved")
        assert retrieved.item.content[0].text == "The middle one."
        typed = ("user", "The first one. The last one.")
        assert await session.prompt() == [typed, ("assistant", "The middle one.")]
        await session.connection.conversation.item.delete(item_id="middle")
        assert (await session.until("conversation.item.deleted")).item_id == "middle"
        assert await session.prompt() == [typed]


async def test_a_typed_turn_is_answered_in_text(server: Server) -> None:
    async with open_session(server) as session:
        await session.say("Hello.")
        await session.connection.response.create(response={"output_modalities": ["text"]})
        text = await session.until("response.output_text.done")
        done = await session.until("response.done")
        assert text.text
        assert done.response.output[0].content[0].text == text.text


async def test_a_tool_is_called_and_its_output_is_said(server: Server) -> None:
    async with open_session(server) as session:
        await session.connection.session.update(
            session={"type": "realtime", "tools": [WEATHER], "tool_choice": "auto"}
        )
        await session.until("session.updated")
        await session.say('Please use get_weather {"city": "Oslo"}')
        await session.connection.response.create()
        added = await session.until("response.output_item.added")
        assert (added.item.type, added.item.status) == ("function_call", "in_progress")
        arguments = await session.until("response.function_call_arguments.done")
        assert (arguments.name, json.loads(arguments.arguments)) == (
            "get_weather",
            {"city": "Oslo"},
        )
        item = (await session.until("response.output_item.done")).item
        assert (item.status, item.call_id) == ("completed", arguments.call_id)
        await session.until("response.done")
        await session.connection.conversation.item.create(
            item={
                "type": "function_call_output",
                "call_id": arguments.call_id,
                "output": "It rains in Oslo.",
            }
        )
        await session.connection.response.create()
        said = await session.until("response.output_audio_transcript.done")
        assert said.transcript == "It rains in Oslo."
        assert (await session.until("response.done")).response.status == "completed"


async def test_speaking_interrupts_an_answer_which_is_cut_to_what_was_heard(
    server: Server, question: bytes
) -> None:
    async with open_session(server) as session:
        await session.listen({"type": "server_vad", "interrupt_response": True})
        await session.say("Give me a long answer.")
        await session.connection.response.create()
        sent = 0
        while sent < 1700 * 48:
            delta = await session.until("response.output_audio.delta")
            sent += len(base64.b64decode(delta.delta))
        await session.speak(question)
        await session.until("input_audio_buffer.speech_started")
        done = await session.until("response.done")
        assert done.response.status == "cancelled"
        assert done.response.status_details.reason == "turn_detected"
        assert done.response.output[0].status == "incomplete"
        await session.connection.conversation.item.truncate(
            item_id=delta.item_id, content_index=0, audio_end_ms=1600
        )
        truncated = await session.until("conversation.item.truncated")
        assert truncated.audio_end_ms == 1600
        assert (await session.until("response.done")).response.status == "completed"
        assert (await session.prompt())[1] == ("assistant", "Here is the first sentence.")


async def test_a_buffer_that_is_committed_by_hand_is_answered_when_asked(
    server: Server, question: bytes
) -> None:
    async with open_session(server) as session:
        configured = await session.listen(None)
        assert configured.audio.input.turn_detection is None
        await session.speak(question)
        await session.connection.input_audio_buffer.commit()
        await session.until("input_audio_buffer.committed")
        await session.until("conversation.item.input_audio_transcription.completed")
        await session.connection.response.create()
        assert (await session.until("response.done")).response.status == "completed"
        assert "input_audio_buffer.speech_started" not in session.types


async def test_an_error_names_the_event_that_caused_it_and_the_session_goes_on(
    server: Server,
) -> None:
    async with open_session(server) as session:
        await session.connection.response.cancel(event_id="mine")
        with anyio.fail_after(PATIENCE_S):
            error: Any = await session.connection.recv()
        assert error.type == "error"
        assert (error.error.code, error.error.event_id) == ("response_cancel_not_active", "mine")
        await session.say("Still there?")
        await session.connection.response.create()
        assert (await session.until("response.done")).response.status == "completed"


async def test_a_closed_session_can_be_followed_by_another(server: Server) -> None:
    for _ in range(2):
        async with open_session(server) as session:
            await session.say("Hello.")
            await session.connection.response.create()
            await session.until("response.done")
            await session.connection.close()


async def test_a_client_that_lost_its_connection_connects_again_by_itself(server: Server) -> None:
    codes = []

    def reconnect(event: ReconnectingEvent) -> None:
        codes.append(event.close_code)

    async with open_session(server, on_reconnecting=reconnect, initial_delay=0.01) as session:
        await session.say("Hello.")
        session.connection._connection.transport.abort()
        with anyio.fail_after(PATIENCE_S):
            async for event in session.connection:
                if event.type == "session.created":
                    break
        assert codes == [1006]
        assert await session.prompt() == []
        await session.say("Hello again.")
        await session.connection.response.create()
        assert (await session.until("response.done")).response.status == "completed"


async def test_a_transcription_session_only_writes_down(server: Server, question: bytes) -> None:
    client = AsyncOpenAI(api_key="any", base_url=f"{server.url}/v1")
    intent: Any = {"intent": "transcription"}
    async with client, client.realtime.connect(extra_query=intent) as connection:
        session = Session(connection)
        created = await session.until("session.created")
        assert created.session.type == "transcription"
        await session.speak(question)
        completed = await session.until("conversation.item.input_audio_transcription.completed")
        assert completed.transcript
        assert not any(kind.startswith("response.") for kind in session.types)


async def test_a_secret_for_a_browser_opens_a_session(server: Server) -> None:
    async with AsyncOpenAI(api_key="any", base_url=f"{server.url}/v1") as client:
        secret = await client.realtime.client_secrets.create(
            session={"type": "realtime", "instructions": "Be brief."}
        )
        assert secret.value.startswith("ek_")
    async with AsyncOpenAI(api_key=secret.value, base_url=f"{server.url}/v1") as client:
        async with client.realtime.connect(model="any") as connection:
            created = await Session(connection).until("session.created")
            assert created.session.instructions == "Be brief."
