"""The jitter buffer: order, bounds, and what it makes of a bad network."""

from hypothesis import given, strategies as st

from duologue.codecs.audio_packet import AudioPacket, Conceal, Play, Quiet, Recover, Step
from duologue.codecs.delay_target import LEAST, MOST
from duologue.codecs.jitter_buffer import MAX_HELD, STARVED, JitterBuffer

CLOCK = 48_000
FRAME = 960
BEAT = 0.02


def packet(number: int, pause: int = 0, payload: bytes = b"sound") -> AudioPacket:
    return AudioPacket(number, number * FRAME + pause, payload, FRAME)


def run(
    buffer: JitterBuffer, events: list[tuple[float, AudioPacket]], beats: int
) -> list[tuple[float, Step]]:
    """Take a step a beat, half a beat after the packets of a network without delay."""
    taken: list[tuple[float, Step]] = []
    waiting = sorted(events, key=lambda event: event[0])
    for beat in range(beats):
        now = (beat + 0.5) * BEAT
        while waiting and waiting[0][0] <= now:
            arrival, arrived = waiting.pop(0)
            buffer.push(arrived, arrival)
            assert len(buffer) <= MAX_HELD
        taken.append((now, buffer.take(now)))
    return taken


def played(steps: list[tuple[float, Step]]) -> list[int]:
    return [step.packet.sequence for _, step in steps if isinstance(step, Play)]


@st.composite
def networks(draw: st.DrawFn) -> list[tuple[float, AudioPacket]]:
    events: list[tuple[float, AudioPacket]] = []
    pause = 0
    for number in range(draw(st.integers(1, 120))):
        if draw(st.integers(0, 30)) == 0:
            pause += draw(st.integers(1, 50)) * FRAME
        sent = number * BEAT + pause / CLOCK
        copies = draw(st.sampled_from([0, 1, 1, 1, 1, 1, 2]))
        events += [
            (sent + draw(st.floats(0, 0.3)), packet(number, pause)) for _ in range(copies)
        ]  # fmt: skip
    return events


@given(networks())
def test_no_packet_is_played_twice_or_out_of_order(events: list[tuple[float, AudioPacket]]) -> None:
    buffer = JitterBuffer(CLOCK)
    last = max((at for at, _ in events), default=0.0)
    steps = run(buffer, events, int((last + 2 * MOST + 1) / BEAT))
    numbers = played(steps)
    assert numbers == sorted(set(numbers))
    assert len(buffer) == 0


@given(networks())
def test_nothing_is_played_long_after_it_came(events: list[tuple[float, AudioPacket]]) -> None:
    buffer = JitterBuffer(CLOCK)
    arrivals: dict[int, float] = {}
    for at, arrived in events:
        arrivals[arrived.sequence] = min(at, arrivals.get(arrived.sequence, at))
    for now, step in run(buffer, events, 1000):
        if isinstance(step, Play):
            assert now - arrivals[step.packet.sequence] <= 2 * MOST + 2 * BEAT


def test_a_good_network_is_played_with_the_least_delay() -> None:
    buffer = JitterBuffer(CLOCK)
    steps = run(buffer, [(n * BEAT, packet(n)) for n in range(200)], 200)
    starts = {s.packet.sequence: now for now, s in steps if isinstance(s, Play)}
    assert buffer.target.seconds == LEAST
    assert all(now - n * BEAT <= LEAST + BEAT for n, now in starts.items())
    assert not [s for _, s in steps if isinstance(s, Conceal | Recover)]


def test_a_lost_packet_is_recovered_when_its_turn_comes_and_a_later_one_is_there() -> None:
    buffer = JitterBuffer(CLOCK)
    for number in (0, 1, 3, 4):
        buffer.push(packet(number), 0.0)
    assert [buffer.take(BEAT * (n + 1)) for n in range(5)] == [
        Play(packet(0)),
        Play(packet(1)),
        Recover(packet(3), FRAME),
        Play(packet(3)),
        Play(packet(4)),
    ]
    assert buffer.lost == 1


def test_a_burst_is_concealed_for_as_long_as_it_was() -> None:
    buffer = JitterBuffer(CLOCK)
    buffer.push(packet(0), 0.0)
    buffer.push(packet(4), 0.0)
    assert [buffer.take(BEAT * (n + 1)) for n in range(5)] == [
        Play(packet(0)),
        Conceal(FRAME),
        Conceal(FRAME),
        Recover(packet(4), FRAME),
        Play(packet(4)),
    ]
    assert buffer.lost == 3


def test_what_was_lost_in_a_pause_is_not_missed() -> None:
    buffer = JitterBuffer(CLOCK)
    buffer.push(packet(0, payload=b"\x08"), 0.0)
    buffer.push(packet(3), 0.0)
    assert [buffer.take(0.1 + BEAT * n) for n in range(3)] == [
        Play(packet(0, payload=b"\x08")),
        Recover(packet(3), FRAME),
        Play(packet(3)),
    ]
    assert buffer.lost == 2


def test_timestamps_without_room_for_what_is_missing_are_played_on() -> None:
    buffer = JitterBuffer(CLOCK)
    buffer.push(packet(0), 0.0)
    after = AudioPacket(9, FRAME, b"sound", FRAME)
    buffer.push(after, 0.0)
    assert [buffer.take(BEAT * (n + 1)) for n in range(2)] == [Play(packet(0)), Play(after)]
    assert buffer.lost == 8


def test_what_was_guessed_while_starved_is_not_guessed_again() -> None:
    buffer = JitterBuffer(CLOCK)
    lost = range(10, 14)
    events = [(n * BEAT, packet(n)) for n in range(40) if n not in lost]
    steps = [step for _, step in run(buffer, events, 40)]
    guessed = [step for step in steps if isinstance(step, Conceal | Recover)]
    assert len(guessed) == len(lost)
    assert buffer.lost == len(lost)


def test_a_pause_is_silence_and_packets_after_it_come_at_the_target() -> None:
    buffer = JitterBuffer(CLOCK)
    events = [(n * BEAT, packet(n)) for n in range(20)]
    events[19] = (19 * BEAT, packet(19, payload=b"\x08"))
    events += [((n + 30) * BEAT, packet(n, pause=30 * FRAME)) for n in range(20, 40)]
    steps = run(buffer, events, 70)
    assert not [step for _, step in steps if isinstance(step, Conceal | Recover)]
    assert played(steps) == list(range(40))
    start = next(now for now, s in steps if isinstance(s, Play) and s.packet.sequence == 20)
    assert 0 <= start - 50 * BEAT <= LEAST + BEAT


def test_a_stream_that_stops_is_guessed_for_a_while_and_then_silent() -> None:
    buffer = JitterBuffer(CLOCK)
    steps = [s for _, s in run(buffer, [(n * BEAT, packet(n)) for n in range(10)], 60)]
    guessed = [step for step in steps if isinstance(step, Conceal)]
    assert len(guessed) == int(STARVED / BEAT)
    assert steps[-1] == Quiet(FRAME)


def test_a_flood_holds_a_bounded_number_and_what_is_too_old_is_skipped() -> None:
    buffer = JitterBuffer(CLOCK)
    events = [(0.001, packet(n)) for n in range(1000)]
    steps = run(buffer, events, 400)
    assert played(steps)[-1] == 999
    assert len(buffer) == 0


def test_a_source_that_numbers_anew_is_followed() -> None:
    buffer = JitterBuffer(CLOCK)
    buffer.push(packet(50), 0.0)
    buffer.restart()
    assert buffer.take(0.02) == Quiet(FRAME)
    buffer.push(packet(3), 0.04)
    assert [buffer.take(at) for at in (0.05, 0.07)][0] == Play(packet(3))


def test_a_timeline_that_jumps_is_followed() -> None:
    buffer = JitterBuffer(CLOCK)
    events = [(n * BEAT, packet(n)) for n in range(50)]
    events += [(n * BEAT, packet(n, pause=CLOCK * 3600)) for n in range(50, 100)]
    events += [(n * BEAT, packet(n)) for n in range(100, 150)]
    assert len(played(run(buffer, events, 160))) > 140


def test_redundant_copies_fill_gaps_and_start_nothing() -> None:
    buffer = JitterBuffer(CLOCK)
    buffer.push(packet(0), 0.0, redundant=True)
    assert len(buffer) == 0
    buffer.push(packet(1), 0.02)
    buffer.push(packet(2), 0.06, redundant=True)
    buffer.push(packet(3), 0.06)
    buffer.push(packet(2), 0.07, redundant=True)
    assert [buffer.take(0.08 + n * BEAT) for n in range(3)] == [
        Play(packet(1)),
        Play(packet(2)),
        Play(packet(3)),
    ]
    assert buffer.late == 0
