"""LiveKit's OpenAI realtime plugin, unmodified, through what it does with a session.

Run it with an interpreter that has ``livekit-plugins-openai``::

    python livekit_client.py http://127.0.0.1:8765 question.wav

It prints each step and ends with 0, or with the first thing that went wrong.
"""

import asyncio
import json
import sys
from typing import Any

from client_steps import PATIENCE, Trouble, fail, passed, read_speech
from livekit import rtc
from livekit.agents import llm
from livekit.plugins.openai.realtime import RealtimeModel, RealtimeSession
from livekit_parts import LogWatch, Told, get_weather
from openai.types.realtime import AudioTranscription
from openai.types.realtime.realtime_audio_input_turn_detection import SemanticVad, ServerVad

ECHO = "Repeat the prompt as JSON."
"""The scripted engine answers this with what it was asked."""


class Conversation(Told):
    """One realtime session and everything that it told its application."""

    def __init__(
        self, url: str, turn_detection: Any, *, max_session_duration: float | None = None
    ) -> None:
        self.model = RealtimeModel(
            base_url=f"{url}/v1",
            api_key="any",
            turn_detection=turn_detection,
            max_session_duration=max_session_duration,
            input_audio_transcription=AudioTranscription(model="gpt-4o-mini-transcribe"),
        )
        self.session: RealtimeSession = self.model.session()
        super().__init__(
            self.session,
            "generation_created",
            "input_speech_started",
            "input_speech_stopped",
            "input_audio_transcription_completed",
            "session_reconnected",
        )

    async def until_event(self, kind: str, count: int = 1) -> None:
        await self.until(kind, lambda: len(self.server_events(kind)) >= count)

    def push(self, samples: bytes, rate: int) -> None:
        step = rate // 10 * 2
        for start in range(0, len(samples), step):
            data = samples[start : start + step]
            self.session.push_audio(rtc.AudioFrame(data, rate, 1, len(data) // 2))

    async def prompt(self) -> list[tuple[str, str]]:
        """The role and the text of each message that the engine is asked with."""
        text, _, _ = await take(await self.session.generate_reply(instructions=ECHO))
        return [
            (message["role"], "".join(part.get("text", "") for part in message["parts"]))
            for message in json.loads(text)["messages"]
        ]

    async def close(self) -> None:
        if errors := self.events.get("error"):
            raise Trouble(f"errors: {errors}")
        await self.session.aclose()
        await self.model.aclose()


async def take(generation: llm.GenerationCreatedEvent) -> tuple[str, float, list[Any]]:
    """Everything that an answer holds: its text, seconds of audio and function calls."""
    text, seconds = "", 0.0

    async with asyncio.timeout(PATIENCE * 2):
        async for message in generation.message_stream:
            async for frame in message.audio_stream:
                seconds += frame.duration
            async for piece in message.text_stream:
                text += piece
        calls = [call async for call in generation.function_stream]
    return text, seconds, calls


async def history_and_typed_turn(url: str, speech: bytes, rate: int) -> None:
    talk = Conversation(url, SemanticVad(type="semantic_vad", interrupt_response=True))
    await talk.session.update_instructions("Be brief.")
    context = llm.ChatContext.empty()
    context.add_message(role="user", content="My name is Ada.")
    context.add_message(role="assistant", content="Hello, Ada.")
    context.add_message(role="user", content="Say something.")
    await talk.session.update_chat_ctx(context)
    ids = [item.id for item in talk.session.chat_ctx.items]
    if ids != [item.id for item in context.items]:
        raise Trouble(f"history is {ids}")
    text, seconds, _ = await take(await talk.session.generate_reply())
    if not text or seconds <= 0:
        raise Trouble(f"an empty answer: {text!r}, {seconds} s")
    asked = await talk.prompt()
    seeded = [("user", "My name is Ada."), ("assistant", "Hello, Ada.")]
    if asked != [*seeded, ("user", "Say something."), ("assistant", text)]:
        raise Trouble(f"asked with {asked}")
    shorter = llm.ChatContext(items=context.items[1:])
    await talk.session.update_chat_ctx(shorter)
    if (asked := await talk.prompt())[0] != ("assistant", "Hello, Ada."):
        raise Trouble(f"asked with {asked} when the first message was gone")
    await talk.close()


async def spoken_turn(url: str, speech: bytes, rate: int) -> None:
    talk = Conversation(url, ServerVad(type="server_vad", interrupt_response=True))
    talk.push(speech, rate)
    await talk.until("generation", lambda: talk.events.get("generation_created"))
    text, seconds, _ = await take(talk.events["generation_created"][0])
    if not text or seconds <= 0:
        raise Trouble("an empty answer to speech")
    await talk.until(
        "transcript",
        lambda: any(e.is_final for e in talk.events.get("input_audio_transcription_completed", [])),
    )
    await talk.close()


async def tool_turn(url: str, speech: bytes, rate: int) -> None:
    talk = Conversation(url, ServerVad(type="server_vad"))
    await talk.session.update_tools([get_weather])
    context = talk.session.chat_ctx.copy()
    context.add_message(role="user", content='Use get_weather {"city": "Oslo"}')
    await talk.session.update_chat_ctx(context)
    _, _, calls = await take(await talk.session.generate_reply())
    if [call.name for call in calls] != ["get_weather"]:
        raise Trouble(f"calls: {calls}")
    context = talk.session.chat_ctx.copy()
    output = llm.FunctionCallOutput(
        call_id=calls[0].call_id, name="get_weather", output="It rains in Oslo.", is_error=False
    )
    context.items.append(output)
    await talk.session.update_chat_ctx(context)
    text, _, _ = await take(await talk.session.generate_reply())
    if "It rains in Oslo." not in text:
        raise Trouble(f"said: {text!r}")
    await talk.close()


async def interruption(url: str, speech: bytes, rate: int) -> None:
    talk = Conversation(url, ServerVad(type="server_vad", interrupt_response=True))
    context = talk.session.chat_ctx.copy()
    context.add_message(role="user", content="Give me a long answer.")
    await talk.session.update_chat_ctx(context)
    generation = await talk.session.generate_reply()
    async for message in generation.message_stream:
        await talk.until_event("response.output_audio.delta", 20)
        talk.push(speech, rate)
        await talk.until("speech", lambda: talk.events.get("input_speech_started"))
        talk.session.interrupt()
        talk.session.truncate(
            message_id=message.message_id, modalities=["audio", "text"], audio_end_ms=700
        )
        await talk.until_event("conversation.item.truncated")
        break
    await talk.until_event("response.done", 2)
    done = talk.server_events("response.done")
    statuses = [event["response"]["status"] for event in done]
    if statuses != ["cancelled", "completed"]:
        raise Trouble(f"answers: {statuses}")
    said = dict((await talk.prompt())[:2]).get("assistant", "")
    if not said or not "Here is the first sentence.".startswith(said.strip()):
        raise Trouble(f"of the cut answer is left: {said!r}")
    await talk.close()


async def manual_commit(url: str, speech: bytes, rate: int) -> None:
    talk = Conversation(url, None)
    talk.push(speech, rate)
    talk.session.commit_audio()
    await talk.until_event("input_audio_buffer.committed")
    await talk.until("transcript", lambda: talk.events.get("input_audio_transcription_completed"))
    if talk.events.get("input_speech_started") or talk.events.get("generation_created"):
        raise Trouble("a turn that was to be ended by hand was not")
    text, _, _ = await take(await talk.session.generate_reply())
    if not text:
        raise Trouble("an empty answer after a commit")
    talk.push(speech, rate)
    talk.session.clear_audio()
    await talk.until_event("input_audio_buffer.cleared")
    await talk.close()


async def error_then_reconnect(url: str, speech: bytes, rate: int) -> None:
    talk = Conversation(url, ServerVad(type="server_vad"))
    talk.session.send_event({"type": "conversation.item.delete", "item_id": "x", "event_id": "m"})
    await talk.until("error", lambda: talk.events.get("error"))
    [error] = talk.events.pop("error")
    if not error.recoverable:
        raise Trouble("an error that should not have been fatal")
    [told] = talk.server_events("error")
    if told["error"]["event_id"] != "m":
        raise Trouble(f"an error that does not name its cause: {told}")
    text, _, _ = await take(await talk.session.generate_reply())
    if not text:
        raise Trouble("no answer after an error")
    await talk.close()
    again = Conversation(url, ServerVad(type="server_vad"), max_session_duration=1.0)
    context = llm.ChatContext.empty()
    context.add_message(role="user", content="My name is Ada.")
    await again.session.update_chat_ctx(context)
    await again.until("reconnection", lambda: again.events.get("session_reconnected"))
    await again.until_event("session.created", 2)
    if (asked := await again.prompt())[:1] != [("user", "My name is Ada.")]:
        raise Trouble(f"asked with {asked} after connecting again")
    await again.close()


STEPS = (
    history_and_typed_turn,
    spoken_turn,
    tool_turn,
    interruption,
    manual_commit,
    error_then_reconnect,
)


async def main(url: str, path: str) -> None:
    speech, rate = read_speech(path)
    speech += bytes(2 * rate)
    for step in STEPS:
        with LogWatch() as watch:
            try:
                await step(url, speech, rate)
            except (Trouble, llm.RealtimeError, TimeoutError) as error:
                fail(step.__name__, repr(error), watch.records)
        allowed = 1 if step is error_then_reconnect else 0
        if len(watch.records) > allowed:
            fail(step.__name__, "it logged", watch.records)
        passed(step.__name__)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
