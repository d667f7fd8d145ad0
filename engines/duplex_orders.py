"""What changes a frame-locked model's slots, between its ticks."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

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
    InterruptDuplex,
    ParkDuplex,
    ResetDuplex,
    ResumeDuplex,
    TextForced,
)
from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.duplex_model import DuplexInvalid, DuplexModel, Prompt
from duologue.engines.duplex_session import DuplexSession, DuplexState
from duologue.engines.engine import Command, EngineFull
from duologue.engines.lockstep import Lockstep, LockstepError
from duologue.engines.model_thread import Caller
from duologue.engines.tick_scheduler import TickScheduler
from duologue.models.moshi.moshi_config import SamplingChoice

Saved = TypeVar("Saved")

Order = Callable[[], Awaitable[None]]


class DuplexOrders(Generic[Saved]):
    """A model's sessions, and orders for them. One is carried out at a time, and no tick runs
    meanwhile. ``seated``: the sessions that have a slot, by its number."""

    def __init__(
        self,
        model: DuplexModel[Saved],
        scheduler: TickScheduler[FrameHeard],
        limits: DuplexLimits,
        thread: Caller,
        clock: Callable[[], float],
        say: Callable[[DuplexOutput], None],
    ) -> None:
        self.model = model
        self.scheduler = scheduler
        self.lockstep = Lockstep(model.stepper)
        self.sessions: dict[str, DuplexSession[Saved]] = {}
        self.seated: dict[int, DuplexSession[Saved]] = {}
        self._limits = limits
        self._thread = thread
        self._clock = clock
        self._say = say

    def order_for(
        self, session: DuplexSession[Saved], command: Command | DuplexCommand
    ) -> Order | None:
        """What the command asks for; ``None`` for those of engines that take turns."""
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
                return partial(self._reset, session, command)
            case ParkDuplex():
                return partial(self.park, session)
            case ResumeDuplex():
                return partial(self.resume, session)
            case _:
                return None

    def after(self, session: DuplexSession[Saved]) -> None:
        """Tell what is through."""
        session.tell_forced()
        if session.announce and not self.lockstep.is_prompting(session.slot):
            self._announce(session)

    async def close(self, session: DuplexSession[Saved]) -> None:
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
        lockstep = self.lockstep
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
        self.seated[slot] = session

    def _vacate(self, session: DuplexSession[Saved]) -> None:
        self.lockstep.leave(session.slot)
        self._unseat(session)

    def _unseat(self, session: DuplexSession[Saved]) -> None:
        del self.seated[session.slot]
        session.slot = -1
        self.scheduler.leave(session.name)

    def _announce(self, session: DuplexSession[Saved]) -> None:
        session.announce = False
        if session.state is not DuplexState.CLOSED:
            session.state = DuplexState.RUNNING
            self._say(DuplexBegun(session=session.name, tick=session.tick))

    async def _fork(self, session: DuplexSession[Saved], command: ForkDuplex) -> None:
        source = self.sessions.get(command.source)
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
            self.lockstep.fork(source.slot, slot, choice)
        else:
            self.lockstep.wake(slot, replace(source.resting, choice=choice))
            self.model.stepper.choose(slot, choice)

    async def _force(self, session: DuplexSession[Saved], command: ForceText) -> None:
        if session.state is DuplexState.PARKED:
            await self.resume(session)
        if session.state is not DuplexState.RUNNING:
            session.fail("invalid_value", "the session is not running", command.reference)
            return
        try:
            if len(command.text) > FORCED_TEXT_CHARACTERS:
                raise DuplexInvalid(f"more than {FORCED_TEXT_CHARACTERS} characters")
            frames = await self._thread.call(partial(self.model.forced, command.kind, command.text))
            self.lockstep.force(session.slot, frames)
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
        self.lockstep.interrupt(session.slot)
        session.drop_forced()
        hush = self.model.hush(HUSH_TICKS)
        self.lockstep.force(session.slot, hush)
        session.force(len(hush), heard=True)

    async def _reset(self, session: DuplexSession[Saved], command: ResetDuplex) -> None:
        if session.state not in (DuplexState.RUNNING, DuplexState.PARKED):
            return
        if session.state is DuplexState.PARKED:
            await self.resume(session)
            if session.state is DuplexState.PARKED:
                return
        begin = command.begin or session.begin
        choice = session.choice
        try:
            prompt = await self._thread.call(partial(self.model.prompt, begin))
            if command.begin is not None:
                choice = self.model.choice(command.begin.choice)
        except DuplexInvalid as error:
            session.fail("invalid_value", str(error))
            return
        session.begin, session.choice = begin, choice
        session.drop_forced(all_of_it=True)
        slot, lockstep = session.slot, self.lockstep
        lockstep.leave(slot)
        await self._thread.call(partial(lockstep.seat, slot, choice, prompt.frames, prompt.name))
        session.text = self.model.text()
        session.announce = True
        if lockstep.is_prompting(slot):
            session.force(len(prompt.frames), heard=False)
        else:
            self._announce(session)

    async def park(self, session: DuplexSession[Saved], idle: bool = False) -> None:
        if session.state is DuplexState.RUNNING:
            if idle and self._clock() - session.heard_at < self._limits.idle_s:
                return
            resting = await self._thread.call(partial(self.lockstep.rest, session.slot))
            self._unseat(session)
            if session.state is not DuplexState.RUNNING:
                return  # closed meanwhile
            session.resting = resting
            session.state = DuplexState.PARKED
        if session.state is DuplexState.PARKED:
            self._say(DuplexParked(session=session.name, tick=session.tick, idle=idle))
        elif not idle:
            session.fail("invalid_value", "the session has not begun")

    async def resume(self, session: DuplexSession[Saved]) -> None:
        if session.state is DuplexState.PARKED and session.resting is not None:
            try:
                slot = self.scheduler.join(session.name)
            except EngineFull as full:
                session.resume_after = self._clock() + full.retry_after
                session.fail("engine_overloaded", str(full), "", full.retry_after)
                return
            resting = session.resting
            await self._thread.call(partial(self.lockstep.wake, slot, resting))
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
