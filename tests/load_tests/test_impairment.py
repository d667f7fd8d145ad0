"""A bad network is as bad as it was told to be, and the same each time."""

import pytest

from load_tests.impairment import Impairment, Link

PACKETS = 20_000


def fates(impairment: Impairment, seed: int = 1) -> list[float | None]:
    link = Link(impairment, seed)
    return [link.admit(120, n * 0.02) for n in range(PACKETS)]


def runs(fate: list[float | None]) -> list[int]:
    """Lengths of losses in a row."""
    found, length = [], 0
    for delay in [*fate, 0.0]:
        if delay is None:
            length += 1
        elif length:
            found.append(length)
            length = 0
    return found


def test_a_clean_path_changes_nothing() -> None:
    assert Impairment().clean
    assert set(fates(Impairment())) == {0.0}


def test_the_same_seed_gives_the_same_fate() -> None:
    bad = Impairment(loss=5, jitter=30, reorder=2)
    assert fates(bad, 7) == fates(bad, 7)
    assert fates(bad, 7) != fates(bad, 8)


@pytest.mark.parametrize("burst", [1.0, 3.0])
def test_as_many_are_lost_as_were_asked_for_and_in_runs_as_long(burst: float) -> None:
    fate = fates(Impairment(loss=10, burst=burst))
    lengths = runs(fate)
    assert sum(lengths) / PACKETS == pytest.approx(0.10, abs=0.015)
    # Independent losses come in runs of 1 / 0.9.
    assert sum(lengths) / len(lengths) == pytest.approx(max(burst, 1 / 0.9), rel=0.15)


def test_jitter_delays_and_lets_none_overtake() -> None:
    arrivals = [n * 0.02 + (d or 0) for n, d in enumerate(fates(Impairment(delay=50, jitter=80)))]
    assert arrivals == sorted(arrivals)
    delays = [arrival - n * 0.02 for n, arrival in enumerate(arrivals)]
    assert min(delays) >= 0.05 - 1e-9
    assert 0.125 < max(delays) <= 0.13 + 1e-9


def test_reordered_packets_come_after_later_ones() -> None:
    arrivals = [n * 0.02 + (d or 0) for n, d in enumerate(fates(Impairment(reorder=5)))]
    swapped = sum(a > b for a, b in zip(arrivals, arrivals[1:], strict=False))
    assert swapped / PACKETS == pytest.approx(0.05, abs=0.01)


def test_a_narrow_link_queues_and_then_drops() -> None:
    # 148 bytes on the wire every 20 ms are 59 kb/s.
    fate = fates(Impairment(kilobits=40))
    assert fate[0] == pytest.approx(148 * 8 / 40_000)
    assert max(delay for delay in fate if delay is not None) < 0.6
    assert sum(delay is None for delay in fate) / PACKETS == pytest.approx(1 - 40 / 59.2, abs=0.02)


@pytest.mark.parametrize("what", ["loss", "burst", "delay", "jitter", "reorder", "kilobits"])
def test_what_no_network_does_is_refused(what: str) -> None:
    with pytest.raises(ValueError, match="network"):
        Impairment(**{what: -1})
