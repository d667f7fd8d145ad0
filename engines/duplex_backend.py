"""A frame-locked model in a worker: its sessions' commands, its ticks, and the thread it runs on.

The event loop decides, by :mod:`duologue.engines.tick_scheduler`; the model's thread does. What
changes a slot (a session that begins, forks, is parked or leaves) is an *order*, and orders are
carried out one at a time between ticks, a tick that is due going first. Prompts move with the
ticks, and between them as long as nobody has to wait for it.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar, cast

import anyio
import anyio.abc
import anyio.lowlevel
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.codecs.pcm import bytes_from_float, float_from_bytes
from duologue.engines.backend import Emit, incoming
from duologue.engines.duplex import (
    DuplexCommand,
    DuplexOutput,
    FrameHeard,
    FrameSpoken,
)
from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.duplex_model import DuplexModel
from duologue.engines.duplex_orders import DuplexOrders, Order
from duologue.engines.duplex_session import ORDERS, DuplexSession, DuplexState
from duologue.engines.engine import (
    CloseSession,
    Command,
    EngineSpec,
    OpenSession,
)
from duologue.engines.lockstep import Lockstep
from duologue.engines.model_thread import Caller
from duologue.engines.pulse import Pulse
from duologue.engines.tick_report import TickReport
from duologue.engines.tick_scheduler import Step, TickRules, TickScheduler
from duologue.engines.tick_times import TickTimes, Unhurried
from duologue.models.moshi.moshi_config import SamplingChoice

log = logging.getLogger("duologue.engines.worker")

Saved = TypeVar("Saved")

_IDLE_CHECK_S = 1.0
"""At most; a short patience is looked after more often."""
_ROUNDING_S = 0.0005
"""Half of what a loop counts in."""


class DuplexBackend(Generic[Saved]):
    """See :class:`duologue.engines.backend.Backend`."""

    def __init__(
        self,
        load: Callable[[], DuplexModel[Saved]],
        limits: DuplexLimits,
        thread: Caller,
        pulse: Pulse,
        clock: Callable[[], float],
    ) -> None:
        """`load` runs on `thread`, as everything of the model's does. `clock`: seconds."""
        self._load = load
        self._limits = limits
        self._thread = thread
        self._pulse = pulse
        self._clock = clock
        self._waiting: deque[tuple[DuplexSession[Saved], Order]] = deque()
        self._wake = anyio.Event()
        self._sleeps_until = math.inf
        self._say: Callable[[DuplexOutput], None] = lambda output: None
        self.orders: DuplexOrders[Saved]
        self.scheduler: TickScheduler[FrameHeard]
        self.report = TickReport()
        self._capacity = 0

    @property
    def spec(self) -> EngineSpec:
        return self.orders.model.spec

    @property
    def capacity(self) -> int:
        return self._capacity

    async def run(
        self,
        commands: MemoryObjectReceiveStream[Command | DuplexCommand],
        emit: Emit,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        # Places take the outputs of both kinds of engines.
        self._say = cast(Callable[[DuplexOutput], None], emit)
        self._pulse.gauges = lambda: self.report.gauges(len(self.orders.seated))
        model = await self._thread.call(self._load)
        times = Unhurried() if self._limits.slow else TickTimes()
        self.scheduler = TickScheduler(_rules(model, self._limits), times)
        self.orders = DuplexOrders(
            model, self.scheduler, self._limits, self._thread, self._clock, self._say
        )
        await self._warm_up()
        async with anyio.create_task_group() as group:
            group.start_soon(self._drive)
            group.start_soon(self._watch_idle)
            task_status.started()
            async for command in incoming(commands):
                self._take(command)
            group.cancel_scope.cancel()

    async def _warm_up(self) -> None:
        """Run ticks of every size that a session's coming or going may make, and let in as many
        sessions as these leave time for.

        Raises RuntimeError when there is no time for one.
        """
        slots, times = self.scheduler.rules.slots, self.scheduler.times
        longest = self.scheduler.rules.longest_tick_s
        sizes = sorted({1, slots, *(size for size in self.orders.model.sizes if size < slots)})
        for slot in range(slots):
            await self._thread.call(partial(self.orders.lockstep.seat, slot, SamplingChoice()))
        for size in sizes:
            sound = dict.fromkeys(range(size))
            for tick in range(self._limits.warm_ticks + 1):
                began = self._clock()
                await self._thread.call(partial(self.orders.lockstep.step, sound))
                if tick:  # the first of a size may compile
                    times.add(size, self._clock() - began)
        for slot in range(slots):
            self.orders.lockstep.leave(slot)
        fitting = sum(times.of(size) <= longest for size in range(1, slots + 1))
        if not fitting:
            raise RuntimeError(
                f"a tick of one session takes {1000 * times.of(1):.0f} ms, and there are "
                f"{1000 * longest:.0f} ms for it: this device is too slow for this model"
            )
        self._capacity = fitting + self._limits.parked
        log.info(
            "a tick takes %.1f ms for 1 session, %.1f ms for %d; %d fit into %.0f ms",
            1000 * times.of(1),
            1000 * times.of(slots),
            slots,
            fitting,
            1000 * longest,
        )

    # -- commands -----------------------------------------------------------------------------

    def _take(self, command: Command | DuplexCommand) -> None:
        if isinstance(command, OpenSession):
            session = DuplexSession[Saved](command.session, self._say, self._clock())
            self.orders.sessions[command.session] = session
            return
        session_or_none = self.orders.sessions.get(command.session)
        if session_or_none is None:
            return
        session = session_or_none
        if isinstance(command, FrameHeard):
            self._hear(session, command)
        elif isinstance(command, CloseSession):
            del self.orders.sessions[command.session]
            session.state = DuplexState.CLOSED
            self._order(session, partial(self.orders.close, session))
        elif (order := self.orders.order_for(session, command)) is not None:
            if session.orders < ORDERS:
                self._order(session, order)
            else:
                session.fail("engine_overloaded", "too much is asked for at once", "", 1.0)

    def _order(self, session: DuplexSession[Saved], order: Order) -> None:
        session.orders += 1
        self._waiting.append((session, order))
        self._wake.set()

    def _hear(self, session: DuplexSession[Saved], frame: FrameHeard) -> None:
        now = self._clock()
        spec = self.orders.model.spec.duplex
        if spec is None or len(frame.pcm) != spec.frame_bytes:
            session.fail("invalid_value", f"a frame of {len(frame.pcm)} bytes")
            return
        session.heard_at = now
        if session.state is DuplexState.RUNNING:
            self.scheduler.offer(session.name, frame, now)
            deadline = self.scheduler.next_deadline()
            if deadline < self._sleeps_until or deadline <= now:
                # Most frames join a tick that is waited for already.
                self._wake.set()
        elif session.state is DuplexState.PARKED:
            session.early.append(frame)
            if not session.orders and now >= session.resume_after:
                self._order(session, partial(self.orders.resume, session))

    async def _watch_idle(self) -> None:
        """Park one at a time, the longest idle first: each takes a part of a tick's time, and
        more where memory is to be made for it first."""
        while True:
            await anyio.sleep(min(_IDLE_CHECK_S, self._limits.idle_s / 4))
            longest = min(self._idle(), key=lambda session: session.heard_at, default=None)
            if longest is not None:
                self._order(longest, partial(self.orders.park, longest, True))

    def _idle(self) -> list[DuplexSession[Saved]]:
        since = self._clock() - self._limits.idle_s
        return [
            session
            for session in self.orders.seated.values()
            if session.heard_at <= since
            and not session.orders
            and session.state is DuplexState.RUNNING
        ]

    # -- ticks --------------------------------------------------------------------------------

    async def _drive(self) -> None:
        while True:
            self._wake = anyio.Event()
            if self._waiting:
                session, order = self._waiting.popleft()
                session.orders -= 1
                await order()
            now = self._clock()
            if steps := self.scheduler.take(now):
                await self._tick(steps)
                # Ticks that take long follow each other closely; others have turns too.
                await anyio.lowlevel.checkpoint()
                continue
            if self._waiting:
                continue
            self._sleeps_until = self.scheduler.next_deadline()
            wait_s = self._sleeps_until - now
            step_s = self.scheduler.times.of(len(self.orders.seated))
            if self.orders.lockstep.prompting and wait_s > step_s:
                await self._prompt_step()
                continue
            await self._sleep(wait_s)

    async def _sleep(self, seconds: float) -> None:
        """Until somebody wakes it, at most for so long.

        A cancel scope takes longer than most of what is done between two sleeps; and a loop that
        rounds to milliseconds would wake it a little before its time, again and again.
        """
        loop = asyncio.get_running_loop()
        timer = None
        if seconds < math.inf:
            timer = loop.call_later(max(0.0, seconds) + _ROUNDING_S, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _tick(self, steps: tuple[Step[FrameHeard], ...]) -> None:
        began = self._clock()
        prompting = self._prompting()
        spoken = await self._thread.call(partial(_run_tick, self.orders.lockstep, steps))
        now = self._clock()
        self.scheduler.finish(now)
        for step in steps:
            session = self.orders.seated[step.slot]
            session.moved()
            session.tick += 1
            prompting.discard(step.slot)
            if session.state is not DuplexState.CLOSED:
                self._speak(session, step, *spoken[step.slot])
            self.orders.after(session)
        for slot in prompting:
            self.orders.seated[slot].moved()
            self.orders.after(self.orders.seated[slot])
        self.report.add(len(steps), now - began, self.scheduler.totals)

    def _speak(
        self, session: DuplexSession[Saved], step: Step[FrameHeard], pcm: bytes, token: int | None
    ) -> None:
        text = "" if token is None or session.text is None else session.text.push(token)
        heard = -1 if step.frame is None else step.frame.sequence
        self._say(
            FrameSpoken(
                session=session.name, tick=session.tick - 1, pcm=pcm, text=text, heard=heard
            )
        )

    async def _prompt_step(self) -> None:
        prompting = self._prompting()
        await self._thread.call(partial(self.orders.lockstep.step, {}))
        for slot in prompting:
            self.orders.seated[slot].moved()
            self.orders.after(self.orders.seated[slot])

    def _prompting(self) -> set[int]:
        return {slot for slot in self.orders.seated if self.orders.lockstep.is_prompting(slot)}


def _run_tick(
    lockstep: Lockstep[Saved], steps: tuple[Step[FrameHeard], ...]
) -> dict[int, tuple[bytes, int | None]]:
    """PCM and token of each slot; on the model's thread."""
    spoken = lockstep.step(
        {
            step.slot: None if step.frame is None else float_from_bytes(step.frame.pcm)
            for step in steps
        }
    )
    return {slot: (bytes_from_float(said.pcm), said.text) for slot, said in spoken.items()}


def _rules(model: DuplexModel[Saved], limits: DuplexLimits) -> TickRules:
    spec = model.spec.duplex
    if spec is None:
        raise ValueError("the model's spec has no duplex")
    return TickRules(
        period_s=spec.frame_ms / 1000,
        slots=model.stepper.slots,
        lateness_s=limits.lateness_s,
        gather_s=limits.gather_s,
        load=limits.load,
        retry_after_s=limits.retry_after_s,
    )
