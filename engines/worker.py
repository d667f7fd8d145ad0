"""The worker process: one backend, its sockets, its heartbeat.

Started as ``python -m duologue.engines.worker`` with a configuration on standard input (see
:mod:`duologue.engines.lifeline`). It ends when standard input does, so it never outlives its
parent; when it can't end in order it exits without.
"""

import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.engines.backend import Backend
from duologue.engines.engine import Command
from duologue.engines.frames import FrameReader, FrameWriter
from duologue.engines.lifeline import (
    Beat,
    Drain,
    Report,
    Request,
    Started,
    StartFailed,
    WorkerConfig,
)
from duologue.engines.log_lines import Discretion, JsonFormatter
from duologue.engines.places import Places, listen
from duologue.engines.pulse import Pulse
from duologue.engines.settled_heap import settle_heap
from duologue.engines.tracing import AnswerSpans, create_tracer
from duologue.engines.worker_directory import socket_paths

COMMANDS_QUEUED = 128
"""Commands that may wait for the backend: few, as a cancel waits behind them."""

FORCED_EXIT = 70
"""Exit status when an orderly end took too long (EX_SOFTWARE, sysexits.h)."""

_LIFELINE_BYTES = 16 * 2**20

log = logging.getLogger("duologue.engines.worker")

BackendFactory = Callable[[bytes, Pulse], Backend]


def _scripted(options: bytes, pulse: Pulse) -> Backend:
    from duologue.engines.scripted import create_backend

    return create_backend(options, pulse)


def _cascade(options: bytes, pulse: Pulse) -> Backend:
    from duologue.engines.cascade import create_backend

    return create_backend(options, pulse)


def _scripted_duplex(options: bytes, pulse: Pulse) -> Backend:
    from duologue.engines.duplex_script import create_backend

    return create_backend(options, pulse)


def _moshi(options: bytes, pulse: Pulse) -> Backend:
    from duologue.engines.duplex_moshi import create_backend

    return create_backend(options, pulse)


def _recognizer(options: bytes, pulse: Pulse) -> Backend:
    from duologue.engines.recognizer_backend import create_backend

    return create_backend(options, pulse)


def _voices(options: bytes, pulse: Pulse) -> Backend:
    from duologue.engines.voice_backend import create_backend

    return create_backend(options, pulse)


BACKENDS: Mapping[str, BackendFactory] = {
    "cascade": _cascade,
    "moshi": _moshi,
    "recognizer": _recognizer,
    "scripted": _scripted,
    "voices": _voices,
    "scripted-duplex": _scripted_duplex,
}
"""Backends by name. Each entry imports its module when it is called, and only then."""


class Lifeline:
    """The worker's end of its standard streams."""

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._reader = FrameReader(_LIFELINE_BYTES)
        self._payloads: list[memoryview] = []
        self._decoder = msgspec.msgpack.Decoder(list[Request])
        self._ended = threading.Event()
        os.set_blocking(sink, False)

    def read_config(self) -> WorkerConfig:
        """Wait for the configuration. Raises EOFError when the parent went without sending it."""
        while not self._payloads:
            data = os.read(self._source, 65536)
            if not data:
                raise EOFError("no configuration on standard input")
            self._payloads = self._reader.feed(data)
        return msgspec.msgpack.decode(self._payloads.pop(0), type=list[WorkerConfig])[0]

    def report(self, report: Report) -> None:
        """Tell the supervisor; never waits. What finds the pipe full or closed is dropped."""
        writer = FrameWriter(_LIFELINE_BYTES)
        writer.put(report)
        with suppress(BlockingIOError, BrokenPipeError):
            os.write(self._sink, writer.take())

    async def read_requests(self) -> AsyncIterator[Request]:
        """What the supervisor asks for; ends when the parent is gone or closes the stream."""
        while True:
            for payload in self._payloads:
                yield self._decoder.decode(payload)[0]
            await anyio.wait_readable(self._source)
            data = os.read(self._source, 65536)
            if not data:
                return
            self._payloads = self._reader.feed(data)

    def guard(self, stop_s: float, tidy: Callable[[], None]) -> None:
        """Exit `stop_s` seconds after the parent's end, even when the event loop is stuck."""

        def wait() -> None:
            hangup = select.poll()
            hangup.register(self._source, 0)
            hangup.poll()
            if not self._ended.wait(stop_s):
                tidy()
                os._exit(FORCED_EXIT)

        threading.Thread(target=wait, name="lifeline", daemon=True).start()

    def finish(self) -> None:
        """The process is ending by itself."""
        self._ended.set()


class Worker:
    """A backend between its start and its end."""

    def __init__(self, config: WorkerConfig, lifeline: Lifeline) -> None:
        self._config = config
        self._lifeline = lifeline
        self._stop = anyio.Event()

    async def run(self) -> None:
        """Load, warm up, serve, end in order. An exception means the worker failed."""
        pulse = Pulse()
        tracer = create_tracer(os.environ, {"duologue.worker": self._config.name})
        try:
            await self._run(pulse, AnswerSpans(tracer, time.time_ns) if tracer else None)
        finally:
            if tracer is not None:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(tracer.close)

    async def _run(self, pulse: Pulse, spans: AnswerSpans | None) -> None:
        backend = BACKENDS[self._config.backend](self._config.options, pulse)
        send, receive = anyio.create_memory_object_stream[Command](COMMANDS_QUEUED)
        places = Places(
            send,
            limits=self._config.limits,
            retry_after_s=self._config.retry_after_s,
            batch_limit=self._config.batch_limit,
            spans=spans,
        )
        async with anyio.create_task_group() as watching:
            watching.start_soon(self._obey, places)
            watching.start_soon(self._stop_on_signal)
            async with anyio.create_task_group() as group, send:
                if await self._started(group, backend, receive, places):
                    settle_heap()
                    places.open(backend.spec, backend.capacity)
                    await self._serve(places, pulse, backend.capacity)
                # The commands end here, and the backend with them; this is its deadline.
                group.cancel_scope.deadline = anyio.current_time() + self._config.stop_s / 2
                send.close()
            watching.cancel_scope.cancel()

    async def _started(
        self,
        group: anyio.abc.TaskGroup,
        backend: Backend,
        commands: MemoryObjectReceiveStream[Command],
        places: Places,
    ) -> bool:
        """Load and warm the backend; false when the worker was told to stop meanwhile."""
        async with anyio.create_task_group() as loading:

            async def give_up() -> None:
                await self._stop.wait()
                group.cancel_scope.cancel()

            loading.start_soon(give_up)
            await group.start(self._run_backend, backend, commands, places)
            loading.cancel_scope.cancel()
        return not self._stop.is_set()

    async def _obey(self, places: Places) -> None:
        """Drain when asked to; stop when the supervisor's stream ends."""
        async with anyio.create_task_group() as group:
            async for request in self._lifeline.read_requests():
                if isinstance(request, Drain):
                    group.start_soon(self._drain, places, request.deadline_s)
            self._stop.set()

    async def _drain(self, places: Places, deadline_s: float) -> None:
        with anyio.move_on_after(deadline_s):
            await places.drain()
        self._stop.set()

    async def _stop_on_signal(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                self._stop.set()
                return

    async def _run_backend(
        self,
        backend: Backend,
        commands: MemoryObjectReceiveStream[Command],
        places: Places,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        async with commands:
            await backend.run(commands, places.emit, task_status=task_status)
        if not self._stop.is_set():
            raise RuntimeError("the backend ended by itself")

    async def _serve(self, places: Places, pulse: Pulse, capacity: int) -> None:
        async with listen(Path(self._config.directory), places), anyio.create_task_group() as group:
            group.start_soon(self._beat, places, pulse)
            self._lifeline.report(Started(capacity))
            log.info("ready for %d sessions", capacity)
            await self._stop.wait()
            group.cancel_scope.cancel()

    async def _beat(self, places: Places, pulse: Pulse) -> None:
        while True:
            reading = pulse.reading(time.monotonic_ns())
            self._lifeline.report(Beat(places.taken, reading))
            await anyio.sleep(self._config.heartbeat_s)


def take_standard_streams() -> Lifeline:
    """Keep standard input and output for the supervisor; what libraries print goes to stderr."""
    source = os.dup(0)
    sink = os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return Lifeline(source, sink)


def main() -> int:
    """Run a worker; the exit status is 0 after an orderly end."""
    # Ctrl-C and a terminal's end reach the whole process group; the supervisor decides when this
    # process ends.
    for one in (signal.SIGINT, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    lifeline = take_standard_streams()
    config = lifeline.read_config()
    log_to_stderr(config)
    # One line for every request to the language model's own server says nothing to an operator.
    logging.getLogger("httpx").setLevel(logging.WARNING)

    lifeline.guard(config.stop_s, partial(tidy, config))

    async def run() -> None:
        await Worker(config, lifeline).run()

    try:
        anyio.run(run, backend_options={"use_uvloop": True})
    except Exception as error:
        log.exception("the worker failed")
        lifeline.report(StartFailed(_reason(error)))
        return 1
    finally:
        lifeline.finish()
        tidy(config)
    return 0


def log_to_stderr(config: WorkerConfig, role: str = "worker") -> None:
    """Lines that say which process wrote them."""
    handler = logging.StreamHandler(sys.stderr)
    if config.log_format == "json":
        handler.setFormatter(JsonFormatter({role: config.name, "pid": str(os.getpid())}))
    else:
        line = f"%(asctime)s {role} {config.name}[{os.getpid()}] %(levelname)s %(message)s"
        handler.setFormatter(logging.Formatter(line))
    handler.addFilter(Discretion())
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])


def tidy(config: WorkerConfig) -> None:
    """Leave no file. The supervisor does it too, but may be gone."""
    directory = Path(config.directory)
    with suppress(OSError):
        for path in socket_paths(directory):
            path.unlink(missing_ok=True)
        if config.remove_directory:
            directory.rmdir()


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
