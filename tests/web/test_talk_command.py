"""`duologue talk`, as somebody at a terminal uses it."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from duologue.codecs.wav import read_wav
from tests.conftest import ScriptedServer
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.weights

QUESTION = Path(__file__).parent.parent / "data" / "question.wav"


def talk(*options: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "duologue.web", "talk", *options],
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=dict(os.environ),
    )


@pytest.mark.parametrize("transport", ["webrtc", "websocket"])
def test_a_file_is_spoken_and_the_answer_is_kept(
    transport: str, scripted_server: ScriptedServer, tmp_path: Path
) -> None:
    out = tmp_path / "answer.wav"
    done = talk(
        scripted_server.url, "--transport", transport, "--file", str(QUESTION), "--out", str(out)
    )
    assert done.returncode == 0, done.stderr
    assert f"over {transport}" in done.stdout
    # What the user said may be understood while the answer is being given.
    assert "it:  Hello, I am a script." in done.stdout
    assert "What can I do for you?" in done.stdout
    assert "you: utterance of" in done.stdout
    loud = np.abs(read_wav(out.read_bytes()).mono().samples.astype(np.int32)) > 500
    assert loud.sum() > 24_000


def test_lines_are_answered_one_after_the_other(scripted_server: ScriptedServer) -> None:
    done = talk(
        scripted_server.url, "--transport", "websocket", "--text", "--mute", typed="hello\n\nyes\n"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.index("I am a script") < done.stdout.index("Please tell me more")


def test_who_is_not_there_is_told_in_one_line() -> None:
    done = talk("127.0.0.1:9", "--text", "--mute")
    assert done.returncode == 1
    assert done.stderr.startswith("duologue talk: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_file_that_is_none_is_told_in_one_line(
    scripted_server: ScriptedServer, tmp_path: Path
) -> None:
    done = talk(scripted_server.url, "--file", str(tmp_path / "none.wav"), "--mute")
    assert done.returncode == 1
    assert "No such file" in done.stderr
    assert len(done.stderr.splitlines()) == 1
