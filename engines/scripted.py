"""A backend that says known audio at known times, for tests of the protocol and of load."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.abc
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.engines.backend import Backend, Emit
from duologue.engines.engine import Command, EngineSpec, Output, Respond
from duologue.engines.performance import Performance
from duologue.engines.pulse import Pulse
from duologue.engines.script import ScriptedOptions
from duologue.engines.stamps import tone, tone_hz


class ScriptedBackend:
    """See :class:`duologue.engines.backend.Backend`; it plays :class:`ScriptedOptions`."""

    def __init__(
        self,
        options: ScriptedOptions | None = None,
        pulse: Pulse | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`clock` gives nanoseconds: stamps are due on it."""
        self._options = options or ScriptedOptions()
        self._pulse = pulse or Pulse()
        self._clock = clock
        self._emit: Emit | None = None
        self._sooner = anyio.Event()
        self.performance = Performance(self._options, self._pulse, self._say)

    @property
    def spec(self) -> EngineSpec:
        options = self._options
        return EngineSpec(
            model=options.model,
            voices=options.voices,
            default_voice=options.voices[0],
            context_tokens=options.context_tokens,
            sees=options.sees,
            shows=options.picture_rate > 0,
            description="A script; there is no model.",
            batch=options.batch,
            # A script leaves nothing to chance, so these change nothing.
            sampling=("temperature", "top_p", "seed"),
        )

    @property
    def capacity(self) -> int:
        return self._options.capacity

    @property
    def requests(self) -> deque[Respond]:
        """What was asked for, oldest first; the last thousand."""
        return self.performance.requests

    async def run(
        self,
        commands: MemoryObjectReceiveStream[Command],
        emit: Emit,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        if self._options.start_failure:
            raise RuntimeError(self._options.start_failure)
        for voice in range(len(self._options.voices)):
            tone(tone_hz(0, 0, voice), 0, 1)
        self._emit = emit
        async with anyio.create_task_group() as group:
            group.start_soon(self._keep_time)
            task_status.started()
            async for command in commands:
                before = self.performance.next_due_ns
                self.performance.take(command, self._clock())
                with suppress(anyio.WouldBlock, anyio.EndOfStream):
                    while True:
                        self.performance.take(commands.receive_nowait(), self._clock())
                if self.performance.next_due_ns != before:
                    self._sooner.set()
            group.cancel_scope.cancel()

    async def _keep_time(self) -> None:
        while True:
            with self._pulse.step():
                self.performance.fire(self._clock())
            self._sooner = anyio.Event()
            due_ns = self.performance.next_due_ns
            if due_ns is None:
                await self._sooner.wait()
                continue
            # Half a millisecond more: a timer that fires early would only have to be set again.
            wait_s = max(0, due_ns - self._clock()) / 1e9 + 0.0005
            with anyio.move_on_after(wait_s):
                await self._sooner.wait()

    def _say(self, output: Output) -> None:
        if self._emit is None:
            raise RuntimeError("the backend is not running")
        self._emit(output)


def create_backend(options: bytes, pulse: Pulse) -> Backend:
    """A scripted backend from the msgpack of :class:`ScriptedOptions`."""
    return ScriptedBackend(msgspec.msgpack.decode(options, type=ScriptedOptions), pulse)
