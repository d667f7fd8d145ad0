"""The stream of a loudspeaker, told apart into items."""

from hypothesis import given, strategies as st

from duologue.realtime.playout_map import BYTES_PER_MS, PlayoutMap


def pcm(ms):
    return bytes(ms * BYTES_PER_MS)


def mapped():
    reports = []
    return PlayoutMap(lambda item, ms: reports.append((item, ms))), reports


def test_an_item_is_reported_as_it_plays():
    playout, reports = mapped()
    playout.play("a", pcm(30))
    playout.play("a", pcm(30))
    for total in (20.0, 40.0, 60.0):
        playout.played(total)
    assert reports == [("a", 20.0), ("a", 40.0), ("a", 60.0)]


def test_the_end_of_an_item_is_reported_though_the_next_has_begun():
    playout, reports = mapped()
    playout.play("a", pcm(30))
    playout.play("b", pcm(30))
    playout.played(40.0)
    playout.played(60.0)
    assert reports == [("a", 30.0), ("b", 10.0), ("b", 30.0)]


def test_what_was_flushed_is_never_reported():
    playout, reports = mapped()
    playout.play("a", pcm(100))
    playout.played(20.0)
    playout.flush()
    playout.played(30.0)
    playout.play("b", pcm(20))
    playout.played(50.0)
    assert reports == [("a", 20.0), ("b", 20.0)]


def test_an_item_that_goes_on_after_a_flush_goes_on_where_it_was_sent_to():
    playout, reports = mapped()
    playout.play("a", pcm(100))
    playout.flush()
    playout.play("a", pcm(20))
    playout.played(20.0)
    assert reports == [("a", 120.0)]


def test_nothing_is_reported_of_nothing():
    playout, reports = mapped()
    playout.played(20.0)
    playout.play("a", pcm(20))
    playout.played(20.0)
    assert reports == []


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 300)), max_size=8))
def test_every_item_is_reported_to_its_end_and_never_backwards(stretches):
    playout, reports = mapped()
    sent: dict[str, int] = {}
    for number, (item, ms) in enumerate(stretches):
        name = f"{item}{number}"
        playout.play(name, pcm(ms))
        sent[name] = ms
    total = 0.0
    while total < sum(sent.values()):
        total += 20.0
        playout.played(total)
    last: dict[str, float] = {}
    for name, ms in reports:
        assert ms >= last.get(name, 0.0)
        last[name] = ms
    assert last == {name: float(ms) for name, ms in sent.items()}


def test_what_is_given_next_begins_where_all_that_waits_ends():
    playout, _ = mapped()
    assert playout.end_ms == 0
    playout.play("a", pcm(30))
    playout.play("b", pcm(30))
    playout.played(20.0)
    assert playout.end_ms == 60
    playout.flush()
    assert playout.end_ms == 20
