"""Clients that want an environment of their own; named in the environment, or skipped.

``TEST_DUOLOGUE_PIPECAT`` and ``TEST_DUOLOGUE_LIVEKIT`` are interpreters that have ``pipecat-ai``
and ``livekit-plugins-openai``; ``docs/clients.md`` says how to make them.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from load_tests.server import Server, serving
from tests.random_moshi import make_random_moshi

pytestmark = pytest.mark.weights

HERE = Path(__file__).parent
QUESTION = HERE.parent / "data" / "question.wav"


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
    assert run(server, script).count(": ok") == steps


def interpreter_of(script: str) -> str:
    variable = f"TEST_DUOLOGUE_{script.partition('_')[0].upper()}"
    interpreter = os.environ.get(variable)
    if not interpreter:
        pytest.skip(f"{variable} names no interpreter")
    return interpreter


def run(server: Server, script: str, *kind: str) -> str:
    """What it prints, when all went well."""
    path = str(HERE / "clients" / f"{script}.py")
    done = subprocess.run(
        [interpreter_of(script), path, server.url, str(QUESTION), *kind],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def frame_locked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    if not {"TEST_DUOLOGUE_PIPECAT", "TEST_DUOLOGUE_LIVEKIT"} & os.environ.keys():
        pytest.skip("neither client has an interpreter")
    if request.param == "moshi":
        pytest.importorskip("torch")
        folder = tmp_path_factory.mktemp("moshi")
        make_random_moshi(folder)
        model = ["--engine", "moshi", "--moshi", str(folder), "--moshi-device", "cpu"]
    else:
        model = ["--engine", "scripted-duplex"]
    with serving([*model, "--slots", "2", "--duplex-slow"]) as running:
        yield running


@pytest.mark.parametrize("frame_locked", ["scripted", "moshi"], indirect=True)
@pytest.mark.parametrize("script", ["pipecat_live_client", "livekit_live_client"])
def test_an_unmodified_client_talks_with_a_model_that_listens_while_it_speaks(
    frame_locked: Server, script: str
) -> None:
    assert run(frame_locked, script, "frame-locked").count(": ok") == 1
