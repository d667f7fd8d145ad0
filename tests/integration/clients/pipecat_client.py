"""Pipecat's OpenAI realtime service, unmodified, in a pipeline, through what it does.

Run it with an interpreter that has ``pipecat-ai[openai]``::

    python pipecat_client.py http://127.0.0.1:8765 question.wav

It prints each step and ends with 0, or with the first thing that went wrong.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from client_steps import PATIENCE, Trouble, fail, passed, read_speech, until
from loguru import logger
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    BotStoppedSpeakingFrame,
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    LLMMessagesAppendFrame,
    LLMRunFrame,
    LLMTextFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.workers.runner import WorkerRunner
from pipecat_parts import WEATHER, Tap, Weather

ECHO = "Repeat the prompt as JSON."
"""The scripted engine answers this with what it was asked."""
LONG_ANSWER = (
    "Here is the first sentence. The second one follows it. A third one is not far. "
    "The fourth has some more words in it."
)
"""How its long answer begins."""


class WatchedService(OpenAIRealtimeLLMService):
    """The service as it is; the types of what it sends are written down."""

    sent: tuple[str, ...] = ()

    async def send_client_event(self, event: events.ClientEvent) -> None:
        self.sent += (event.type,)
        await super().send_client_event(event)


class Bot:
    """A pipeline around the service, and all that passed through it."""

    def __init__(self, url: str, messages: list[Any], turn_detection: Any) -> None:
        self.weather = Weather()
        self.service = WatchedService(
            api_key="any",
            base_url=f"{url.replace('http', 'ws', 1)}/v1/realtime",
            settings=OpenAIRealtimeLLMService.Settings(
                session_properties=events.SessionProperties(
                    instructions="Be brief.",
                    audio=events.AudioConfiguration(
                        input=events.AudioInput(
                            transcription=events.InputAudioTranscription(),
                            turn_detection=turn_detection,
                        )
                    ),
                )
            ),
        )
        self.service.register_function("get_weather", self.weather.get)
        self.added: list[Any] = []
        self.transcribed: list[str] = []
        self.updates: list[Any] = []
        self.service.add_event_handler("on_conversation_item_created", self._note_item)
        self.service.add_event_handler("on_conversation_item_updated", self._note_update)
        context = LLMContext(messages, tools=ToolsSchema(standard_tools=[WEATHER]))
        pair = LLMContextAggregatorPair(context)
        self.first, self.last = Tap(), Tap()
        pipeline = Pipeline([self.first, pair.user(), self.service, self.last, pair.assistant()])
        params = PipelineParams(audio_in_sample_rate=24_000, audio_out_sample_rate=24_000)
        self.worker = PipelineWorker(
            pipeline, params=params, cancel_on_idle_timeout=False, enable_rtvi=False
        )

    async def _note_item(self, service: Any, item_id: str, item: Any) -> None:
        self.added.append(item)

    async def _note_update(self, service: Any, item_id: str, item: Any) -> None:
        if item is None:  # so the service says that an item has been transcribed
            self.transcribed.append(item_id)
        else:
            self.updates.append(item)

    def frames(self, kind: type[Frame]) -> list[Any]:
        """Frames of a kind that the service sent on, or back."""
        return [frame for frame in self.last.frames + self.first.frames if isinstance(frame, kind)]

    def said(self) -> str:
        texts = [frame for frame in self.last.frames if isinstance(frame, LLMTextFrame)]
        texts = texts or [frame for frame in self.last.frames if isinstance(frame, TTSTextFrame)]
        return "".join(frame.text for frame in texts)

    def audio_frames(self) -> int:
        return sum(isinstance(frame, TTSAudioRawFrame) for frame in self.last.frames)

    async def until(self, what: str, condition: Callable[[], object]) -> None:
        await until(what, condition, lambda: self.frames(ErrorFrame))

    async def speak(self, samples: bytes, rate: int) -> None:
        step = rate // 50 * 2
        for start in range(0, len(samples), step):
            data = samples[start : start + step]
            await self.worker.queue_frame(
                InputAudioRawFrame(audio=data, sample_rate=rate, num_channels=1)
            )

    def statuses(self) -> list[str]:
        """How each answer ended: an item is told twice, the second time by its response."""
        ends = [item for item in self.updates if item.role == "assistant"]
        return [
            item.status
            for number, item in enumerate(ends)
            if item.id in [earlier.id for earlier in ends[:number]]
        ]

    async def prompt(self) -> list[tuple[str, str]]:
        """The role and the text of each message that the engine is asked with."""
        before = len(self.said())
        count = len(self.statuses())
        await self.service.send_client_event(
            events.ResponseCreateEvent(
                response=events.ResponseProperties(instructions=ECHO, output_modalities=["text"])
            )
        )
        await self.until("prompt", lambda: len(self.statuses()) > count)
        return [
            (message["role"], "".join(part.get("text", "") for part in message["parts"]))
            for message in json.loads(self.said()[before:])["messages"]
        ]

    def check(self) -> None:
        if errors := self.frames(ErrorFrame):
            raise Trouble(f"errors: {errors}")


@asynccontextmanager
async def run_bot(url: str, *messages: str, turn_detection: Any = None) -> AsyncIterator[Bot]:
    written = [{"role": "user", "content": text} for text in messages]
    detection = events.TurnDetection() if turn_detection is None else turn_detection
    bot = Bot(url, written, detection)
    started = asyncio.Event()

    @bot.worker.event_handler("on_pipeline_started")
    async def note(worker: Any, frame: Frame) -> None:
        started.set()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(bot.worker)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(runner.run())
        try:
            async with asyncio.timeout(PATIENCE):
                await started.wait()
            yield bot
            await bot.worker.queue_frame(EndFrame())
            async with asyncio.timeout(PATIENCE):
                await asyncio.shield(running)
        finally:
            running.cancel()


async def history_and_typed_turn(url: str, speech: bytes, rate: int) -> None:
    async with run_bot(url, "My name is Ada.", "Say something.") as bot:
        await bot.worker.queue_frame(LLMRunFrame())
        await bot.until("end", lambda: bot.frames(TTSStoppedFrame))
        first = len(bot.said())
        message = {"role": "user", "content": "And something else."}
        await bot.service.queue_frame(LLMMessagesAppendFrame([message], run_llm=True))
        await bot.until("second answer", lambda: len(bot.said()) > first)
        await bot.until("second end", lambda: len(bot.statuses()) >= 2)
        asked = await bot.prompt()
        seeded = asked[0][1]
        if asked[0][0] != "user" or not 0 <= seeded.find("My name is Ada.") < seeded.find("Say so"):
            raise Trouble(f"asked with {asked}")
        if "And something else." not in asked[2][1] or asked[1][0] != "assistant":
            raise Trouble(f"asked with {asked}")
        bot.check()


async def spoken_turn(url: str, speech: bytes, rate: int) -> None:
    async with run_bot(url) as bot:
        await bot.speak(speech, rate)
        await bot.until("sound", lambda: bot.audio_frames() > 3)
        await bot.until("transcript", lambda: bot.transcribed)
        await bot.until("end", lambda: bot.statuses() == ["completed"])
        for kind in (ProposedUserStartedSpeakingFrame, ProposedUserStoppedSpeakingFrame):
            if not bot.frames(kind):
                raise Trouble(f"no {kind.__name__}")
        bot.check()


async def tool_turn(url: str, speech: bytes, rate: int) -> None:
    async with run_bot(url, 'Use get_weather {"city": "Oslo"}') as bot:
        await bot.worker.queue_frame(LLMRunFrame())
        await bot.until("call", lambda: bot.weather.calls)
        if bot.weather.calls != [{"city": "Oslo"}]:
            raise Trouble(f"calls: {bot.weather.calls}")
        await bot.until("what the tool said", lambda: "It rains in Oslo." in bot.said())
        bot.check()


async def interruption(url: str, speech: bytes, rate: int) -> None:
    async with run_bot(url, "Give me a long answer.") as bot:
        await bot.worker.queue_frame(LLMRunFrame())
        await bot.until("sound", lambda: bot.audio_frames() > 35)
        await bot.speak(speech, rate)
        await bot.until("transcript", lambda: bot.transcribed)
        heard = bot.audio_frames()
        await bot.until("answer to the interruption", lambda: bot.audio_frames() > heard + 5)
        if "the tenth" in bot.said():
            raise Trouble("the interrupted answer went on to its end")
        await bot.until("end", lambda: len(bot.statuses()) >= 2)
        if bot.statuses() != ["incomplete", "completed"]:
            raise Trouble(f"the answers ended {bot.statuses()}")
        if bot.service.sent.count("conversation.item.truncate") != 1:
            raise Trouble(f"no truncation among {bot.service.sent}")
        role, said = (await bot.prompt())[1]
        if role != "assistant" or not said or not LONG_ANSWER.startswith(said.strip()):
            raise Trouble(f"of the cut answer is left: {role} {said!r}")
        bot.check()


async def manual_commit(url: str, speech: bytes, rate: int) -> None:
    async with run_bot(url, turn_detection=False) as bot:
        await bot.worker.queue_frame(UserStartedSpeakingFrame())
        await bot.speak(speech, rate)
        await bot.worker.queue_frame(UserStoppedSpeakingFrame())
        await bot.until("sound", lambda: bot.audio_frames() > 3)
        await bot.until("transcript", lambda: bot.transcribed)
        if bot.service.sent.count("input_audio_buffer.commit") != 1:
            raise Trouble(f"no commit among {bot.service.sent}")
        if bot.frames(ProposedUserStartedSpeakingFrame):
            raise Trouble("a turn that was to be ended by hand was not")
        bot.check()


async def error_then_reconnect(url: str, speech: bytes, rate: int) -> None:
    async with run_bot(url, "Hello.") as bot:
        await bot.worker.queue_frame(LLMRunFrame())
        await bot.until("end", lambda: bot.frames(TTSStoppedFrame))
        await bot.service.send_client_event(
            events.ConversationItemTruncateEvent(item_id="x", content_index=0, audio_end_ms=0)
        )
        await bot.until("error", lambda: bot.frames(ErrorFrame))
        if "item_truncate_invalid_item_id" not in bot.frames(ErrorFrame)[0].error:
            raise Trouble(f"the wrong error: {bot.frames(ErrorFrame)}")
        bot.first.frames.clear()
        bot.last.frames.clear()
        # In a whole bot the output transport says this; without it the old answer would be cut.
        await bot.service.queue_frame(BotStoppedSpeakingFrame(), FrameDirection.UPSTREAM)
        await bot.service.reset_conversation()
        ends = len(bot.statuses())
        await bot.speak(speech, rate)
        await bot.until("end", lambda: len(bot.statuses()) > ends)
        if bot.audio_frames() <= 3:
            raise Trouble("a silent answer after connecting again")
        if any("Hello." == text for _, text in await bot.prompt()):
            raise Trouble("the conversation is still the one that was closed")
        bot.check()


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
    logged: list[str] = []
    logger.remove()
    logger.add(lambda line: logged.append(str(line)), level="ERROR")
    for step in STEPS:
        logged.clear()
        try:
            await step(url, speech, rate)
        except* (Trouble, TimeoutError) as error:
            fail(step.__name__, repr(error.exceptions), logged)
        if logged and step is not error_then_reconnect:
            fail(step.__name__, "it logged", logged)
        passed(step.__name__)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
