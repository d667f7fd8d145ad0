"""How a stream's phase follows its sound: pieces with times, steps out."""

import math
import random

import pytest
from hypothesis import given, strategies as st

from duologue.realtime.pacer import PERIOD, SLOTS, STEP
from duologue.realtime.slack import FARTHEST, KEPT, LEAST, LONGEST, WINDOW, Slack


class Stream:
    """Pieces that come every `piece` seconds, and ticks in a phase that follows them."""

    def __init__(self, phase: float, piece: float = PERIOD) -> None:
        """`phase`: seconds from when a piece should come to the tick that needs it."""
        self.slack = Slack()
        self.phase = phase
        self.piece = piece
        self.now = 0.0
        self.moves: list[tuple[float, int]] = []
        self.slack.begin(self.now)

    def run(self, lateness: list[float]) -> None:
        for late in lateness:
            self.now += self.piece
            self.slack.note(self.phase - late, self.piece, self.now + late)
            for _ in range(round(self.piece / PERIOD)):
                steps = self.slack.steps(self.now + self.phase)
                if steps:
                    self.moves.append((self.now, steps))
                    self.phase += steps * STEP


@given(st.floats(0.0, 0.0199), st.sampled_from([PERIOD, 2 * PERIOD, 4 * PERIOD]))
def test_what_comes_evenly_hardly_waits(phase: float, piece: float) -> None:
    stream = Stream(phase, piece)
    stream.run([0.0] * round(4 / piece))
    assert LEAST - 1e-9 <= stream.phase <= KEPT + STEP + 1e-9
    assert len(stream.moves) <= 1
    assert stream.slack.live


@given(
    st.floats(0.0, 0.0199),
    st.floats(0.0, 0.015),
    st.integers(0, 1000),
)
def test_most_of_what_comes_unevenly_is_in_time_or_nearly(
    phase: float, jitter: float, seed: int
) -> None:
    rng = random.Random(seed)
    lateness = [rng.uniform(0.0, jitter) for _ in range(500)]
    stream = Stream(phase)
    stream.run(lateness)
    assert stream.phase <= jitter + KEPT + STEP + 1e-9
    assert sum(late <= stream.phase - LEAST for late in lateness[-100:]) >= 60
    times = [0.0, *(moment for moment, _ in stream.moves)]
    assert all(b - a >= WINDOW - PERIOD - 1e-6 for a, b in zip(times, times[1:], strict=False))
    assert all(1 - SLOTS <= steps <= FARTHEST for _, steps in stream.moves)


@pytest.mark.parametrize("drift", [-1e-4, 1e-4])
def test_a_clock_that_drifts_is_followed(drift: float) -> None:
    stream = Stream(0.01)
    spare = []
    for _ in range(60):
        stream.run([0.0] * 500)
        stream.phase -= drift * 10
        spare.append(stream.phase)
    assert min(spare) > LEAST - 3e-3
    assert max(spare[1:]) < KEPT + 2 * STEP
    assert all(abs(steps) == 1 for _, steps in stream.moves[1:])


def test_a_few_late_pieces_move_nothing() -> None:
    stream = Stream(KEPT + STEP / 2)
    stream.run(([0.0] * 15 + [0.012]) * 100)
    assert stream.moves == []


def test_where_sooner_was_too_soon_it_is_seldom_tried_again() -> None:
    stream = Stream(0.014)
    rng = random.Random(1)
    for _ in range(200):
        # Every other second is bad.
        stream.run([0.0] * 55 + [rng.uniform(0.008, 0.012) for _ in range(55)])
    sooner = [moment for moment, steps in stream.moves if steps < 0]
    assert 1 <= len(sooner) <= 3
    assert stream.slack.patience >= 2


def test_frames_that_pile_up_are_taken_off_where_sound_is_made_as_time_passes() -> None:
    stream = Stream(0.055)
    stream.run([0.0] * 500)
    assert stream.phase <= KEPT + STEP + 1e-9
    assert len(stream.moves) == math.ceil((0.055 - KEPT - STEP) / ((SLOTS - 1) * STEP))


def test_what_is_made_ahead_says_nothing_of_the_phase() -> None:
    slack = Slack()
    slack.begin(0.0)
    now, ahead = 0.0, 0.03
    for _ in range(500):
        now += PERIOD
        slack.note(ahead, 1.5 * PERIOD, now)
        ahead += 0.5 * PERIOD
        assert slack.steps(now) == 0
    assert not slack.live


def test_nothing_moves_while_nothing_comes_or_after_an_end() -> None:
    slack = Slack()
    assert slack.steps(10.0) == 0
    slack.begin(0.0)
    assert slack.steps(10.0) == 0
    slack.note(0.015, PERIOD, 10.0)
    slack.end()
    assert slack.steps(20.0) == 0
    slack.note(0.015, PERIOD, 20.0)
    assert slack.steps(20.5) == 0
    assert not slack.live


def test_starving_makes_patient_up_to_a_bound() -> None:
    slack = Slack()
    for starved in range(1, 20):
        slack.starve(float(starved))
        assert slack.patience == min(LONGEST, 2**starved)
