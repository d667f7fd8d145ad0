"""Frame-locked sessions in the slots of one model: a step moves any of them by a frame.

Sessions come, go, fork and rest between steps, and what one of them says depends on nothing but
its own input. Which slot is whose, and who steps when, is the business of
:mod:`duologue.engines.tick_scheduler`; nothing here knows a clock, a thread or a tensor.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from duologue.models.moshi.moshi_config import SamplingChoice
from duologue.models.moshi.prompting_frames import ForcedFrame

UNFORCED = -2
"""In a column: the model decides."""

Saved = TypeVar("Saved")


class LockstepError(ValueError):
    """A session can't have what it asks for. The text says why."""


@dataclass(frozen=True, slots=True)
class StepInput:
    """A frame for every slot; the arrays are written anew for each step.

    ``pcm``: float32 ``[slots, samples]`` in [-1, 1]. ``forced``: int64 ``[slots, rows]``, text
    and the agent's codes. ``heard``: int64 ``[slots, user codes]`` for slots that do not listen.
    ``listening``, ``active``: bool ``[slots]``.
    """

    pcm: NDArray[np.float32]
    forced: NDArray[np.int64]
    heard: NDArray[np.int64]
    listening: NDArray[np.bool_]
    active: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StepOutput:
    """``pcm``: float32 ``[slots, samples]``; ``text``: int64 ``[slots]``; ``ready``: bool
    ``[slots]``, false while a session's first frames are under way."""

    pcm: NDArray[np.float32]
    text: NDArray[np.int64]
    ready: NDArray[np.bool_]


class Stepper(Protocol[Saved]):
    """A model over a fixed number of slots. Calls block and come one at a time.

    ``row_limits``: for text and each of the agent's codes, what its tokens are below;
    ``user_limits``: likewise for the user's codes.
    """

    slots: int
    frame_samples: int
    row_limits: tuple[int, ...]
    user_limits: tuple[int, ...]

    def step(self, inputs: StepInput) -> StepOutput: ...

    def reset(self, slot: int, choice: SamplingChoice) -> None:
        """Empty a slot for a session that chooses so."""

    def release(self, slot: int) -> None:
        """The session in the slot has left; nothing of it is needed any more."""

    def choose(self, slot: int, choice: SamplingChoice) -> None:
        """Change how a session chooses, not what it is."""

    def copy(self, source: int, target: int) -> None:
        """Raises LockstepError where there is no memory for it."""

    def save(self, slot: int) -> Saved:
        """A slot's state, away from the device."""

    def restore(self, slot: int, saved: Saved) -> None:
        """Raises LockstepError where there is no memory for it."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """A session's frame. ``pcm``: float32 ``[samples]``, zeros while it is prompted. ``text``: a
    token, or ``None`` while there is none."""

    pcm: NDArray[np.float32]
    text: int | None


@dataclass(frozen=True, slots=True)
class Resting(Generic[Saved]):
    """A session without a slot."""

    saved: Saved
    choice: SamplingChoice
    script: tuple[ForcedFrame, ...]


class _Seat:
    """``prompt``: the name under which the state is kept when the script first runs out."""

    def __init__(self, choice: SamplingChoice, prompt: str | None = None) -> None:
        self.choice = choice
        self.script: deque[ForcedFrame] = deque()
        self.prompt = prompt

    @property
    def prompting(self) -> bool:
        return bool(self.script) and self.script[0].heard is not None


class Lockstep(Generic[Saved]):
    """``script_frames``: the most that may be forced. ``prompts``: how many prompts' states are
    kept; those used longest ago go first.

    Methods raise :exc:`LockstepError` for a slot that is free, and :meth:`seat`, :meth:`fork`
    and :meth:`wake` for one that is not.
    """

    def __init__(
        self, stepper: Stepper[Saved], *, script_frames: int = 3000, prompts: int = 8
    ) -> None:
        self._stepper = stepper
        self._longest = script_frames
        self._seats: dict[int, _Seat] = {}
        self._prompts: OrderedDict[str, Saved] = OrderedDict()
        self._most_prompts = prompts
        slots = stepper.slots
        self._input = StepInput(
            pcm=np.zeros((slots, stepper.frame_samples), np.float32),
            forced=np.full((slots, len(stepper.row_limits)), UNFORCED, np.int64),
            heard=np.zeros((slots, len(stepper.user_limits)), np.int64),
            listening=np.zeros(slots, np.bool_),
            active=np.zeros(slots, np.bool_),
        )

    def __len__(self) -> int:
        """Slots that are taken."""
        return len(self._seats)

    @property
    def prompting(self) -> int:
        """Sessions that are not listened to yet."""
        return sum(seat.prompting for seat in self._seats.values())

    def is_prompting(self, slot: int) -> bool:
        """Whether the slot's session is not listened to yet."""
        return self._seat(slot).prompting

    # -- between steps ------------------------------------------------------------------------

    def seat(
        self,
        slot: int,
        choice: SamplingChoice,
        prompt: Sequence[ForcedFrame] = (),
        prompt_name: str | None = None,
    ) -> None:
        """Begin a session. A prompt with a name is worked through once; whoever has one of the
        same name starts where it ended."""
        script = self._checked(prompt)
        seat = self._new_seat(slot, _Seat(choice, prompt_name if script else None))
        if prompt_name is not None and prompt_name in self._prompts:
            self._prompts.move_to_end(prompt_name)
            with self._emptied_on_error(slot):
                self._stepper.restore(slot, self._prompts[prompt_name])
            self._stepper.choose(slot, choice)
            seat.prompt = None
            return
        self._stepper.reset(slot, choice)
        seat.script.extend(script)

    def leave(self, slot: int) -> None:
        """End a session; the slot is free at once."""
        self._seat(slot)
        self._empty(slot)

    def reset(self, slot: int) -> None:
        """Forget what was said and heard; the session goes on as new, without a prompt."""
        seat = self._seat(slot)
        self._stepper.reset(slot, seat.choice)
        seat.script.clear()
        seat.prompt = None

    def fork(self, source: int, target: int, choice: SamplingChoice | None = None) -> None:
        """A second session with the same past, and the same future while its input is the same
        and it chooses alike."""
        parent = self._seat(source)
        child = self._new_seat(target, _Seat(choice or parent.choice))
        with self._emptied_on_error(target):
            self._stepper.copy(source, target)
        self._stepper.choose(target, child.choice)
        child.script.extend(parent.script)

    def force(self, slot: int, frames: Iterable[ForcedFrame]) -> None:
        """Put tokens in the session's mouth, after what is forced already."""
        seat = self._seat(slot)
        script = self._checked([*seat.script, *frames])
        seat.script = deque(script)

    def interrupt(self, slot: int) -> None:
        """Drop what is still to be forced, but not a prompt."""
        seat = self._seat(slot)
        seat.script = deque(frame for frame in seat.script if frame.heard is not None)

    def rest(self, slot: int) -> Resting[Saved]:
        """Take a session out of its slot, with all it is, in host memory."""
        seat = self._seat(slot)
        resting = Resting(self._stepper.save(slot), seat.choice, tuple(seat.script))
        self._empty(slot)
        return resting

    def wake(self, slot: int, resting: Resting[Saved]) -> None:
        """Let a session go on that rested, in any slot."""
        seat = self._new_seat(slot, _Seat(resting.choice))
        with self._emptied_on_error(slot):
            self._stepper.restore(slot, resting.saved)
        seat.script.extend(resting.script)

    # -- steps --------------------------------------------------------------------------------

    def step(
        self, sound: Mapping[int, NDArray[np.float32] | None], *, prompts: bool = True
    ) -> dict[int, Spoken]:
        """Move these slots by a frame; blocks for as long as the model takes.

        ``sound``: float32 ``[samples]`` by slot; ``None`` is silence. ``prompts``: move along all
        that are prompted; with no sound this makes a step between ticks, so that a prompt need
        not take as long as it would sound. Others stay where they are.
        """
        inputs = self._input
        inputs.active[:] = False
        inputs.listening[:] = False
        stepping = dict.fromkeys(sound)
        if prompts:
            stepping |= dict.fromkeys(slot for slot, seat in self._seats.items() if seat.prompting)
        if not stepping:
            return {}
        for slot, pcm in sound.items():
            # Before anything of the others' is used up.
            self._seat(slot)
            if pcm is not None and pcm.shape != (self._stepper.frame_samples,):
                raise LockstepError(f"a frame of {pcm.shape} samples")
        for slot in stepping:
            self._prepare(slot, self._seats[slot], sound.get(slot))
        output = self._stepper.step(inputs)
        for slot in stepping:
            seat = self._seats[slot]
            if seat.prompt is not None and not seat.prompting:
                self._keep_prompt(seat.prompt, slot)
                seat.prompt = None
        return {slot: self._spoken(slot, output) for slot in sound}

    def _prepare(self, slot: int, seat: _Seat, pcm: NDArray[np.float32] | None) -> None:
        inputs = self._input
        inputs.active[slot] = True
        inputs.pcm[slot] = 0
        forced = seat.script.popleft() if seat.script else None
        inputs.forced[slot] = UNFORCED if forced is None else forced.column
        if forced is not None and forced.heard is not None:
            inputs.heard[slot] = forced.heard
            return
        inputs.listening[slot] = True
        if pcm is not None:
            inputs.pcm[slot] = pcm

    def _spoken(self, slot: int, output: StepOutput) -> Spoken:
        text = int(output.text[slot]) if output.ready[slot] else None
        return Spoken(output.pcm[slot].copy(), text)

    # -- slots --------------------------------------------------------------------------------

    def _seat(self, slot: int) -> _Seat:
        try:
            return self._seats[slot]
        except KeyError:
            raise LockstepError(f"nobody is in slot {slot}") from None

    def _new_seat(self, slot: int, seat: _Seat) -> _Seat:
        if not 0 <= slot < self._stepper.slots or slot in self._seats:
            raise LockstepError(f"slot {slot} is not free")
        self._seats[slot] = seat
        return seat

    def _empty(self, slot: int) -> None:
        del self._seats[slot]
        self._stepper.release(slot)

    @contextmanager
    def _emptied_on_error(self, slot: int) -> Iterator[None]:
        try:
            yield
        except LockstepError:
            self._empty(slot)
            raise

    def _checked(self, frames: Sequence[ForcedFrame]) -> Sequence[ForcedFrame]:
        if len(frames) > self._longest:
            raise LockstepError(f"{len(frames)} frames are forced, {self._longest} may be")
        for frame in frames:
            _check(frame.column, UNFORCED, self._stepper.row_limits)
            if frame.heard is not None:
                _check(frame.heard, 0, self._stepper.user_limits)
        return frames

    def _keep_prompt(self, name: str, slot: int) -> None:
        if self._most_prompts < 1:
            return
        self._prompts[name] = self._stepper.save(slot)
        if len(self._prompts) > self._most_prompts:
            self._prompts.popitem(last=False)


def _check(tokens: Sequence[int], least: int, limits: Sequence[int]) -> None:
    """A token beyond its table would end a device's process, and every session with it."""
    if len(tokens) != len(limits):
        raise LockstepError(f"{len(tokens)} tokens in a frame of {len(limits)}")
    for token, limit in zip(tokens, limits, strict=True):
        if not least <= token < limit:
            raise LockstepError(f"{token} is no token from {least} to {limit - 1}")
