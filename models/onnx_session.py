"""One onnxruntime session, set up the way a realtime process wants it."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

_POLL_SECONDS = 0.01


def open_session(path: Path, *, threads: int = 1) -> onnxruntime.InferenceSession:
    """Load an ONNX graph for the CPU.

    `threads` (>= 1) is the number of threads one call uses. They never spin: onnxruntime's default
    keeps idle threads busy waiting, which on a small machine takes the core from the next stage.
    The memory arena is off, so that a long input does not pin its peak for the life of the process.

    Raises FileNotFoundError when there is no such file; onnxruntime raises its own error when the
    file is not a graph.
    """
    if threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    if not path.is_file():
        raise FileNotFoundError(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def require_inputs(session: onnxruntime.InferenceSession, names: Sequence[str], path: Path) -> None:
    """Raise ValueError unless the graph takes exactly these inputs: it is some other model."""
    found = [node.name for node in session.get_inputs()]
    if sorted(found) != sorted(names):
        raise ValueError(f"{path}: a graph with the inputs {found}, wanted {list(names)}")


class Cancelled(Exception):
    """The caller's flag was raised while the graph ran."""


def run_cancellable(
    session: onnxruntime.InferenceSession,
    output: str,
    feeds: Mapping[str, npt.NDArray[np.generic]],
    cancelled: Callable[[], bool],
) -> npt.NDArray[np.float32]:
    """Run the graph for one output, giving up between two nodes once `cancelled()` is true.

    The flag is asked every 10 ms, on a thread of its own; what it reads must be safe to read there.
    Raises Cancelled; the graph stops within some 10 ms more.
    """
    options = onnxruntime.RunOptions()
    done = Event()

    def watch() -> None:
        while not done.wait(_POLL_SECONDS):
            if cancelled():
                options.terminate = True
                return

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        (result,) = session.run([output], feeds, options)
    except Fail as error:
        if options.terminate:
            raise Cancelled from error
        raise
    finally:
        done.set()
        watcher.join()
    return np.asarray(result, np.float32)
