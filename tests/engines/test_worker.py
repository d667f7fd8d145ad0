"""The worker process, started and talked to as its supervisor does."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from duologue.engines.frames import FrameReader, FrameWriter
from duologue.engines.lifeline import Beat, Drain, Report, Started, StartFailed, WorkerConfig
from duologue.engines.pulse import Pulse
from duologue.engines.script import ScriptedOptions
from duologue.engines.worker import BACKENDS, FORCED_EXIT
from tests.patience import PATIENCE_S

STUCK_WORKER = """
import sys, time
import anyio
from duologue.engines import scripted, worker

class Stuck(scripted.ScriptedBackend):
    async def run(self, commands, emit, *, task_status):
        task_status.started()
        await anyio.sleep(0.1)
        print("this goes to standard error", flush=True)
        time.sleep(600)

worker.BACKENDS = {"scripted": lambda options, pulse: Stuck()}
sys.exit(worker.main())
"""

WATCHED_WORKER = """
import gc, sys
from duologue.engines import scripted, worker

def watched(options, pulse):
    pulse.gauges = lambda: {"frozen": float(gc.get_freeze_count())}
    return scripted.ScriptedBackend(pulse=pulse)

worker.BACKENDS = {"scripted": watched}
sys.exit(worker.main())
"""

PARENT = """
import subprocess, sys
worker = subprocess.Popen(
    [sys.executable, "-m", "duologue.engines.worker"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
)
worker.stdin.write(sys.stdin.buffer.read())
worker.stdin.flush()
worker.stdout.read(1)
print(worker.pid, flush=True)
worker.wait()
"""


def framed(message: msgspec.Struct) -> bytes:
    writer = FrameWriter(2**20)
    writer.put(message)
    return bytes(writer.take())


class Process:
    """A worker and the supervisor's end of its streams."""

    def __init__(self, popen: "subprocess.Popen[bytes]") -> None:
        assert popen.stdin is not None and popen.stdout is not None
        self.popen = popen
        self.stdin = popen.stdin
        self.stdout = popen.stdout
        self._reader = FrameReader(2**20)
        self._reports: list[Report] = []

    def tell(self, message: msgspec.Struct) -> None:
        self.stdin.write(framed(message))
        self.stdin.flush()

    def report(self) -> Report:
        while not self._reports:
            data = os.read(self.stdout.fileno(), 65536)
            assert data, "the worker said no more"
            for payload in self._reader.feed(data):
                self._reports += msgspec.msgpack.decode(payload, type=list[Report])
        return self._reports.pop(0)


@contextmanager
def worker(
    directory: Path,
    options: ScriptedOptions | None = None,
    *,
    backend: str = "scripted",
    program: str = "",
    stop_s: float = 5.0,
    log_format: Literal["text", "json"] = "text",
) -> Iterator[Process]:
    config = WorkerConfig(
        name="test",
        backend=backend,
        directory=str(directory),
        options=msgspec.msgpack.encode(options or ScriptedOptions()),
        heartbeat_s=0.01,
        stop_s=stop_s,
        log_level="warning",
        log_format=log_format,
    )
    command = [sys.executable, *(["-c", program] if program else ["-m", "duologue.engines.worker"])]
    popen = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with popen:
        try:
            process = Process(popen)
            process.tell(config)
            yield process
        finally:
            popen.kill()


def test_it_reports_its_start_and_then_its_heartbeat(tmp_path: Path) -> None:
    with worker(tmp_path, ScriptedOptions(capacity=7)) as process:
        assert process.report() == Started(7)
        first = process.report()
        assert isinstance(first, Beat)
        assert first.sessions == 0
        assert isinstance(process.report(), Beat)
        assert sorted(os.listdir(tmp_path)) == ["control", "data"]


def test_the_collector_leaves_alone_what_it_had_when_it_was_ready(tmp_path: Path) -> None:
    with worker(tmp_path, program=WATCHED_WORKER) as process:
        assert isinstance(process.report(), Started)
        beat = process.report()
        assert isinstance(beat, Beat)
        assert beat.reading.gauges["frozen"] > 1000


def test_its_sockets_are_for_its_owner_alone(tmp_path: Path) -> None:
    with worker(tmp_path) as process:
        process.report()
        for name in ("control", "data"):
            assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_nothing_of_its_configuration_is_in_its_arguments(tmp_path: Path) -> None:
    with worker(tmp_path, ScriptedOptions(model="secret")) as process:
        process.report()
        for name in ("cmdline", "environ"):
            told = Path(f"/proc/{process.popen.pid}/{name}").read_bytes()
            assert b"secret" not in told
            assert str(tmp_path).encode() not in told


@pytest.mark.parametrize("how", ["end of input", "SIGTERM"])
def test_it_ends_in_order(tmp_path: Path, how: str) -> None:
    with worker(tmp_path) as process:
        process.report()
        if how == "SIGTERM":
            process.popen.send_signal(signal.SIGTERM)
        else:
            process.stdin.close()
        assert process.popen.wait(PATIENCE_S) == 0
        assert os.listdir(tmp_path) == []


def test_it_leaves_an_interrupt_to_its_supervisor(tmp_path: Path) -> None:
    with worker(tmp_path) as process:
        process.report()
        process.popen.send_signal(signal.SIGINT)
        for _ in range(3):
            assert isinstance(process.report(), Beat)
        assert process.popen.poll() is None


def test_it_ends_when_it_is_drained_and_has_no_sessions(tmp_path: Path) -> None:
    with worker(tmp_path) as process:
        process.report()
        process.tell(Drain(60.0))
        assert process.popen.wait(PATIENCE_S) == 0


def test_it_says_why_it_could_not_start(tmp_path: Path) -> None:
    with worker(tmp_path, ScriptedOptions(start_failure="no weights")) as process:
        assert process.report() == StartFailed("RuntimeError: no weights")
        assert process.popen.wait(PATIENCE_S) == 1
        assert process.popen.stderr is not None
        logged = process.popen.stderr.read().decode()
        assert "worker test[" in logged
        assert "Traceback" in logged


def test_its_log_can_be_lines_of_json(tmp_path: Path) -> None:
    options = ScriptedOptions(start_failure="no weights")
    with worker(tmp_path, options, log_format="json") as process:
        assert process.popen.wait(PATIENCE_S) == 1
        assert process.popen.stderr is not None
        lines = [json.loads(line) for line in process.popen.stderr.read().splitlines()]
        assert {(line["worker"], line["pid"]) for line in lines} == {
            ("test", str(process.popen.pid))
        }
        assert any("Traceback" in line.get("traceback", "") for line in lines)


def test_a_backend_that_is_unknown_is_no_start(tmp_path: Path) -> None:
    with worker(tmp_path, backend="nonsense") as process:
        assert process.report() == StartFailed("KeyError: 'nonsense'")
        assert process.popen.wait(PATIENCE_S) == 1


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_every_backend_of_the_table_reads_its_options(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        BACKENDS[name](msgspec.msgpack.encode([]), Pulse())


def test_only_the_backend_that_is_asked_for_is_imported() -> None:
    heavy = {"numpy", "onnxruntime", "duologue.engines.cascade", "duologue.engines.scripted"}
    program = f"import duologue.engines.worker, sys; print({heavy!r} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=PATIENCE_S)
    assert ran.stdout == b"set()\n"


def test_without_a_configuration_it_fails() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "duologue.engines.worker"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode != 0
    assert b"no configuration" in ended.stderr


def test_a_stuck_event_loop_does_not_outlive_the_parent(tmp_path: Path) -> None:
    with worker(tmp_path, program=STUCK_WORKER, stop_s=0.1) as process:
        assert isinstance(process.report(), Started)
        assert process.popen.stderr is not None
        assert process.popen.stderr.readline() == b"this goes to standard error\n"
        process.stdin.close()
        assert process.popen.wait(PATIENCE_S) == FORCED_EXIT
        assert os.listdir(tmp_path) == []


def test_a_worker_whose_parent_was_killed_ends_and_tidies_up(tmp_path: Path) -> None:
    directory = tmp_path / "worker"
    directory.mkdir()
    config = WorkerConfig(
        name="orphan", backend="scripted", directory=str(directory), remove_directory=True
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdin is not None and parent.stdout is not None
        parent.stdin.write(framed(config))
        parent.stdin.close()
        orphan = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        ended = select.poll()
        ended.register(orphan, select.POLLIN)
        assert ended.poll(PATIENCE_S * 1000)
    finally:
        os.close(orphan)
    assert not directory.exists()
