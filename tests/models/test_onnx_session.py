"""These use the smallest embedded graph; nothing else here is an ONNX file."""

from pathlib import Path
from threading import Event, Timer

import numpy as np
import pytest

from duologue.models.onnx_session import Cancelled, open_session, require_inputs, run_cancellable
from duologue.models.weights import locate


def test_a_missing_graph_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"ear\.onnx"):
        open_session(tmp_path / "ear.onnx")


def test_no_threads_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        open_session(tmp_path / "ear.onnx", threads=0)


@pytest.mark.weights
def test_a_graph_with_other_inputs_is_refused() -> None:
    path = locate("silero-vad") / "silero_vad_v6.onnx"
    with pytest.raises(ValueError, match=r"silero_vad_v6\.onnx.*'h'"):
        require_inputs(open_session(path), ["tokens"], path)


@pytest.mark.weights
def test_a_run_that_nobody_cancels_gives_the_output() -> None:
    session = open_session(locate("smart-turn") / "smart-turn-v3.2-cpu.onnx")
    feeds = {"input_features": np.zeros((1, 80, 800), np.float32)}
    assert run_cancellable(session, "logits", feeds, lambda: False).shape == (1, 1)


@pytest.mark.weights
def test_a_run_ends_once_it_is_cancelled() -> None:
    session = open_session(locate("smart-turn") / "smart-turn-v3.2-cpu.onnx")
    feeds = {"input_features": np.zeros((200, 80, 800), np.float32)}
    cancelled = Event()
    timer = Timer(0.02, cancelled.set)
    timer.start()
    with pytest.raises(Cancelled):
        run_cancellable(session, "logits", feeds, cancelled.is_set)
    timer.join()
