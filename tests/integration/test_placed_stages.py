"""The embedded models with the voice in a process of its own: it answers, it may die."""

import signal
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from load_tests.server import Server, serving
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.weights]

DEPLOYMENT = """
[stages.llm.sampling]
seed = 7

[stages.tts]
process = "voices"
environment = { STAGE_MARK = "voices" }
"""


def voice_worker(server: Server) -> psutil.Process:
    return next(
        child
        for child in psutil.Process(server.pid).children()
        if child.environ().get("STAGE_MARK") == "voices"
    )


async def test_a_spoken_turn_survives_the_death_of_the_voice(
    tmp_path: Path, open_session: Any, question: bytes
) -> None:
    file = tmp_path / "voices.toml"
    file.write_text(DEPLOYMENT)
    with serving(["--lite", "--deployment", str(file)]) as server, anyio.fail_after(PATIENCE_S):
        async with open_session(server) as wire:
            await wire.speak(question)
            await wire.until("response.output_audio.delta")
            # Interrupted: the answer ends in the middle.
            await wire.send("response.cancel")
            done = await wire.until("response.done")
            assert done["response"]["status"] == "cancelled"
            await wire.say("Count from one to fifty, please.")
            await wire.send("response.create")
            await wire.until("response.output_audio.delta")
            voice_worker(server).send_signal(signal.SIGKILL)
            status = ""
            while status != "completed":
                event = await wire.receive()
                if event["type"] == "response.done":
                    status = event["response"]["status"]
                    assert status in ("failed", "completed")
                    if status == "failed":
                        # Not at once again and again: the voice has to be loaded.
                        await anyio.sleep(0.5)
                        await wire.send("response.create")
            assert psutil.pid_exists(server.pid)
