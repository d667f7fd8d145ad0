"""What users say to a model that listens while it speaks, written down beside it."""

import base64
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import psutil
import pytest
from openai import AsyncOpenAI

from load_tests.server import Server, serving
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.weights]

FRAME = 3840
WRITTEN = "conversation.item.input_audio_transcription.{}"


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An echo, and a recogniser that is a script."""
    path: Path = tmp_path_factory.mktemp("script") / "script.json"
    transcripts = [f"Utterance {number}." for number in range(9)]
    path.write_bytes(msgspec.json.encode({"recognizer": {"transcripts": transcripts}}))
    options = ["--engine", "scripted-duplex", "--script", str(path), "--duplex-slow"]
    with serving(options) as running:
        yield running


@pytest.fixture(scope="module")
def recognising() -> Iterator[Server]:
    """An echo, and the embedded recogniser."""
    options = ["--engine", "scripted-duplex", "--duplex-transcripts", "on", "--duplex-slow"]
    with serving(options) as running:
        yield running


class Talk:
    """Somebody says the same thing again and again, with pauses, over either protocol."""

    def __init__(self, connection: Any, append: Callable[[str], Any]) -> None:
        self.connection = connection
        self.seen: list[Any] = []
        self._append = append
        self._told = 0
        self._news = anyio.Event()

    async def listen(self) -> None:
        """Whoever does not read is cut off."""
        while True:
            event = await self.connection.recv()
            assert event.type != "error", event
            self.seen.append(event)
            self._news.set()
            self._news = anyio.Event()

    async def say(self, question: bytes) -> None:
        while True:
            sound = question + bytes(2 * 48_000)
            for start in range(0, len(sound), FRAME):
                await self._append(base64.b64encode(sound[start : start + FRAME]).decode())
                await anyio.sleep(0.08)

    async def until(self, *kinds: str) -> Any:
        with anyio.fail_after(PATIENCE_S):
            while True:
                while self._told == len(self.seen):
                    await self._news.wait()
                event = self.seen[self._told]
                self._told += 1
                if event.type in kinds:
                    return event

    def skip(self) -> None:
        """What has come so far is not what is waited for."""
        self._told = len(self.seen)


@asynccontextmanager
async def live(server: Server, question: bytes) -> AsyncIterator[Talk]:
    client = AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1")
    async with client, client.live.connect() as connection:
        await connection.session.start(session={"model": "any"})
        audio = connection.session.input_audio
        talk = Talk(connection, lambda data: audio.append(audio=data))
        async with anyio.create_task_group() as group:
            group.start_soon(talk.listen)
            group.start_soon(talk.say, question)
            yield talk
            group.cancel_scope.cancel()


@asynccontextmanager
async def realtime(server: Server, question: bytes) -> AsyncIterator[Talk]:
    client = AsyncOpenAI(api_key="none", base_url=f"{server.url}/v1")
    async with client, client.realtime.connect(model="any") as connection:
        audio: Any = {"input": {"transcription": {"model": "whisper-1"}}}
        await connection.session.update(session={"type": "realtime", "audio": audio})
        buffer = connection.input_audio_buffer
        talk = Talk(connection, lambda data: buffer.append(audio=data))
        async with anyio.create_task_group() as group:
            group.start_soon(talk.listen)
            group.start_soon(talk.say, question)
            yield talk
            group.cancel_scope.cancel()


def recognizers_of(server: Server) -> list[psutil.Process]:
    """Its workers that run, by the name that each is started with."""
    found = []
    for one in server.processes()[1:]:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            if one.cmdline()[-2:] == ["duologue.engines.worker", "recognizer"]:
                found.append(one)
    return found


async def test_live_writes_what_the_user_says(scripted: Server, question: bytes) -> None:
    async with live(scripted, question) as talk:
        written = await talk.until("session.input_transcript.delta")
        assert 0 <= written.start_ms < written.end_ms
        more = await talk.until("session.input_transcript.delta")
        assert (written.delta, more.delta) == ("Utterance", " 0.")
        await talk.until("session.output_transcript.delta")


async def test_realtime_writes_what_the_user_says(scripted: Server, question: bytes) -> None:
    async with realtime(scripted, question) as talk:
        done = await talk.until(WRITTEN.format("completed"), WRITTEN.format("failed"))
        assert done.type == WRITTEN.format("completed")
        assert done.transcript == "Utterance 0."
        committed = [e for e in talk.seen if e.type == "input_audio_buffer.committed"]
        assert done.item_id == committed[0].item_id


async def test_conversations_outlive_their_recogniser(scripted: Server, question: bytes) -> None:
    async with live(scripted, question) as first, realtime(scripted, question) as second:
        await first.until("session.input_transcript.delta")
        await second.until(WRITTEN.format("completed"))
        (killed,) = recognizers_of(scripted)
        killed.send_signal(signal.SIGKILL)
        # The conversation goes on; and what is said once it is back is written again.
        second.skip()
        while (await second.until(WRITTEN.format("completed"))).transcript != "Utterance 0.":
            pass  # was on its way; a new recogniser begins anew
        first.skip()
        await first.until("session.output_transcript.delta")
        await first.until("session.input_transcript.delta")
        (other,) = recognizers_of(scripted)
        assert other.pid != killed.pid
        kinds = {event.type for event in (*first.seen, *second.seen)}
        assert "session.closed" not in kinds


async def test_the_embedded_recogniser_writes_a_question_in_both_protocols(
    recognising: Server, question: bytes
) -> None:
    async with live(recognising, question) as first, realtime(recognising, question) as second:
        # The conversation does not wait for the recogniser to be there.
        done = await second.until(WRITTEN.format("completed"))
        assert len(done.transcript.split()) >= 3
        words = ""
        while len(words.split()) < 3:
            words += (await first.until("session.input_transcript.delta")).delta
        assert words.split()[0].strip(",.?!").isalpha()
