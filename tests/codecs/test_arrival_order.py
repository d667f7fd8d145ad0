"""Packets in order at arrival, whatever the network did to them."""

import math

from hypothesis import given, strategies as st

from duologue.codecs.arrival_order import HOLD, MAX_HELD, ArrivalOrder
from duologue.codecs.audio_packet import AudioPacket, Conceal, Play, Quiet, Recover, Step

CLOCK = 48_000
FRAME = 960


def packet(number: int, pause: int = 0) -> AudioPacket:
    return AudioPacket(number, number * FRAME + pause, b"%d" % number, FRAME)


def played(steps: list[Step]) -> list[int]:
    return [step.packet.sequence for step in steps if isinstance(step, Play)]


def ticks(steps: list[Step]) -> int:
    return sum(step.packet.ticks if isinstance(step, Play) else step.ticks for step in steps)


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[float, int]]:
    """When which packet comes: delayed, lost or doubled."""
    events: list[tuple[float, int]] = []
    for number in range(draw(st.integers(1, 80))):
        copies = draw(st.sampled_from([0, 1, 1, 1, 1, 2]))
        events += [(number * 0.02 + draw(st.floats(0, 0.3)), number) for _ in range(copies)]
    return sorted(events)


@given(arrivals())
def test_every_packet_is_played_once_at_most_and_in_order(events: list[tuple[float, int]]) -> None:
    order = ArrivalOrder(CLOCK)
    steps: list[Step] = []
    for now, number in events:
        while order.next_deadline() <= now:
            steps += order.handle_timer(order.next_deadline())
        steps += order.push(packet(number), now)
        assert len(order) <= MAX_HELD
        assert order.next_deadline() > now
        assert order.next_deadline() <= now + HOLD or not len(order)
    while len(order):
        steps += order.handle_timer(order.next_deadline())
    numbers = played(steps)
    assert numbers == sorted(set(numbers))
    if numbers:
        # No time is lost and none is added, while losses are short enough to be guessed.
        whole = (numbers[-1] + 1 - numbers[0]) * FRAME
        assert ticks(steps) <= whole
        gaps = [b - a - 1 for a, b in zip(numbers, numbers[1:], strict=False)]
        if max(gaps, default=0) <= 6:
            assert ticks(steps) == whole


def test_what_arrives_in_order_is_played_at_once() -> None:
    order = ArrivalOrder(CLOCK)
    for number in range(5):
        assert order.push(packet(number), number * 0.02) == [Play(packet(number))]
        assert order.next_deadline() == math.inf


def test_a_packet_that_was_overtaken_is_waited_for() -> None:
    order = ArrivalOrder(CLOCK)
    order.push(packet(0), 0.0)
    assert order.push(packet(2), 0.02) == []
    assert order.push(packet(1), 0.03) == [Play(packet(1)), Play(packet(2))]
    assert order.late == order.lost == 0


def test_a_lost_packet_is_recovered_from_the_next_after_the_hold() -> None:
    order = ArrivalOrder(CLOCK)
    order.push(packet(0), 0.0)
    order.push(packet(2), 1.0)
    assert order.push(packet(3), 1.02) == []
    assert order.handle_timer(1.03) == []
    assert order.next_deadline() == 1.0 + HOLD
    assert order.handle_timer(order.next_deadline()) == [
        Recover(packet(2), FRAME),
        Play(packet(2)),
        Play(packet(3)),
    ]
    assert order.lost == 1
    assert order.push(packet(1), 1.05) == []
    assert order.late == 1


def test_a_burst_is_guessed_up_to_a_bound_and_the_rest_is_silence() -> None:
    order = ArrivalOrder(CLOCK)
    order.push(packet(0), 0.0)
    order.push(packet(11), 1.0)
    steps = order.handle_timer(2.0)
    assert steps == [
        Conceal(5 * FRAME),
        Quiet(4 * FRAME),
        Recover(packet(11), FRAME),
        Play(packet(11)),
    ]


def test_a_pause_of_the_sender_is_silence_and_not_loss() -> None:
    order = ArrivalOrder(CLOCK)
    order.push(packet(0), 0.0)
    after = packet(1, pause=5 * FRAME)
    assert order.push(after, 0.12) == [Quiet(5 * FRAME), Play(after)]
    hours = packet(2, pause=10**9)
    assert order.push(hours, 9.0) == [Quiet(CLOCK), Play(hours)]


def test_a_timestamp_that_goes_back_is_played_on_in_sequence() -> None:
    order = ArrivalOrder(CLOCK)
    order.push(packet(5), 0.0)
    back = AudioPacket(6, 0, b"", FRAME)
    assert order.push(back, 0.02) == [Play(back)]
    order.push(AudioPacket(8, 0, b"", FRAME), 0.04)
    assert played(order.handle_timer(1.0)) == [8]


def test_a_redundant_copy_fills_a_gap_at_once_and_is_never_late() -> None:
    order = ArrivalOrder(CLOCK)
    assert order.push(packet(0), 0.0, redundant=True) == []
    order.push(packet(0), 0.0)
    assert order.push(packet(0), 0.02, redundant=True) == []
    assert order.push(packet(1), 0.04, redundant=True) == [Play(packet(1))]
    assert order.push(packet(2), 0.04) == [Play(packet(2))]
    assert order.late == 0


def test_a_flood_behind_a_gap_is_bounded() -> None:
    order = ArrivalOrder(CLOCK)
    order.push(packet(0), 0.0)
    steps: list[Step] = []
    for number in range(2, 500):
        steps += order.push(packet(number), 0.001)
        assert len(order) <= MAX_HELD
    assert played(steps) == list(range(2, 500))


def test_a_source_that_numbers_anew_is_followed() -> None:
    order = ArrivalOrder(CLOCK)
    order.push(packet(100), 0.0)
    order.push(packet(102), 0.02)
    assert played(order.restart()) == [102]
    assert order.push(packet(7), 0.04) == [Play(packet(7))]
