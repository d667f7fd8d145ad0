"""A frame-locked model in a worker: its sessions' commands, its ticks, and the thread it runs on.

The event loop decides, by :mod:`duologue.engines.tick_scheduler`; the model's thread does. What
changes a slot (a session that begins, forks, is parked or leaves) is an *order*, and orders are
carried out one at a time between ticks, a tick that is due going first. Prompts move with the
ticks, and between them as long as nobody has to wait for it.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Generic, Protocol, TypeVar, cast

import anyio
import anyio.abc
import msgspec
import numpy as np
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.engines.backend import Emit
from duologue.engines.duplex import (
    FORCED_TEXT_CHARACTERS,
    HUSH_TICKS,
    BeginDuplex,
    DuplexBegun,
    DuplexCommand,
    DuplexOutput,
    DuplexParked,
    DuplexResumed,
    ForceText,
    ForkDuplex,
    FrameHeard,
    FrameSpoken,
    InterruptDuplex,
    ParkDuplex,
    ResetDuplex,
    ResumeDuplex,
    TextForced,
)
from duologue.engines.duplex_model import DuplexInvalid, DuplexModel, Prompt
from duologue.engines.duplex_session import ORDERS, DuplexSession, DuplexState
from duologue.engines.engine import (
    CloseSession,
    Command,
    EngineFull,
    EngineSpec,
    OpenSession,
)
from duologue.engines.lockstep import Lockstep, LockstepError, Spoken
from duologue.engines.pulse import Pulse
from duologue.engines.tick_report import TickReport
from duologue.engines.tick_scheduler import Step, TickRules, TickScheduler
from duologue.models.moshi.moshi_config import SamplingChoice

log = logging.getLogger("duologue.engines.worker")

Saved = TypeVar("Saved")
T = TypeVar("T")

_IDLE_CHECK_S = 1.0
"""At most; a short patience is looked after more often."""


class DuplexLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions, and with how much patience.

    ``slots``: sessions in the model at once, of which only so many are let in as a tick has time
    for. ``parked``: sessions beyond those, in host memory. ``idle_s``: without a frame for so long,
    a session is parked. ``warm_ticks``: ticks of each size before the first session. The others
    are :class:`duologue.engines.tick_scheduler.TickRules`'.
    """

    slots: int = 4
    parked: int = 16
    idle_s: float = 60.0
    lateness_s: float = 0.04
    gather_s: float = 0.01
    load: float = 0.8
    retry_after_s: float = 5.0
    warm_ticks: int = 4


class Caller(Protocol):
    """See :class:`duologue.engines.model_thread.ModelThread`."""

    async def call(self, work: Callable[[], T]) -> T: ...


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
        self._sessions: dict[str, DuplexSession[Saved]] = {}
        self._seated: dict[int, DuplexSession[Saved]] = {}
        self._orders: deque[tuple[DuplexSession[Saved], Callable[[], Awaitable[None]]]] = deque()
        self._wake = anyio.Event()
        self._say: Callable[[DuplexOutput], None] = lambda output: None
        self.model: DuplexModel[Saved]
        self._lockstep: Lockstep[Saved]
        self.scheduler: TickScheduler[FrameHeard]
        self.report = TickReport()
        self._capacity = 0

    @property
    def spec(self) -> EngineSpec:
        return self.model.spec

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
        self._pulse.gauges = lambda: self.report.gauges(len(self._seated))
        self.model = await self._thread.call(self._load)
        self._lockstep = Lockstep(self.model.stepper)
        self.scheduler = TickScheduler(self._rules())
        await self._warm_up()
        async with anyio.create_task_group() as group:
            group.start_soon(self._drive)
            group.start_soon(self._watch_idle)
            task_status.started()
            async for command in commands:
                self._take(command)
            group.cancel_scope.cancel()

    def _rules(self) -> TickRules:
        limits, spec = self._limits, self.model.spec.duplex
        if spec is None:
            raise ValueError("the model's spec has no duplex")
        return TickRules(
            period_s=spec.frame_ms / 1000,
            slots=self.model.stepper.slots,
            lateness_s=limits.lateness_s,
            gather_s=limits.gather_s,
            load=limits.load,
            retry_after_s=limits.retry_after_s,
        )

    async def _warm_up(self) -> None:
        """Run ticks of every size that a session's coming or going may make, and let in as many
        sessions as these leave time for.

        Raises RuntimeError when there is no time for one.
        """
        slots, times = self.scheduler.rules.slots, self.scheduler.times
        longest = self.scheduler.rules.longest_tick_s
        sizes = sorted({1, slots, *(2**n for n in range(slots.bit_length()) if 2**n < slots)})
        for slot in range(slots):
            await self._thread.call(partial(self._lockstep.seat, slot, SamplingChoice()))
        for size in sizes:
            sound = dict.fromkeys(range(size))
            for tick in range(self._limits.warm_ticks + 1):
                began = self._clock()
                await self._thread.call(partial(self._lockstep.step, sound))
                if tick:  # the first of a size may compile
                    times.add(size, self._clock() - began)
        for slot in range(slots):
            self._lockstep.leave(slot)
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
            self._sessions[command.session] = session
            return
        session_or_none = self._sessions.get(command.session)
        if session_or_none is None:
            return
        session = session_or_none
        if isinstance(command, FrameHeard):
            self._hear(session, command)
        elif isinstance(command, CloseSession):
            del self._sessions[command.session]
            session.state = DuplexState.CLOSED
            self._order(session, partial(self._close, session))
        elif (order := self._order_for(session, command)) is not None:
            if session.orders < ORDERS:
                self._order(session, order)
            else:
                session.fail("engine_overloaded", "too much is asked for at once", "", 1.0)

    def _order_for(
        self, session: DuplexSession[Saved], command: Command | DuplexCommand
    ) -> Callable[[], Awaitable[None]] | None:
        match command:
            case BeginDuplex():
                return partial(self._begin, session, command)
            case ForkDuplex():
                return partial(self._fork, session, command)
            case ForceText():
                return partial(self._force, session, command)
            case InterruptDuplex():
                return partial(self._interrupt, session)
            case ResetDuplex():
                return partial(self._reset, session)
            case ParkDuplex():
                return partial(self._park, session)
            case ResumeDuplex():
                return partial(self._resume, session)
            case _:
                return None  # for engines that take turns

    def _order(self, session: DuplexSession[Saved], order: Callable[[], Awaitable[None]]) -> None:
        session.orders += 1
        self._orders.append((session, order))
        self._wake.set()

    def _hear(self, session: DuplexSession[Saved], frame: FrameHeard) -> None:
        now = self._clock()
        spec = self.model.spec.duplex
        if spec is None or len(frame.pcm) != spec.frame_bytes:
            session.fail("invalid_value", f"a frame of {len(frame.pcm)} bytes")
            return
        session.heard_at = now
        if session.state is DuplexState.RUNNING:
            self.scheduler.offer(session.name, frame, now)
            self._wake.set()
        elif session.state is DuplexState.PARKED:
            session.early.append(frame)
            if not session.orders and now >= session.resume_after:
                self._order(session, partial(self._resume, session))

    # -- orders -------------------------------------------------------------------------------

    async def _close(self, session: DuplexSession[Saved]) -> None:
        if session.slot >= 0:
            self._vacate(session)

    async def _begin(self, session: DuplexSession[Saved], command: BeginDuplex) -> None:
        if session.state is not DuplexState.NEW:
            session.fail("invalid_value", "it has begun already")
            return
        model = self.model
        try:
            choice, prompt = await self._thread.call(
                lambda: (model.choice(command.choice), model.prompt(command))
            )
            await self._seat(session, choice, prompt)
        except DuplexInvalid as error:
            session.fail("invalid_value", str(error))
        except EngineFull as full:
            session.fail("engine_overloaded", str(full), "", full.retry_after)
        else:
            session.begin = command

    async def _seat(
        self, session: DuplexSession[Saved], choice: SamplingChoice, prompt: Prompt
    ) -> None:
        """A slot for the session, and its prompt. Raises EngineFull, DuplexInvalid."""
        slot = self.scheduler.join(session.name)
        lockstep = self._lockstep
        try:
            await self._thread.call(
                partial(lockstep.seat, slot, choice, prompt.frames, prompt.name)
            )
        except LockstepError as error:
            self.scheduler.leave(session.name)
            raise DuplexInvalid(str(error)) from error
        self._settle(session, slot, choice)
        session.text = self.model.text()
        if lockstep.is_prompting(slot):
            session.force(len(prompt.frames), heard=False)
            session.announce = True
            if session.state is DuplexState.NEW:
                session.state = DuplexState.PROMPTING
        else:
            self._announce(session)

    def _settle(self, session: DuplexSession[Saved], slot: int, choice: SamplingChoice) -> None:
        session.slot = slot
        session.choice = choice
        session.heard_at = self._clock()
        self._seated[slot] = session

    def _vacate(self, session: DuplexSession[Saved]) -> None:
        self._lockstep.leave(session.slot)
        self._unseat(session)

    def _unseat(self, session: DuplexSession[Saved]) -> None:
        del self._seated[session.slot]
        session.slot = -1
        self.scheduler.leave(session.name)

    def _announce(self, session: DuplexSession[Saved]) -> None:
        session.announce = False
        if session.state is not DuplexState.CLOSED:
            session.state = DuplexState.RUNNING
            self._say(DuplexBegun(session=session.name, tick=session.tick))

    async def _fork(self, session: DuplexSession[Saved], command: ForkDuplex) -> None:
        source = self._sessions.get(command.source)
        if session.state is not DuplexState.NEW:
            session.fail("invalid_value", "it has begun already")
            return
        if source is None or source.state not in (DuplexState.RUNNING, DuplexState.PARKED):
            session.fail("unknown_session", "there is no such session to fork")
            return
        choice = source.choice
        try:
            if command.choice is not None:
                choice = self.model.choice(command.choice, source.choice)
            slot = self.scheduler.join(session.name)
        except DuplexInvalid as error:
            session.fail("invalid_value", str(error))
            return
        except EngineFull as full:
            session.fail("engine_overloaded", str(full), "", full.retry_after)
            return
        await self._thread.call(partial(self._copy, source, slot, choice))
        source.copy_to(session)
        self._settle(session, slot, choice)
        self._announce(session)

    def _copy(self, source: DuplexSession[Saved], slot: int, choice: SamplingChoice) -> None:
        if source.resting is None:
            self._lockstep.fork(source.slot, slot, choice)
        else:
            self._lockstep.wake(slot, replace(source.resting, choice=choice))
            self.model.stepper.choose(slot, choice)

    async def _force(self, session: DuplexSession[Saved], command: ForceText) -> None:
        if session.state is DuplexState.PARKED:
            await self._resume(session)
        if session.state is not DuplexState.RUNNING:
            session.fail("invalid_value", "the session is not running", command.reference)
            return
        try:
            if len(command.text) > FORCED_TEXT_CHARACTERS:
                raise DuplexInvalid(f"more than {FORCED_TEXT_CHARACTERS} characters")
            frames = await self._thread.call(partial(self.model.forced, command.kind, command.text))
            self._lockstep.force(session.slot, frames)
        except (DuplexInvalid, LockstepError) as error:
            session.fail("invalid_value", str(error), command.reference)
            return
        if not frames:
            tick = session.tick
            reference = command.reference
            self._say(TextForced(session=session.name, reference=reference, start=tick, end=tick))
            return
        listening = frames[0].heard is None
        session.force(len(frames), heard=listening, reference=command.reference)

    async def _interrupt(self, session: DuplexSession[Saved]) -> None:
        if session.state is not DuplexState.RUNNING:
            return
        self._lockstep.interrupt(session.slot)
        session.drop_forced()
        hush = self.model.hush(HUSH_TICKS)
        self._lockstep.force(session.slot, hush)
        session.force(len(hush), heard=True)

    async def _reset(self, session: DuplexSession[Saved]) -> None:
        if session.state not in (DuplexState.RUNNING, DuplexState.PARKED):
            return
        if session.state is DuplexState.PARKED:
            await self._resume(session)
            if session.state is DuplexState.PARKED:
                return
        prompt = await self._thread.call(partial(self.model.prompt, session.begin))
        session.drop_forced(all_of_it=True)
        slot, lockstep = session.slot, self._lockstep
        lockstep.leave(slot)
        await self._thread.call(
            partial(lockstep.seat, slot, session.choice, prompt.frames, prompt.name)
        )
        session.text = self.model.text()
        session.announce = True
        if lockstep.is_prompting(slot):
            session.force(len(prompt.frames), heard=False)
        else:
            self._announce(session)

    async def _park(self, session: DuplexSession[Saved], idle: bool = False) -> None:
        if session.state is DuplexState.RUNNING:
            if idle and self._clock() - session.heard_at < self._limits.idle_s:
                return
            resting = await self._thread.call(partial(self._lockstep.rest, session.slot))
            self._unseat(session)
            if session.state is not DuplexState.RUNNING:
                return  # closed meanwhile
            session.resting = resting
            session.state = DuplexState.PARKED
        if session.state is DuplexState.PARKED:
            self._say(DuplexParked(session=session.name, tick=session.tick, idle=idle))
        elif not idle:
            session.fail("invalid_value", "the session has not begun")

    async def _resume(self, session: DuplexSession[Saved]) -> None:
        if session.state is DuplexState.PARKED and session.resting is not None:
            try:
                slot = self.scheduler.join(session.name)
            except EngineFull as full:
                session.resume_after = self._clock() + full.retry_after
                session.fail("engine_overloaded", str(full), "", full.retry_after)
                return
            resting = session.resting
            await self._thread.call(partial(self._lockstep.wake, slot, resting))
            self._settle(session, slot, session.choice)
            session.resting = None
            if session.state is not DuplexState.PARKED:
                return  # closed meanwhile; its close comes next
            session.state = DuplexState.RUNNING
        if session.state is not DuplexState.RUNNING:
            session.fail("invalid_value", "the session has not begun")
            return
        self._say(DuplexResumed(session=session.name, tick=session.tick))
        while session.early:
            self.scheduler.offer(session.name, session.early.popleft(), self._clock())

    async def _watch_idle(self) -> None:
        while True:
            await anyio.sleep(min(_IDLE_CHECK_S, self._limits.idle_s / 4))
            now = self._clock()
            for session in list(self._seated.values()):
                idle = now - session.heard_at >= self._limits.idle_s
                if idle and not session.orders and session.state is DuplexState.RUNNING:
                    self._order(session, partial(self._park, session, True))

    # -- ticks --------------------------------------------------------------------------------

    async def _drive(self) -> None:
        while True:
            self._wake = anyio.Event()
            if self._orders:
                session, order = self._orders.popleft()
                session.orders -= 1
                await order()
            now = self._clock()
            if steps := self.scheduler.take(now):
                await self._tick(steps)
                # Ticks that take long follow each other closely; others have turns too.
                await anyio.lowlevel.checkpoint()
                continue
            if self._orders:
                continue
            wait_s = self.scheduler.next_deadline() - now
            if self._lockstep.prompting and wait_s > self.scheduler.times.of(len(self._seated)):
                await self._prompt_step()
                continue
            with anyio.move_on_after(wait_s):
                await self._wake.wait()

    async def _tick(self, steps: tuple[Step[FrameHeard], ...]) -> None:
        began = self._clock()
        prompting = self._prompting()
        spoken = await self._thread.call(partial(_run_tick, self._lockstep, steps))
        now = self._clock()
        self.scheduler.finish(now)
        for step in steps:
            session = self._seated[step.slot]
            session.moved()
            session.tick += 1
            prompting.discard(step.slot)
            if session.state is not DuplexState.CLOSED:
                self._speak(session, step, *spoken[step.slot])
            self._after(session)
        for slot in prompting:
            self._seated[slot].moved()
            self._after(self._seated[slot])
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
        await self._thread.call(partial(self._lockstep.step, {}))
        for slot in prompting:
            self._seated[slot].moved()
            self._after(self._seated[slot])

    def _prompting(self) -> set[int]:
        return {slot for slot in self._seated if self._lockstep.is_prompting(slot)}

    def _after(self, session: DuplexSession[Saved]) -> None:
        """Tell what is through."""
        session.tell_forced()
        if session.announce and not self._lockstep.is_prompting(session.slot):
            self._announce(session)


def _run_tick(
    lockstep: Lockstep[Saved], steps: tuple[Step[FrameHeard], ...]
) -> dict[int, tuple[bytes, int | None]]:
    """PCM and token of each slot; on the model's thread."""
    spoken = lockstep.step(
        {
            step.slot: None
            if step.frame is None
            else np.frombuffer(step.frame.pcm, "<i2").astype(np.float32) * np.float32(1 / 32768)
            for step in steps
        }
    )
    return {slot: (_pcm(said), said.text) for slot, said in spoken.items()}


def _pcm(said: Spoken) -> bytes:
    scaled = np.rint(said.pcm * 32768)
    return np.clip(scaled, -32768, 32767).astype("<i2").tobytes()
