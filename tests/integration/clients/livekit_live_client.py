"""LiveKit's full-duplex model of OpenAI, unmodified, through what it does with a Live session.

Run it with an interpreter that has ``livekit-plugins-openai``::

    python livekit_live_client.py http://127.0.0.1:8765 question.wav

It prints each step and ends with 0, or with the first thing that went wrong. With ``frame-locked``
as a third argument it talks with a model that listens while it speaks.
"""

import asyncio
import sys
from typing import Any

from client_steps import Trouble, fail, passed, read_speech
from livekit import rtc
from livekit.agents import llm
from livekit.plugins.openai.realtime import GPTLiveModel
from livekit_parts import LogWatch, Told, get_weather

FRAME_MS = 20


class Conversation(Told):
    """One session, everything that it told its application, and a microphone in real time."""

    def __init__(
        self, tasks: asyncio.TaskGroup, url: str, speech: bytes, rate: int, **options: Any
    ) -> None:
        self.model = GPTLiveModel(base_url=f"{url}/v1", api_key="any", **options)
        self.session = self.model.session()
        self.audible = 0
        self.longest_gap = 0.0
        self.speech, self.rate = speech, rate
        self._waiting = b""
        super().__init__(
            self.session,
            "input_speech_started",
            "input_speech_stopped",
            "input_audio_transcription_completed",
            "transcript_delta",
            "function_call",
            "delegation_created",
        )
        self._tasks = [tasks.create_task(self._listen()), tasks.create_task(self._speak())]

    async def _listen(self) -> None:
        before = None
        async for duplex in self.session.audio_stream:
            now = asyncio.get_running_loop().time()
            if before is not None:
                self.longest_gap = max(self.longest_gap, now - before)
            before = now
            self.audible += any(duplex.frame.data.tobytes())

    async def _speak(self) -> None:
        size = self.rate * FRAME_MS // 1000 * 2
        due = asyncio.get_running_loop().time()
        while True:
            data, self._waiting = self._waiting[:size], self._waiting[size:]
            data = data.ljust(size, b"\0")
            self.session.push_audio(rtc.AudioFrame(data, self.rate, 1, size // 2))
            due += FRAME_MS / 1000
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    def say(self) -> None:
        self._waiting += self.speech

    def said(self) -> str:
        return "".join(event.text for event in self.events.get("transcript_delta", []))

    async def configure(self, *messages: str, tools: Any = ()) -> None:
        context = llm.ChatContext.empty()
        for text in messages:
            context.add_message(role="user", content=text)
        await self.session._update_session(
            instructions="Be brief.", chat_ctx=context, tools=list(tools)
        )
        await self.until("start", lambda: self.server_events("session.started"))

    async def close(self) -> None:
        if errors := self.events.get("error"):
            raise Trouble(f"errors: {errors}")
        await self.session.aclose()
        closed = self.server_events("session.closed")
        if [event["reason"] for event in closed] != ["close_requested"]:
            raise Trouble(f"closed: {closed}")
        for task in self._tasks:
            task.cancel()
        await self.model.aclose()


async def spoken_turn(tasks: asyncio.TaskGroup, url: str, speech: bytes, rate: int) -> None:
    talk = Conversation(tasks, url, speech, rate)
    await talk.configure("My name is Ada.")
    talk.say()
    await talk.until("transcript", lambda: talk.events.get("input_audio_transcription_completed"))
    await talk.until("sound", lambda: talk.audible > 10)
    await talk.until("words", talk.said)
    await talk.until(
        "end of the turn",
        lambda: any(e.is_final for e in talk.events["input_audio_transcription_completed"]),
    )
    await talk.close()


async def tool_turn(tasks: asyncio.TaskGroup, url: str, speech: bytes, rate: int) -> None:
    talk = Conversation(tasks, url, speech, rate)
    await talk.configure('Use get_weather {"city": "Oslo"}', tools=[get_weather])
    talk.session._generate_reply(instructions="Answer now.")
    await talk.until("call", lambda: talk.events.get("function_call"))
    [call] = talk.events["function_call"]
    output = llm.FunctionCallOutput(
        call_id=call.call_id, name="get_weather", output="It rains in Oslo.", is_error=False
    )
    await talk.session._append_items([output])
    await talk.until("what the tool said", lambda: "It rains in Oslo." in talk.said())
    await talk.close()


async def speaking_first_and_being_muted(
    tasks: asyncio.TaskGroup, url: str, speech: bytes, rate: int
) -> None:
    talk = Conversation(tasks, url, speech, rate, delegation="client")
    await talk.configure()
    talk.session.append_instructions("Never be rude.")
    talk.session.append_thinking("It is late.")
    talk.session.append_commentary("Greet the user.")
    await talk.until("sound", lambda: talk.audible > 5)
    talk.session.mute_input()
    await talk.until("mute", lambda: talk.server_events("session.input_audio.muted"))
    talk.session.unmute_input()
    await talk.until("unmute", lambda: talk.server_events("session.input_audio.unmuted"))
    for kind in ("instructions", "thinking", "commentary"):
        await talk.until(kind, lambda kind=kind: talk.server_events(f"session.{kind}.appended"))
    await talk.close()


async def interruption(tasks: asyncio.TaskGroup, url: str, speech: bytes, rate: int) -> None:
    talk = Conversation(tasks, url, speech, rate)
    await talk.configure("Give me a long answer.")
    talk.session._generate_reply()
    await talk.until("sound", lambda: talk.audible > 25)
    talk.say()
    await talk.until("speech", lambda: talk.events.get("input_speech_started"))
    await talk.until("end", lambda: talk.events.get("input_speech_stopped"))
    if "the tenth" in talk.said():
        raise Trouble("the interrupted answer went on to its end")
    await talk.close()


async def frame_locked(tasks: asyncio.TaskGroup, url: str, speech: bytes, rate: int) -> None:
    talk = Conversation(tasks, url, speech, rate)
    await talk.configure()
    talk.say()
    await talk.until("sound", lambda: talk.audible > 10)
    await talk.close()


STEPS = (spoken_turn, tool_turn, speaking_first_and_being_muted, interruption)


async def main(url: str, path: str, kind: str = "") -> None:
    speech, rate = read_speech(path)
    for step in (frame_locked,) if kind else STEPS:
        with LogWatch() as watch:
            try:
                async with asyncio.TaskGroup() as tasks:
                    await step(tasks, url, speech, rate)
            except* (Trouble, llm.RealtimeError, TimeoutError) as error:
                fail(step.__name__, repr(error.exceptions), watch.records)
        if watch.records:
            fail(step.__name__, "it logged", watch.records)
        passed(step.__name__)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
