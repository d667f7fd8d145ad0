"""The ``openai-agents`` package's realtime session, unmodified, through what it does."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner
from agents.realtime.model_inputs import RealtimeModelSendRawMessage
from agents.realtime.session import RealtimeSession

from load_tests.server import Server
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.weights]


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


class Run:
    """A session and everything that it told its application."""

    def __init__(self, session: RealtimeSession) -> None:
        self.session = session
        self.events: list[Any] = []
        self._changed = anyio.Event()

    async def listen(self) -> None:
        async for event in self.session:
            self.events.append(event)
            self._changed.set()
            self._changed = anyio.Event()

    def kinds(self) -> list[str]:
        """The types of the session's events, and of the model's behind them."""
        return [
            event.data.type if event.type == "raw_model_event" else event.type
            for event in self.events
        ]

    def raw(self, kind: str) -> list[dict[str, Any]]:
        """The server's events of a type."""
        return [
            event.data.data
            for event in self.events
            if event.type == "raw_model_event"
            and event.data.type == "raw_server_event"
            and event.data.data["type"] == kind
        ]

    def audio_ms(self) -> float:
        """How much speech has come."""
        return sum(len(e.audio.data) for e in self.events if e.type == "audio") / 48

    def troubles(self) -> list[Any]:
        return [event for event in self.events if event.type in ("error", "exception")]

    async def until(self, condition: Callable[[], object]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not condition():
                await self._changed.wait()

    async def prompt(self) -> list[tuple[str, str]]:
        """The role and the text of each message that the engine is asked with."""
        answers = len(self.raw("response.done"))
        response = {"instructions": "repeat the prompt as json", "output_modalities": ["text"]}
        await self.send_raw("response.create", response=response)
        await self.answered(answers + 1)
        text = self.raw("response.output_text.done")[-1]["text"]
        return [
            (message["role"], "".join(part.get("text", "") for part in message["parts"]))
            for message in json.loads(text)["messages"]
        ]

    async def answered(self, count: int = 1) -> None:
        await self.until(lambda: len(self.raw("response.done")) >= count)

    async def send_raw(self, kind: str, **fields: Any) -> None:
        await self.session.model.send_event(
            RealtimeModelSendRawMessage(message={"type": kind, "other_data": fields})
        )


@asynccontextmanager
async def run_agent(server: Server, **settings: Any) -> AsyncIterator[Run]:
    agent = RealtimeAgent(name="Helper", instructions="Be brief.", tools=[get_weather])
    runner = RealtimeRunner(agent)
    session = await runner.run(
        model_config={
            "api_key": "any",
            "url": f"{server.url.replace('http', 'ws', 1)}/v1/realtime?model=gpt-realtime",
            "initial_model_settings": settings,  # type: ignore[typeddict-item]
        }
    )
    async with session, anyio.create_task_group() as tasks:
        run = Run(session)
        tasks.start_soon(run.listen)
        await run.until(lambda: len(run.raw("session.updated")) >= 2)
        yield run
        tasks.cancel_scope.cancel()


def said(run: Run) -> str:
    """What the only answer said."""
    [done] = run.raw("response.output_audio_transcript.done")
    return str(done["transcript"])


async def test_a_session_connects_and_shows_what_it_was_configured_with(server: Server) -> None:
    async with run_agent(server) as run:
        session = run.raw("session.updated")[-1]["session"]
        assert session["instructions"] == "Be brief."
        assert session["audio"]["input"]["turn_detection"]["interrupt_response"] is True
        assert [tool["name"] for tool in session["tools"]] == ["get_weather"]
        assert run.troubles() == []


async def test_a_typed_turn_is_spoken(server: Server) -> None:
    async with run_agent(server) as run:
        await run.session.send_message("Hello.")
        await run.answered()
        await run.until(lambda: "audio_end" in run.kinds())
        assert "audio" in run.kinds()
        assert run.troubles() == []


async def test_a_spoken_turn_is_answered_and_written_down(server: Server, question: bytes) -> None:
    async with run_agent(server) as run:
        for start in range(0, len(question), 4800):
            await run.session.send_audio(question[start : start + 4800])
        await run.answered()
        await run.until(lambda: "input_audio_transcription_completed" in run.kinds())
        roles = [getattr(item, "role", "") for item in run.session._history]
        assert roles == ["user", "assistant"]
        assert run.troubles() == []


async def test_a_tool_is_called_and_its_output_is_said(server: Server) -> None:
    async with run_agent(server) as run:
        await run.session.send_message('Use get_weather {"city": "Oslo"}')
        await run.answered(2)
        assert {"tool_start", "tool_end"} <= set(run.kinds())
        [said] = run.raw("response.output_audio_transcript.done")
        assert "It rains in Oslo." in said["transcript"]
        assert run.troubles() == []


async def test_speaking_interrupts_and_the_answer_is_cut(server: Server, question: bytes) -> None:
    async with run_agent(server) as run:
        await run.session.send_message("Give me a long answer.")
        await run.until(lambda: run.audio_ms() >= 2000)
        for start in range(0, len(question), 4800):
            await run.session.send_audio(question[start : start + 4800])
        await run.until(lambda: "audio_interrupted" in run.kinds())
        await run.until(lambda: run.raw("conversation.item.truncated"))
        await run.answered(2)
        first, second = run.raw("response.done")[:2]
        assert first["response"]["status"] == "cancelled"
        assert second["response"]["status"] == "completed"
        role, heard = (await run.prompt())[1]
        assert role == "assistant"
        assert heard.startswith("Here is the first sentence.")
        assert "the tenth" not in heard
        assert run.troubles() == []


async def test_the_application_interrupts(server: Server) -> None:
    async with run_agent(server) as run:
        await run.session.send_message("Give me a long answer.")
        await run.until(lambda: run.kinds().count("audio") >= 3)
        await run.session.interrupt()
        await run.answered()
        await run.session.send_message("Hello.")
        await run.answered(2)
        assert run.raw("response.done")[-1]["response"]["status"] == "completed"
        assert run.troubles() == []


async def test_a_buffer_is_committed_by_hand(server: Server, question: bytes) -> None:
    async with run_agent(server, turn_detection=None) as run:
        assert run.raw("session.updated")[-1]["session"]["audio"]["input"]["turn_detection"] is None
        await run.session.send_audio(question, commit=True)
        await run.until(lambda: run.raw("input_audio_buffer.committed"))
        await run.until(lambda: "input_audio_transcription_completed" in run.kinds())
        assert run.raw("input_audio_buffer.speech_started") == []
        assert run.raw("response.created") == []
        await run.send_raw("response.create")
        await run.answered()
        assert run.troubles() == []


async def test_history_is_seeded(server: Server) -> None:
    async with run_agent(server) as run:
        for role, kind in (("user", "input_text"), ("assistant", "output_text")):
            item = {"type": "message", "role": role, "content": [{"type": kind, "text": "Hi."}]}
            await run.send_raw("conversation.item.create", item=item)
        await run.until(lambda: len(run.session._history) == 2)
        assert [getattr(item, "role", "") for item in run.session._history] == [
            "user",
            "assistant",
        ]
        assert await run.prompt() == [("user", "Hi."), ("assistant", "Hi.")]
        assert run.troubles() == []


async def test_an_error_is_told_and_the_session_goes_on(server: Server) -> None:
    async with run_agent(server) as run:
        await run.send_raw("conversation.item.delete", item_id="none", event_id="mine")
        await run.until(run.troubles)
        [trouble] = run.troubles()
        assert trouble.error.event_id == "mine"
        assert trouble.error.code == "item_delete_invalid_item_id"
        await run.session.send_message("Hello.")
        await run.answered()
        assert run.troubles() == [trouble]


async def test_a_closed_session_can_be_followed_by_another(server: Server) -> None:
    for _ in range(2):
        async with run_agent(server) as run:
            await run.session.send_message("Hello.")
            await run.answered()
            assert await run.prompt() == [("user", "Hello."), ("assistant", said(run))]
            assert run.troubles() == []
            await run.session.close()
