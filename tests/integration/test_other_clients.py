"""Clients that want an environment of their own; named in the environment, or skipped.

``DUOLOGUE_TEST_PIPECAT`` and ``DUOLOGUE_TEST_LIVEKIT`` are interpreters that have ``pipecat-ai``
and ``livekit-plugins-openai``; ``docs/clients.md`` says how to make them.
"""

import os
import subprocess
from pathlib import Path

import pytest

from load_tests.server import Server

pytestmark = pytest.mark.weights

HERE = Path(__file__).parent
QUESTION = HERE.parent / "data" / "question.wav"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("script", "steps"),
    [
        ("pipecat_client", 6),
        ("livekit_client", 6),
        ("pipecat_live_client", 3),
        ("livekit_live_client", 4),
    ],
)
def test_an_unmodified_client_gets_through_everything_that_it_does(
    server: Server, script: str, steps: int
) -> None:
    variable = f"DUOLOGUE_TEST_{script.partition('_')[0].upper()}"
    interpreter = os.environ.get(variable)
    if not interpreter:
        pytest.skip(f"{variable} names no interpreter")
    done = subprocess.run(
        [interpreter, str(HERE / "clients" / f"{script}.py"), server.url, str(QUESTION)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": ok") == steps
