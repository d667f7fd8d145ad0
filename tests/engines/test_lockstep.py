"""Sessions in lockstep, over a model that only remembers what it was given."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from duologue.engines.lockstep import (
    UNFORCED,
    Lockstep,
    LockstepError,
    Resting,
    StepInput,
    StepOutput,
)
from duologue.models.moshi.moshi_config import GREEDY, SamplingChoice
from duologue.models.moshi.prompting_frames import ForcedFrame

SAMPLES = 4
MODULUS = 100_003


class Diary:
    """A stepper that says back a sum over all it was ever given, so nothing goes unnoticed."""

    slots = 3
    frame_samples = SAMPLES
    row_limits = (10, 10)
    user_limits = (5,)

    def __init__(self) -> None:
        self.state = np.zeros((self.slots, 2), np.int64)  # the sum, and the frames heard
        self.seeds = [0] * self.slots
        self.steps = 0
        self.released: list[int] = []

    def step(self, inputs: StepInput) -> StepOutput:
        self.steps += 1
        heard = np.where(inputs.listening, inputs.pcm.sum(axis=1), 1000 * inputs.heard[:, 0])
        new = self.state[:, 0] * 3 + heard.astype(np.int64) + inputs.forced.sum(axis=1)
        self.state[:, 0] = np.where(inputs.active, new % MODULUS, self.state[:, 0])
        self.state[:, 1] += inputs.active
        ready = (self.state[:, 1] > 1) & inputs.listening
        pcm = np.repeat(self.state[:, :1], SAMPLES, axis=1).astype(np.float32)
        return StepOutput(pcm * inputs.listening[:, None], self.state[:, 0].copy(), ready)

    def reset(self, slot: int, choice: SamplingChoice) -> None:
        self.state[slot] = 0
        self.choose(slot, choice)

    def release(self, slot: int) -> None:
        self.released.append(slot)

    def choose(self, slot: int, choice: SamplingChoice) -> None:
        self.seeds[slot] = choice.seed

    def copy(self, source: int, target: int) -> None:
        self.state[target] = self.state[source]

    def save(self, slot: int) -> NDArray[np.int64]:
        return self.state[slot].copy()

    def restore(self, slot: int, saved: NDArray[np.int64]) -> None:
        self.state[slot] = saved


def sound(value: float) -> NDArray[np.float32]:
    return np.full(SAMPLES, value, np.float32)


def after(before: float, value: float = 0, forced: int = 2 * UNFORCED) -> float:
    """What the diary says next when it is told this."""
    return (3 * before + SAMPLES * value + forced) % MODULUS


def told(value: int) -> ForcedFrame:
    return ForcedFrame((value, UNFORCED))


def prompted(value: int) -> ForcedFrame:
    return ForcedFrame((value, UNFORCED), heard=(1,))


Engine = Lockstep[NDArray[np.int64]]


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def lockstep(diary: Diary) -> Engine:
    return Lockstep(diary)


def test_every_session_gets_a_frame_for_a_frame(lockstep: Engine) -> None:
    lockstep.seat(0, GREEDY)
    lockstep.seat(2, GREEDY)
    first = lockstep.step({0: sound(1), 2: sound(2)})
    assert first.keys() == {0, 2}
    assert (first[0].text, first[2].text) == (None, None)
    assert first[0].pcm[0] == after(0, 1)
    assert first[2].pcm[0] == after(0, 2)
    second = lockstep.step({0: sound(5), 2: None})
    assert second[0].text == after(after(0, 1), 5)
    assert second[2].text == after(after(0, 2))


def test_who_is_not_in_a_step_stays_where_he_is(lockstep: Engine, diary: Diary) -> None:
    lockstep.seat(0, GREEDY)
    lockstep.seat(1, GREEDY)
    lockstep.step({0: sound(1)})
    assert diary.state[1].tolist() == [0, 0]


def test_without_sessions_the_model_rests(lockstep: Engine, diary: Diary) -> None:
    assert lockstep.step({}) == {}
    assert diary.steps == 0


def test_a_slot_is_taken_once_and_free_at_once(lockstep: Engine) -> None:
    lockstep.seat(1, GREEDY)
    for slot in (1, 3, -1):
        with pytest.raises(LockstepError, match="not free"):
            lockstep.seat(slot, GREEDY)
    with pytest.raises(LockstepError, match="not free"):
        lockstep.fork(1, 1)
    lockstep.leave(1)
    lockstep.seat(1, GREEDY)
    assert len(lockstep) == 1


def test_nobody_is_found_in_a_free_slot(lockstep: Engine) -> None:
    calls: list[Callable[[int], object]] = [
        lockstep.leave,
        lockstep.reset,
        lockstep.rest,
        lockstep.interrupt,
        lockstep.is_prompting,
        lambda slot: lockstep.step({slot: None}),
        lambda slot: lockstep.fork(slot, 2),
        lambda slot: lockstep.force(slot, []),
    ]
    for call in calls:
        with pytest.raises(LockstepError, match="nobody is in slot 1"):
            call(1)


def test_a_prompt_comes_before_listening(lockstep: Engine) -> None:
    lockstep.seat(0, GREEDY, [prompted(5), prompted(6)])
    assert lockstep.prompting == 1
    assert lockstep.step({}) == {}
    spoken = lockstep.step({0: sound(1)})[0]
    assert spoken.text is None
    assert not spoken.pcm.any()
    assert not lockstep.is_prompting(0)
    expected = after(after(after(0, 250, 5 + UNFORCED), 250, 6 + UNFORCED), 1)
    assert lockstep.step({0: sound(1)})[0].text == expected


def test_prompts_go_on_between_ticks_while_others_stand_still(
    lockstep: Engine, diary: Diary
) -> None:
    lockstep.seat(0, GREEDY)
    lockstep.seat(1, GREEDY, [prompted(5)] * 3)
    for _ in range(4):
        lockstep.step({})
    assert diary.steps == 3
    assert diary.state[:, 1].tolist() == [0, 3, 0]


def test_prompts_can_be_made_to_wait(lockstep: Engine, diary: Diary) -> None:
    lockstep.seat(0, GREEDY)
    lockstep.seat(1, GREEDY, [prompted(5)])
    lockstep.step({0: None}, prompts=False)
    assert diary.state[:, 1].tolist() == [1, 0, 0]


def test_a_named_prompt_is_worked_through_once(lockstep: Engine, diary: Diary) -> None:
    prompt = [prompted(5), prompted(6)]
    lockstep.seat(0, SamplingChoice(seed=1), prompt, "butler")
    lockstep.step({})
    lockstep.step({})
    ended = diary.state[0].copy()
    lockstep.step({0: sound(3)})
    lockstep.seat(1, SamplingChoice(seed=2), prompt, "butler")
    assert lockstep.prompting == 0
    assert (diary.state[1] == ended).all()
    assert diary.seeds[:2] == [1, 2]


def test_the_prompt_used_longest_ago_is_forgotten(diary: Diary) -> None:
    lockstep = Lockstep(diary, prompts=2)
    for name in ("one", "two", "one", "three"):
        lockstep.seat(0, GREEDY, [prompted(1)], name)
        lockstep.step({})
        lockstep.leave(0)
    for slot, (name, prompting) in enumerate({"one": 0, "three": 0, "two": 1}.items()):
        lockstep.seat(slot, GREEDY, [prompted(1)], name)
        assert lockstep.prompting == prompting


def test_no_prompt_is_kept_where_none_may_be(diary: Diary) -> None:
    lockstep = Lockstep(diary, prompts=0)
    lockstep.seat(0, GREEDY, [prompted(1)], "one")
    lockstep.step({})
    lockstep.seat(1, GREEDY, [prompted(1)], "one")
    assert lockstep.prompting == 1


def test_what_is_forced_is_told_while_listening(lockstep: Engine) -> None:
    lockstep.seat(0, GREEDY, [prompted(1)])
    lockstep.force(0, [told(4)])
    lockstep.step({})
    assert lockstep.prompting == 0
    expected = after(after(0, 250, 1 + UNFORCED), 7, 4 + UNFORCED)
    assert lockstep.step({0: sound(7)})[0].text == expected


def test_an_interruption_drops_what_is_forced_but_not_a_prompt(lockstep: Engine) -> None:
    lockstep.seat(0, GREEDY, [prompted(1)] * 2)
    lockstep.force(0, [told(4)] * 5)
    lockstep.interrupt(0)
    assert lockstep.prompting == 1
    lockstep.step({})
    lockstep.step({})
    before = lockstep.step({0: None})[0].pcm[0]
    assert lockstep.step({0: None})[0].pcm[0] == after(before)


@pytest.mark.parametrize(
    "frame",
    [
        ForcedFrame((1,)),
        ForcedFrame((1, 2, 3)),
        ForcedFrame((1, 2), heard=(1, 2)),
        ForcedFrame((10, 2)),
        ForcedFrame((1, -3)),
        ForcedFrame((1, 2), heard=(5,)),
        ForcedFrame((1, 2), heard=(-1,)),
    ],
)
def test_a_frame_that_the_model_can_not_take_is_refused(
    frame: ForcedFrame, lockstep: Engine
) -> None:
    with pytest.raises(LockstepError, match="token"):
        lockstep.seat(0, GREEDY, [frame])
    assert len(lockstep) == 0


@pytest.mark.parametrize("samples", [0, SAMPLES - 1, SAMPLES + 1])
def test_one_bad_frame_of_sound_takes_nothing_from_the_others(
    samples: int, lockstep: Engine, diary: Diary
) -> None:
    lockstep.seat(0, GREEDY)
    lockstep.seat(1, GREEDY)
    lockstep.force(0, [told(4)])
    with pytest.raises(LockstepError, match="a frame of"):
        lockstep.step({0: sound(1), 1: np.zeros(samples, np.float32)})
    assert diary.steps == 0
    assert lockstep.step({0: sound(1)})[0].pcm[0] == after(0, 1, 4 + UNFORCED)


def test_only_so_much_is_forced(diary: Diary) -> None:
    lockstep = Lockstep(diary, script_frames=3)
    lockstep.seat(0, GREEDY, [prompted(1)] * 2)
    lockstep.force(0, [told(1)])
    with pytest.raises(LockstepError, match="4 frames are forced"):
        lockstep.force(0, [told(1)])


def test_a_reset_session_is_as_new(lockstep: Engine) -> None:
    lockstep.seat(0, GREEDY)
    first = lockstep.step({0: sound(3)})[0].pcm[0]
    lockstep.force(0, [told(1)])
    lockstep.reset(0)
    assert lockstep.step({0: sound(3)})[0].pcm[0] == first


def test_a_fork_takes_past_and_script_along(lockstep: Engine, diary: Diary) -> None:
    lockstep.seat(0, SamplingChoice(seed=4))
    lockstep.step({0: sound(3)})
    lockstep.force(0, [told(9)])
    lockstep.fork(0, 2)
    for _ in range(3):
        spoken = lockstep.step({0: sound(1), 2: sound(1)})
        assert spoken[0].text == spoken[2].text
    assert diary.seeds == [4, 0, 4]
    spoken = lockstep.step({0: sound(1), 2: sound(2)})
    assert spoken[0].text != spoken[2].text


def test_a_fork_may_choose_otherwise(lockstep: Engine, diary: Diary) -> None:
    lockstep.seat(0, SamplingChoice(seed=4))
    lockstep.fork(0, 1, SamplingChoice(seed=5))
    assert diary.seeds[:2] == [4, 5]


def test_a_session_rests_and_goes_on_in_another_slot(lockstep: Engine) -> None:
    lockstep.seat(0, GREEDY)
    before = lockstep.step({0: sound(3)})[0].pcm[0]
    lockstep.force(0, [told(8)])
    resting = lockstep.rest(0)
    assert len(lockstep) == 0
    lockstep.seat(0, GREEDY)
    lockstep.step({0: sound(5)})
    lockstep.wake(2, resting)
    assert lockstep.step({2: sound(2)})[2].text == after(before, 2, 8 + UNFORCED)


_ACTIONS = ["seat", "leave", "rest", "wake", "fork", "reset", "step"]


@given(
    st.lists(
        st.tuples(st.sampled_from(_ACTIONS), st.integers(0, 2), st.integers(0, 2)), max_size=60
    )
)
def test_whatever_is_asked_every_session_keeps_its_own_past(
    actions: list[tuple[str, int, int]],
) -> None:
    lockstep, pasts = Lockstep(Diary()), dict[int, float]()
    resting: list[tuple[Resting[NDArray[np.int64]], float]] = []
    for action, slot, other in actions:
        try:
            match action:
                case "seat":
                    lockstep.seat(slot, GREEDY)
                    pasts[slot] = 0
                case "leave":
                    lockstep.leave(slot)
                    del pasts[slot]
                case "rest":
                    resting.append((lockstep.rest(slot), pasts[slot]))
                    del pasts[slot]
                case "wake" if resting:
                    lockstep.wake(slot, resting[-1][0])
                    pasts[slot] = resting.pop()[1]
                case "fork":
                    lockstep.fork(slot, other)
                    pasts[other] = pasts[slot]
                case "reset":
                    lockstep.reset(slot)
                    pasts[slot] = 0
                case "step":
                    said = lockstep.step({slot: sound(slot), other: sound(other)})
                    for place in {slot, other}:
                        pasts[place] = after(pasts[place], place)
                        assert said[place].pcm[0] == pasts[place]
        except LockstepError:
            pass
        assert len(lockstep) == len(pasts)
