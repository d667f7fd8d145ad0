"""What a client plays, tick by tick, and what it says was heard."""

from hypothesis import given, strategies as st

from duologue.realtime.client_playout import BYTES_A_MS, TICK_BYTES, TICK_MS, Playout


def sound(ms: int, value: int = 1) -> bytes:
    return bytes([value]) * (ms * BYTES_A_MS)


def test_silence_is_played_while_there_is_nothing() -> None:
    playout = Playout()
    assert playout.tick() == bytes(TICK_BYTES)
    assert not playout.playing


def test_pieces_are_played_without_a_seam() -> None:
    playout = Playout()
    playout.add("a", sound(30, 1))
    playout.add("b", sound(30, 2))
    heard = b"".join(playout.tick() for _ in range(3))
    assert heard == sound(30, 1) + sound(30, 2)


def test_an_interruption_tells_how_much_of_the_item_was_heard() -> None:
    playout = Playout()
    playout.add("a", sound(40))
    playout.add("b", sound(100))
    for _ in range(4):
        playout.tick()
    assert playout.flush() == ("b", 40)
    assert not any(playout.tick())


def test_an_item_of_which_nothing_was_heard_is_cut_at_its_beginning() -> None:
    playout = Playout()
    playout.add("a", sound(20))
    playout.tick()
    playout.add("b", sound(100))
    assert playout.flush() == ("b", 0)


def test_nothing_is_cut_where_nothing_waits() -> None:
    playout = Playout()
    playout.add("a", sound(20))
    playout.tick()
    assert playout.flush() is None


def test_what_comes_for_a_cut_item_is_not_played() -> None:
    playout = Playout()
    playout.add("a", sound(40))
    playout.flush()
    playout.add("a", sound(40))
    playout.add("b", sound(20, 5))
    assert playout.tick() == sound(20, 5)


def test_more_than_it_holds_is_dropped_from_the_front_and_counted() -> None:
    playout = Playout(held_s=0.1)
    for value in range(1, 9):
        playout.add("a", sound(20, value))
    assert playout.dropped_bytes == 3 * TICK_BYTES
    assert playout.tick() == sound(20, 4)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 90)), max_size=20))
def test_everything_is_played_once_and_in_order(pieces: list[tuple[str, int]]) -> None:
    playout = Playout()
    given_bytes = b""
    for index, (item, ms) in enumerate(pieces):
        pcm = sound(ms, index + 1)
        given_bytes += pcm
        playout.add(item, pcm)
    heard = b""
    for _ in range(len(given_bytes) // TICK_BYTES + 1):
        heard += playout.tick()
    assert heard.rstrip(b"\0") == given_bytes
    assert not playout.playing


def test_a_tick_is_twenty_milliseconds() -> None:
    assert TICK_MS * BYTES_A_MS == TICK_BYTES == 960
