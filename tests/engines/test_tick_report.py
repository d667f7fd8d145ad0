"""Figures of ticks."""

from duologue.engines.tick_report import TICKS_KEPT, TickReport
from duologue.engines.tick_scheduler import Counts


def test_there_is_nothing_to_tell_before_the_first_tick() -> None:
    assert set(TickReport().gauges(0).values()) == {0}


def test_quantiles_are_of_the_last_ticks_and_counts_of_all() -> None:
    report = TickReport()
    for _ in range(50):
        report.add(1, 9.0, Counts())
    for number in range(TICKS_KEPT):
        report.add(2, number / TICKS_KEPT, Counts(steps=7, silent=1, dropped=2, missed=3))
    gauges = report.gauges(2)
    assert gauges["ticks"] == 50 + TICKS_KEPT
    assert gauges["tick_p50_s"] == 0.5
    assert 0.98 < gauges["tick_p99_s"] < 1.0
    assert [gauges[f"frames{name}"] for name in ("", "_silent", "_dropped", "_missed")] == [
        7,
        1,
        2,
        3,
    ]
    assert gauges["slots_taken"] == 2
