import json

import pytest

from load_tests.report import Report, percentile, shown, spread


def test_a_percentile_is_the_smallest_value_that_the_share_does_not_exceed() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert percentile(values, 0.50) == 50.0
    assert percentile(values, 0.95) == 95.0
    assert percentile(values, 0.99) == 99.0
    assert percentile(values, 1.0) == 100.0


def test_a_percentile_of_one_value_is_that_value() -> None:
    assert percentile([7.0], 0.01) == percentile([7.0], 0.99) == 7.0


def test_the_median_of_an_even_number_of_values_was_measured() -> None:
    assert percentile([1.0, 2.0, 10.0, 20.0], 0.5) == 2.0


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_spread_has_four_figures_and_says_when_nothing_was_measured() -> None:
    assert spread([3.04, 1.0]) == {"p50": 1.0, "p95": 3.0, "p99": 3.0, "max": 3.0}
    assert spread([]) == {"p50": None, "p95": None, "p99": None, "max": None}


def test_the_json_of_a_report_carries_figures_conditions_and_problems() -> None:
    report = Report({"sessions_ok": 2}, {"cores": 2, "cpu": "a", "python": "3"}, ["one broke"])
    assert json.loads(report.as_json()) == {
        "sessions_ok": 2,
        "conditions": {"cores": 2, "cpu": "a", "python": "3"},
        "problems": ["one broke"],
    }


def test_json_for_a_dash_is_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    Report({"sessions_ok": 2}).write("-")
    last = capsys.readouterr().out.splitlines()[-1]
    assert json.loads(last)["sessions_ok"] == 2


def test_what_was_not_measured_is_not_shown_as_zero() -> None:
    assert shown(spread([])) == "not measured"
    assert shown(None) == "not measured"
    assert shown(spread([1.0])) == "1.0 / 1.0 / 1.0 / 1.0   (p50 / p95 / p99 / max)"
