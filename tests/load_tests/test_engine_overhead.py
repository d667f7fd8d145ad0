import pytest

from load_tests.engine_overhead import Taken, _tell, request_of
from load_tests.report import Json


def taken(first: float, rate: float) -> Taken:
    made = Taken()
    made.add(0.0, first / 1000, first / 1000 + 0.09, 10)
    made.seconds = 10 / rate
    return made


def test_times_are_of_the_first_text_and_of_each_token_after_it() -> None:
    made = taken(20.0, 100.0)
    assert made.first == pytest.approx([20.0])
    assert made.token == pytest.approx([10.0])
    assert made.rate == pytest.approx(100.0)


def test_each_way_is_held_against_vllm_alone_in_the_same_round() -> None:
    # The machine was half as fast in the second round: the shares don't show it.
    passes = {
        "bare": [taken(20.0, 100.0), taken(40.0, 50.0)],
        "rendered": [taken(20.5, 99.0), taken(40.5, 49.5)],
        "stage": [taken(21.0, 98.0), taken(41.0, 49.0)],
        "engine": [taken(23.0, 97.0), taken(43.0, 48.5)],
    }
    figures: dict[str, Json] = {}
    problems: list[str] = []
    _tell(figures, problems, 8, passes)
    assert figures["8 at once, stage: of bare's throughput, %"] == 98.0
    assert figures["8 at once, engine: of bare's throughput, %"] == 97.0
    assert figures["8 at once, engine: added to bare's first text (p50), ms"] == 3.0
    assert figures["8 at once, engine: first text, p50 of each pass, ms"] == {
        "best": 23.0,
        "middle": 23.0,
        "worst": 43.0,
        "worst pass": 2,
    }
    assert figures["8 at once, rendered: added to bare's first text (p50), ms"] == 0.5
    assert figures["8 at once, engine: added to rendered's first text (p50), ms"] == 2.5
    assert problems == []


def test_ways_that_made_different_numbers_of_tokens_can_not_be_compared() -> None:
    more = taken(20.0, 100.0)
    more.add(0.0, 0.02, 0.11, 30)
    passes = dict.fromkeys(("bare", "rendered", "engine"), [taken(20.0, 100.0)]) | {"stage": [more]}
    problems: list[str] = []
    _tell({}, problems, 1, passes)
    assert len(problems) == 1


def test_no_two_prompts_begin_alike_and_the_same_number_gives_the_same_one() -> None:
    one, same, other = request_of(1, 8), request_of(1, 8), request_of(2, 8)
    assert one == same != other
    assert one.temperature == 0.0
