"""A scripted frame-locked model behind the sockets."""

import math
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

import anyio
import pytest

from duologue.engines.duplex import (
    HUSH_TICKS,
    BeginDuplex,
    DuplexBegun,
    DuplexFailed,
    DuplexParked,
    DuplexResumed,
    ForceText,
    FrameHeard,
    FrameSpoken,
    InterruptDuplex,
    ParkDuplex,
    ResetDuplex,
    ResumeDuplex,
    TextForced,
)
from duologue.engines.duplex_backend import DuplexBackend
from duologue.engines.duplex_limits import DuplexLimits
from duologue.engines.duplex_script import DuplexScriptOptions, EchoModel
from duologue.engines.duplex_stream import DuplexRefused
from duologue.engines.engine import EngineFull
from duologue.engines.in_process import open_in_process
from duologue.engines.pulse import Pulse
from tests.patience import PATIENCE_S
from tests.talker import PERIOD_S, Clock, Here, Setting, Talker, level, setting

pytestmark = pytest.mark.anyio

T = TypeVar("T")


def echo(**limits: float) -> AbstractAsyncContextManager[Setting]:
    options = DuplexScriptOptions(
        text="one two", word_ticks=2, limits=DuplexLimits(**{"slots": 4, **limits})
    )
    return setting(EchoModel(options), options.limits)


async def test_a_session_hears_itself_a_frame_late_and_reads_what_is_said() -> None:
    async with echo() as here:
        talker = await here.open()
        said = [await talker.talk() for _ in range(5)]
        assert [one.tick for one in said] == [0, 1, 2, 3, 4]
        assert [one.heard for one in said] == [0, 1, 2, 3, 4]
        assert [level(one.pcm) for one in said] == [0, 100, 101, 102, 103]
        assert [one.text for one in said] == [" one", "", " two", "", " one"]


async def test_a_frame_that_is_late_is_silence_and_counted() -> None:
    async with echo() as here:
        slow, quick = await here.open("slow"), await here.open("quick")
        slow.hear()
        assert (await quick.talk()).tick == 0
        assert (await slow.expect(FrameSpoken)).tick == 0
        here.clock.now += PERIOD_S + 0.05
        assert (await quick.talk()).tick == 1
        late = await slow.expect(FrameSpoken)
        assert (late.tick, late.heard) == (1, -1)
        assert here.backend.scheduler.totals.silent >= 1


async def test_a_frame_wakes_the_model_only_when_its_tick_is_sooner() -> None:
    async with echo() as here:
        first, *_ = [await here.open(name) for name in ("a", "b", "c")]
        backend = here.backend
        _, second, third = backend.orders.sessions.values()
        first.hear()
        while backend._sleeps_until == math.inf:
            await anyio.lowlevel.checkpoint()
        # From here on nothing else has a turn.
        wake = backend._wake
        frame = FrameHeard(session="", sequence=0, pcm=bytes(3840))
        backend._hear(second, frame)
        assert not wake.is_set(), "it joins the tick that the first one waits for"
        backend._hear(third, frame)
        assert wake.is_set(), "nobody is waited for any more"


async def test_a_frame_of_another_length_is_told_and_harms_nothing() -> None:
    async with echo() as here:
        talker = await here.open()
        talker.stream.send(FrameHeard(session="", sequence=7, pcm=b"12"))
        assert (await talker.expect(DuplexFailed)).code == "invalid_value"
        assert (await talker.talk()).tick == 0


async def test_who_does_not_fit_is_told_when_to_come_again() -> None:
    async with echo(slots=2, parked=1, retry_after_s=7.0) as here:
        first, _ = await here.open("a"), await here.open("b")
        with pytest.raises(EngineFull) as told:
            await here.open("c")
        assert told.value.retry_after == 7.0
        await first.stream.aclose()
        assert await here.open("c")


async def test_a_model_too_slow_for_one_session_does_not_start() -> None:
    class Slow(Here):
        async def call(self, work: Callable[[], T]) -> T:
            clock.now += 0.2
            return work()

    clock = Clock()
    options = DuplexScriptOptions()
    backend = DuplexBackend(lambda: EchoModel(options), options.limits, Slow(), Pulse(), clock)
    with pytest.raises(ExceptionGroup) as raised:
        async with open_in_process(backend):
            pass
    assert raised.group_contains(RuntimeError, match="too slow for this model")


async def test_only_so_many_are_let_in_as_a_tick_has_time_for() -> None:
    class Busy(Here):
        async def call(self, work: Callable[[], T]) -> T:
            sound = getattr(work, "args", ({},))[0]
            clock.now += 0.025 * (len(sound) if isinstance(sound, dict) else 0)
            return work()

    clock = Clock()
    options = DuplexScriptOptions(limits=DuplexLimits(slots=8, parked=0))
    backend = DuplexBackend(lambda: EchoModel(options), options.limits, Busy(), Pulse(), clock)
    async with open_in_process(backend) as engine:
        assert engine.capacity == 2


async def test_a_voice_that_is_not_there_is_refused() -> None:
    async with echo() as here:
        with pytest.raises(DuplexRefused) as refused:
            await here.duplex.open("a", BeginDuplex(session="", voice="nobody"))
        assert refused.value.code == "invalid_value"
        assert await here.open("a")


async def test_a_prompt_is_through_before_the_session_begins_and_is_kept() -> None:
    async with echo(gather_s=0) as here:
        stepper = here.backend.orders.model.stepper
        await here.open("a", "be kind")
        assert stepper.save(0).steps == len("be kind")
        again = await here.open("b", "be kind")
        assert stepper.save(1).steps == len("be kind")
        assert (await again.talk()).tick == 0


async def test_a_comment_is_said_while_the_user_is_heard() -> None:
    async with echo() as here:
        talker = await here.open()
        await talker.talk()
        talker.stream.send(ForceText(session="", reference="r", kind="commentary", text="ok"))
        said = [await talker.talk(), await talker.talk()]
        assert "".join(one.text for one in said) == "ok"
        assert [level(one.pcm) for one in said] == [100, 101]
        told = await talker.expect(TextForced)
        assert (told.reference, told.start, told.end) == ("r", 1, 3)


async def test_what_is_to_be_known_goes_in_between_two_ticks() -> None:
    async with echo() as here:
        talker = await here.open()
        await talker.talk()
        talker.stream.send(ForceText(session="", reference="r", kind="thinking", text="secret"))
        told = await talker.expect(TextForced)
        assert (told.start, told.end) == (1, 1)
        assert (await talker.talk()).text == ""


async def test_an_interrupt_drops_what_was_to_be_said_and_is_silent_for_a_while() -> None:
    async with echo() as here:
        talker = await here.open()
        await talker.talk()
        talker.stream.send(ForceText(session="", reference="r", kind="commentary", text="o" * 50))
        assert (await talker.talk()).text == "o"
        talker.stream.send(InterruptDuplex(session=""))
        told = await talker.expect(TextForced)
        assert (told.start, told.end) == (1, 2)
        said = [await talker.talk() for _ in range(HUSH_TICKS + 1)]
        assert [any(one.pcm) for one in said] == [False] * HUSH_TICKS + [True]


async def test_a_reset_forgets_and_goes_on_counting() -> None:
    async with echo() as here:
        talker = await here.open("a", "hi")
        assert (await talker.talk()).text == " one"
        await talker.talk()
        talker.stream.send(ResetDuplex(session=""))
        assert (await talker.expect(DuplexBegun)).tick == 2
        again = await talker.talk()
        assert (again.tick, again.text, any(again.pcm)) == (2, " one", False)


async def test_a_fork_is_its_parent_until_their_inputs_differ() -> None:
    async with echo() as here:
        parent = await here.open("a")
        for _ in range(3):
            await parent.talk()
        child = await here.fork(parent, "b")
        assert child.stream.tick == 3
        for _ in range(3):
            parent.hear()
            ours, theirs = await child.talk(), await parent.expect(FrameSpoken)
            assert (ours.tick, ours.pcm, ours.text) == (theirs.tick, theirs.pcm, theirs.text)
        child.sequence = 50
        for differ in (False, True):
            parent.hear()
            ours, theirs = await child.talk(), await parent.expect(FrameSpoken)
            assert (ours.pcm != theirs.pcm) is differ


async def test_a_session_that_nobody_has_can_not_be_forked() -> None:
    async with echo() as here:
        parent = await here.open("a")
        await parent.stream.aclose()
        with pytest.raises(DuplexRefused) as refused:
            await parent.stream.fork("b")
        assert refused.value.code == "unknown_session"


async def test_a_session_that_was_parked_goes_on_where_it_was() -> None:
    async with echo(slots=1) as here:
        talker = await here.open("a")
        await talker.talk()
        talker.stream.send(ParkDuplex(session=""))
        assert (await talker.expect(DuplexParked)).tick == 1
        other = await here.open("b")
        talker.stream.send(ResumeDuplex(session=""))
        assert (await talker.expect(DuplexFailed)).code == "engine_overloaded"
        await other.stream.aclose()
        while here.backend.scheduler.fits() is False:
            await anyio.lowlevel.checkpoint()
        talker.stream.send(ResumeDuplex(session=""))
        assert (await talker.expect(DuplexResumed)).tick == 1
        said = await talker.talk()
        assert (said.tick, level(said.pcm)) == (1, 100)


async def test_a_frame_resumes_a_parked_session() -> None:
    async with echo() as here:
        talker = await here.open("a")
        await talker.talk()
        talker.stream.send(ParkDuplex(session=""))
        await talker.expect(DuplexParked)
        here.clock.now += 5
        talker.hear()
        assert (await talker.expect(DuplexResumed)).tick == 1
        assert level((await talker.expect(FrameSpoken)).pcm) == 100


async def test_a_session_without_frames_is_parked() -> None:
    async with echo(idle_s=0.2) as here:
        talker = await here.open("a")
        await talker.talk()
        here.clock.now += 0.3
        while isinstance(output := await talker.stream.receive(), FrameSpoken):
            assert output.heard == -1
        assert isinstance(output, DuplexParked)
        assert output.idle


async def test_who_has_been_idle_longest_is_parked_first_and_the_others_after_it() -> None:
    async with echo(slots=3, idle_s=0.2) as here:
        talkers = [await here.open(name) for name in "abc"]
        seated = here.backend.orders.seated
        while len(seated) < len(talkers):
            await anyio.lowlevel.checkpoint()
        for talker, session in reversed(list(zip(talkers, seated.values(), strict=True))):
            here.clock.now += 0.01
            talker.hear()
            while session.heard_at < here.clock.now:
                await anyio.lowlevel.checkpoint()
        here.clock.now += 0.3
        parked: list[str] = []

        async def wait(name: str, talker: Talker) -> None:
            while not isinstance(await talker.stream.receive(), DuplexParked):
                pass
            parked.append(name)

        async with anyio.create_task_group() as waiting:
            waiting.cancel_scope.deadline = anyio.current_time() + PATIENCE_S
            for name, talker in zip("abc", talkers, strict=True):
                waiting.start_soon(wait, name, talker)
    assert parked == ["c", "b", "a"]


async def test_a_closed_session_leaves_its_slot() -> None:
    async with echo(slots=1, parked=0) as here:
        for name in "abc":
            talker = await here.open(name)
            await talker.talk()
            await talker.stream.aclose()
            with anyio.fail_after(PATIENCE_S):
                while not here.backend.scheduler.fits():
                    await anyio.lowlevel.checkpoint()
