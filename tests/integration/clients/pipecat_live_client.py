"""Pipecat's Live service of OpenAI, unmodified, in a pipeline, through what it does.

Run it with an interpreter that has ``pipecat-ai[openai]``::

    python pipecat_live_client.py http://127.0.0.1:8765 question.wav

It prints each step and ends with 0, or with the first thing that went wrong. With ``frame-locked``
as a third argument it talks with a model that listens while it speaks.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from client_steps import PATIENCE, Trouble, fail, passed, read_speech, until
from loguru import logger
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EndFrame,
    ErrorFrame,
    Frame,
    InputAudioRawFrame,
    LLMRunFrame,
    OutputAudioRawFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.openai.live.llm import OpenAILiveLLMService
from pipecat.services.openai.responses.llm import OpenAIResponsesLLMSettings
from pipecat.workers.runner import WorkerRunner
from pipecat_parts import WEATHER, Tap, Weather


class Bot:
    """A pipeline around the service, and all that passed through it."""

    def __init__(self, url: str, messages: list[Any], delegation: Any) -> None:
        self.weather = Weather()
        self.service = OpenAILiveLLMService(
            api_key="any",
            base_url=f"{url.replace('http', 'ws', 1)}/v1/live/sessions",
            settings=OpenAILiveLLMService.Settings(system_instruction="Be brief."),
            delegation=delegation,
        )
        self.service.register_function("get_weather", self.weather.get)
        self.closed: list[str] = []
        self.context = LLMContext(messages, tools=ToolsSchema(standard_tools=[WEATHER]))
        pair = LLMContextAggregatorPair(self.context)
        self.first, self.last = Tap(), Tap()
        pipeline = Pipeline([self.first, pair.user(), self.service, self.last, pair.assistant()])
        params = PipelineParams(audio_in_sample_rate=16_000, audio_out_sample_rate=24_000)
        self.worker = PipelineWorker(
            pipeline, params=params, cancel_on_idle_timeout=False, enable_rtvi=False
        )

    def frames(self, kind: type[Frame]) -> list[Any]:
        """Frames of a kind that the service sent on, or back."""
        return [frame for frame in self.last.frames + self.first.frames if isinstance(frame, kind)]

    def said(self) -> str:
        return "".join(f.text for f in self.last.frames if isinstance(f, TTSTextFrame))

    def audible(self) -> int:
        frames = [f for f in self.last.frames if isinstance(f, OutputAudioRawFrame)]
        return sum(any(frame.audio) for frame in frames)

    async def until(self, what: str, condition: Callable[[], object]) -> None:
        await until(what, condition, lambda: self.frames(ErrorFrame))

    async def speak(self, samples: bytes, rate: int) -> None:
        """In real time."""
        step = rate // 50 * 2
        due = asyncio.get_running_loop().time()
        for start in range(0, len(samples), step):
            data = samples[start : start + step]
            await self.worker.queue_frame(
                InputAudioRawFrame(audio=data, sample_rate=rate, num_channels=1)
            )
            due += 0.02
            await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    def check(self) -> None:
        if errors := self.frames(ErrorFrame):
            raise Trouble(f"errors: {errors}")


@asynccontextmanager
async def run_bot(url: str, *messages: Any, delegation: Any = None) -> AsyncIterator[Bot]:
    bot = Bot(url, list(messages), delegation)
    started, session = asyncio.Event(), asyncio.Event()

    @bot.worker.event_handler("on_pipeline_started")
    async def note(worker: Any, frame: Frame) -> None:
        started.set()

    @bot.service.event_handler("on_session_started")
    async def note_session(service: Any, resource: Any) -> None:
        session.set()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(bot.worker)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(runner.run())
        try:
            async with asyncio.timeout(PATIENCE):
                await started.wait()
                await bot.worker.queue_frame(LLMRunFrame())
                await session.wait()
            yield bot
            bot.check()
            await bot.worker.queue_frame(EndFrame())
            async with asyncio.timeout(PATIENCE):
                await asyncio.shield(running)
        finally:
            running.cancel()


async def spoken_turn(url: str, speech: bytes, rate: int) -> None:
    ada = {"role": "user", "content": "My name is Ada."}
    async with run_bot(url, ada) as bot:
        await bot.speak(speech + bytes(2 * rate), rate)
        await bot.until("sound", lambda: bot.audible() > 10)
        await bot.until("transcript", lambda: "utterance of" in str(bot.context.messages))
        await bot.until("words", bot.said)
        for kind in (ProposedUserStartedSpeakingFrame, ProposedUserStoppedSpeakingFrame):
            await bot.until(kind.__name__, lambda kind=kind: bot.frames(kind))
        await bot.until("end", lambda: bot.frames(TTSStoppedFrame))


async def speaking_first(url: str, speech: bytes, rate: int) -> None:
    async with run_bot(url, {"role": "developer", "content": "Greet the user."}) as bot:
        await bot.until("sound", lambda: bot.audible() > 5)


async def tool_turn(url: str, speech: bytes, rate: int) -> None:
    backend = OpenAILiveLLMService.ResponsesDelegation(
        settings=OpenAIResponsesLLMSettings(model="gpt-5.4-mini")
    )
    asked = {"role": "user", "content": 'Use get_weather {"city": "Oslo"}'}
    speak = {"role": "developer", "content": "Answer now."}
    async with run_bot(url, asked, speak, delegation=backend) as bot:
        await bot.until("call", lambda: bot.weather.calls)
        if bot.weather.calls != [{"city": "Oslo"}]:
            raise Trouble(f"calls: {bot.weather.calls}")
        await bot.until("what the tool said", lambda: "It rains in Oslo." in bot.said())


async def frame_locked(url: str, speech: bytes, rate: int) -> None:
    async with run_bot(url) as bot:
        await bot.speak(speech, rate)
        await bot.until("sound", lambda: bot.audible() > 10)


STEPS = (spoken_turn, speaking_first, tool_turn)


async def main(url: str, path: str, kind: str = "") -> None:
    logger.remove()
    records: list[str] = []
    logger.add(lambda message: records.append(str(message)), level="WARNING")
    speech, rate = read_speech(path)
    for step in (frame_locked,) if kind else STEPS:
        records.clear()
        try:
            await step(url, speech, rate)
        except* (Trouble, TimeoutError) as error:
            fail(step.__name__, repr(error.exceptions), records)
        if records:
            fail(step.__name__, "it logged", records)
        passed(step.__name__)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
