"""Keeps one worker process running: starts it, watches it, ends it, starts it again."""

import logging
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import anyio
import anyio.to_thread
import msgspec

from duologue.engines.child_process import ChildProcess, start_child
from duologue.engines.frames import FrameReader, FrameWriter, LaneBroken
from duologue.engines.lifeline import (
    Beat,
    Drain,
    Report,
    Request,
    Started,
    StartFailed,
    WorkerConfig,
)
from duologue.engines.pulse import Reading
from duologue.engines.socket_stream import SocketStream
from duologue.engines.worker_directory import make_private, private_directory, socket_paths
from duologue.engines.worker_environment import worker_environment

log = logging.getLogger(__name__)

_REPORT_BYTES = 2**20
_REPORTS: msgspec.msgpack.Decoder[list[Report]] = msgspec.msgpack.Decoder(list[Report])

State = Literal["stopped", "starting", "ready", "draining", "waiting"]


class SupervisionRules(msgspec.Struct, frozen=True, kw_only=True):
    """How patient a supervisor is. All in seconds.

    ``ready_s``: from the start of the process to the end of its warm-up. ``silence_s``: without a
    heartbeat. ``step_s``: one model step. ``stop_s``: an orderly end, then SIGKILL. Restarts wait
    ``backoff_s``, doubled after each failure up to ``backoff_limit_s``; a worker that lived for
    ``healthy_s`` starts the count again.
    """

    ready_s: float = 120.0
    silence_s: float = 5.0
    step_s: float = 20.0
    stop_s: float = 5.0
    backoff_s: float = 0.1
    backoff_limit_s: float = 30.0
    healthy_s: float = 30.0


class Backoff:
    """How long to wait before the next start."""

    def __init__(self, rules: SupervisionRules) -> None:
        self._rules = rules
        self._failures = 0

    def after(self, healthy_s: float) -> float:
        """The wait in seconds, after a worker that was ready for `healthy_s` seconds."""
        if healthy_s >= self._rules.healthy_s:
            self._failures = 0
        # The exponent is bounded: a float overflows at 2 ** 1024.
        wait = self._rules.backoff_s * 2.0 ** min(self._failures, 64)
        self._failures += 1
        return min(wait, self._rules.backoff_limit_s)


class Watch:
    """Whether a worker is alive, from its reports. Times are seconds on one monotonic clock."""

    def __init__(self, rules: SupervisionRules, now: float) -> None:
        self._rules = rules
        self._deadline = now + rules.ready_s
        self._fault = ""
        self.ready_since: float | None = None

    @property
    def deadline(self) -> float:
        """When the worker counts as hung unless it reports before."""
        return self._deadline

    def receive(self, report: Report, now: float) -> None:
        match report:
            case Started():
                self.ready_since = now
                self._deadline = now + self._rules.silence_s
            case StartFailed():
                self._fault = f"it could not start: {report.reason}"
            case Beat():
                self._deadline = now + self._rules.silence_s
                if report.reading.running_s > self._rules.step_s:
                    self._fault = f"a step has run for {report.reading.running_s:.1f} s"

    def fault(self, now: float) -> str:
        """Why the worker has to go; empty while it needn't."""
        if self._fault:
            return self._fault
        if now < self._deadline:
            return ""
        if self.ready_since is None:
            return f"it was not ready within {self._rules.ready_s:g} s"
        return f"no heartbeat for {self._rules.silence_s:g} s"

    def healthy_s(self, now: float) -> float:
        """How long it has been ready."""
        return 0.0 if self.ready_since is None else now - self.ready_since


class Supervisor:
    """Runs one worker at a time, in a directory of its own that gateways reach it by.

    Nothing of a worker outlives :meth:`run`: no process and no file, wherever it is cancelled.

    ``start_s``: what the last start took, to the end of its warm-up. ``reading``: what the worker
    last reported of its steps; none while there is no worker.
    """

    def __init__(
        self,
        config: WorkerConfig,
        rules: SupervisionRules | None = None,
        *,
        module: str = "duologue.engines.worker",
        kind: str = "worker",
        pass_fds: Sequence[int] = (),
    ) -> None:
        """`config.directory` is the worker's; when it is empty, a private one is made in the
        runtime directory and removed in the end. `module` is what runs as the worker, which logs
        call a `kind`; it gets the descriptors `pass_fds`, by the same numbers."""
        self._module = module
        self._kind = kind
        self._pass_fds = tuple(pass_fds)
        self._rules = rules or SupervisionRules()
        if not config.directory:
            made = str(private_directory(config.name))
            config = msgspec.structs.replace(config, directory=made, remove_directory=True)
        self.directory = Path(config.directory)
        socket_paths(self.directory)
        self._config = config
        self._process: ChildProcess | None = None
        self._stopping = False
        self._began = 0.0
        self._changed = anyio.Event()
        self.state: State = "stopped"
        self.restarts = 0
        self.sessions = 0
        self.start_s = 0.0
        self.reading = Reading()
        self.last_fault = ""

    @property
    def name(self) -> str:
        """The worker's, as it is in the configuration."""
        return self._config.name

    @property
    def pid(self) -> int | None:
        """The worker's process id while there is one."""
        return self._process.pid if self._process else None

    async def wait_change(self) -> None:
        """Return when :attr:`state` or :attr:`pid` has changed."""
        await self._changed.wait()

    def _enter(self, state: State) -> None:
        self.state = state
        self._changed.set()
        self._changed = anyio.Event()

    async def run(self) -> None:
        """Keep the worker running until it is drained or this is cancelled."""
        backoff = Backoff(self._rules)
        try:
            while not self._stopping:
                try:
                    healthy_s, self.last_fault = await self._run_once()
                except OSError as error:
                    healthy_s, self.last_fault = 0.0, f"it could not be started: {error}"
                if self._stopping:
                    return
                wait = backoff.after(healthy_s)
                self.restarts += 1
                self._enter("waiting")
                log.warning(
                    "%s %s has ended: %s; it starts again in %.1f s",
                    self._kind,
                    self._config.name,
                    self.last_fault,
                    wait,
                )
                await anyio.sleep(wait)
        finally:
            self._enter("stopped")
            if self._config.remove_directory:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(shutil.rmtree, self.directory, True)

    async def drain(self, deadline_s: float) -> None:
        """Let the worker end when its sessions have; :meth:`run` returns after it. Never waits."""
        self._stopping = True
        if self._process is not None:
            self._enter("draining")
            await self.tell(Drain(deadline_s))

    async def tell(self, request: Request) -> None:
        """Send something to the worker, if there is one that takes it."""
        process = self._process
        if process is None:
            return
        writer = FrameWriter(_REPORT_BYTES)
        writer.put(request)
        try:
            await process.stdin.send(bytes(writer.take()))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return

    async def _run_once(self) -> tuple[float, str]:
        """One life of a worker: how long it was ready, and why it ended."""
        self._began = anyio.current_time()
        watch = Watch(self._rules, self._began)
        if self._config.remove_directory:
            await anyio.to_thread.run_sync(make_private, self.directory)
        environment = await anyio.to_thread.run_sync(
            worker_environment, os.environ, self.directory, self._config.environment
        )
        # Starting takes milliseconds; a cancel in the middle would lose the process.
        with anyio.CancelScope(shield=True):
            process = await start_child(
                # The name is for whoever lists processes.
                [sys.executable, "-m", self._module, self._config.name],
                environment,
                self._pass_fds,
            )
        self._process = process
        self._enter("starting")
        fault = "the supervisor has stopped"
        try:
            fault = await self._attend(process, watch)
        finally:
            self._process = None
            self.sessions = 0
            self.reading = Reading()
            with anyio.CancelScope(shield=True):
                hung = watch.fault(anyio.current_time()) != ""
                status = await self._end(process, 0.0 if hung else self._rules.stop_s)
                for path in socket_paths(self.directory):
                    await anyio.Path(path).unlink(missing_ok=True)
        return watch.healthy_s(anyio.current_time()), fault or _exit_reason(status)

    async def _attend(self, process: ChildProcess, watch: Watch) -> str:
        """Watch until the worker ends or must; returns the fault, empty when it just ended."""
        writer = FrameWriter(_REPORT_BYTES * 16)
        writer.put(self._config)
        reader = FrameReader(_REPORT_BYTES)
        try:
            with anyio.fail_after(self._rules.ready_s):
                await process.stdin.send(bytes(writer.take()))
            while True:
                data = await self._read(process.stdout, watch)
                now = anyio.current_time()
                for payload in reader.feed(data):
                    for report in _REPORTS.decode(payload):
                        self._hear(report)
                        watch.receive(report, now)
                if fault := watch.fault(now):
                    return fault
        except (anyio.EndOfStream, anyio.BrokenResourceError):
            return ""
        except (LaneBroken, msgspec.MsgspecError) as error:
            return f"its reports can't be understood: {error}"
        except TimeoutError:
            return "it did not take its configuration"

    async def _read(self, reports: SocketStream, watch: Watch) -> bytes:
        with anyio.CancelScope(deadline=watch.deadline):
            return await reports.receive()
        # This process may have been the one that was stopped: look once more at what has come.
        with anyio.move_on_after(0.05):
            return await reports.receive()
        return b""

    def _hear(self, report: Report) -> None:
        match report:
            case Started():
                if self.state == "starting":
                    self.start_s = anyio.current_time() - self._began
                    self._enter("ready")
                log.info("%s %s is ready for %d", self._kind, self._config.name, report.capacity)
            case Beat():
                self.sessions = report.sessions
                self.reading = report.reading
            case StartFailed():
                pass

    async def _end(self, process: ChildProcess, patience_s: float) -> int:
        """Ask it to end by closing its input, then kill it; returns its exit status."""
        await process.stdin.aclose()
        with anyio.move_on_after(patience_s):
            await process.wait()
        if process.returncode is None:
            process.kill()
        status = await process.wait()
        await process.aclose()
        return status


def _exit_reason(status: int) -> str:
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"
