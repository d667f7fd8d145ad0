"""History after an interruption has the words that came out of the caller's loudspeaker."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import numpy as np
import pytest

from duologue.engines.cascade import CascadeBackend, load_parts
from duologue.engines.engine import ResponseRequest, Usage
from duologue.engines.fairness import Rank
from duologue.engines.language import Finished, Generated, TextPiece
from duologue.models.whisper import Whisper
from duologue.web.cascade_setup import cascade_config
from duologue.web.settings import Settings
from load_tests.clock import now
from load_tests.history import recognise, words_off
from load_tests.microphone import Clip, Microphone
from load_tests.recordings import RATE, Recording, Samples
from load_tests.rtc_client import RtcClient, open_call
from tests.caller import Loud
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.weights]

OpenHouse = Callable[..., AbstractAsyncContextManager[Any]]
TEXT = (
    "The station is at the end of the street, and the next train to the coast leaves at noon. "
    "You can buy a ticket from the machine, or ask the woman behind the counter for help. "
    "It takes two hours, and the view of the sea is best from the left side of the carriage."
)
HUM = (9_000 * np.sin(np.arange(RATE) * 2 * np.pi * 300 / RATE)).astype(np.int16)
HEARD_SECONDS = 4.3
"""Of the answer, before it is interrupted: somewhere in the first or second sentence."""


class Reader:
    """Stands in for the language model: it reads the text out."""

    model, context_tokens, sees, remote = "reader", 2048, False, False

    async def load(self) -> None:
        return

    @asynccontextmanager
    async def answer(
        self, session: str, request: ResponseRequest, rank: Callable[[], Rank]
    ) -> AsyncIterator[AsyncIterator[Generated]]:
        async def pieces() -> AsyncIterator[Generated]:
            for word in TEXT.split(" "):
                yield TextPiece(word + " ")
            yield Finished("completed", Usage())

        yield pieces()

    async def warm(self, session: str, request: ResponseRequest) -> None:
        return

    def forget(self, session: str) -> None:
        return

    async def aclose(self) -> None:
        return


async def interrupt(client: RtcClient) -> tuple[str, Samples]:
    """Ask, listen for a while, and speak into the answer: its item, and what was heard of it."""
    microphone = Microphone(client.rate)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(microphone.run, client.send_sound)
        detection = {"type": "server_vad", "create_response": False}
        await client.configure({"audio": {"input": {"turn_detection": detection}}})
        content = [{"type": "input_text", "text": "How do I get to the coast?"}]
        item = {"type": "message", "role": "user", "content": content}
        await client.send({"type": "conversation.item.create", "item": item})
        await client.send({"type": "response.create"})

        def begun() -> float | None:
            return client.answers[-1].first_audio if client.answers else None

        await client.until(lambda: begun() is not None, PATIENCE_S, "sound of an answer")
        answer, first = client.answers[-1], begun()
        assert first is not None
        while client.loudspeaker.last_sound < first + HEARD_SECONDS:  # noqa: ASYNC110 - it plays
            await anyio.sleep(0.02)
        microphone.say(Clip.of(Recording("hum", HUM, (0, RATE - 1)), client.rate))
        await client.until(lambda: bool(client.heard.speech_started), PATIENCE_S, "speech_started")
        assert await client.stopped(answer, now()) is not None
        tasks.cancel_scope.cancel()
    return answer.item_id, client.loudspeaker.between(first - 0.1, client.loudspeaker.last_sound)


async def history(client: RtcClient, item_id: str) -> str:
    """The words of an item as the server has them now."""
    client.heard.written.clear()
    await client.send({"type": "conversation.item.retrieve", "item_id": item_id})
    await client.until(lambda: bool(client.heard.written), PATIENCE_S, "item.retrieved")
    return client.heard.written[item_id]


async def test_history_ends_where_the_loudspeaker_fell_silent(open_house: OpenHouse) -> None:
    config = await anyio.to_thread.run_sync(cascade_config, Settings(lite=True))
    whisper = await anyio.to_thread.run_sync(Whisper, Path(config.recognizer))
    backend = CascadeBackend(config, language=Reader(), load=load_parts)
    async with open_house(backend=backend, vad=Loud()) as house:
        async with open_call(house.url, keep=True) as client:
            item_id, sound = await interrupt(client)
            [recognised] = await anyio.to_thread.run_sync(recognise, [sound], whisper)
            # Where words begin and end is found out after the cut, and nothing tells of it; until
            # then it is estimated.
            off: int | None = None
            with anyio.move_on_after(20):
                while off is None or abs(off) > 1:
                    off = words_off(TEXT, recognised, await history(client, item_id), sound)
    assert off is not None and abs(off) <= 1
    assert len(recognised.split()) >= 6
