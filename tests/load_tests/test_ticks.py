"""The command that measures ticks, over a tiny network."""

import argparse
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

import torch

from load_tests import tick_cases, ticks


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    tick_cases.add_arguments(parser)
    return parser.parse_args(["--small", "--device", "cpu", *words])


def test_each_case_has_a_row_and_the_comparisons_hold() -> None:
    cases = ["2:full:bf16", "2:young:fp8", "2:churn:fp8"]
    args = arguments(
        "--cases", *cases, "--ticks", "4", "--long", "30", "--reference", "--compared", "6"
    )
    lines: list[str] = []
    figures = ticks.run(args, lines.append)
    rows = figures["ticks"]
    assert isinstance(rows, list)
    assert [(row["sessions"], row["windows"], row["kv"], row["ticks"]) for row in rows] == [
        (2, "full", "bf16", 4),
        (2, "young", "fp8", 4),
        (2, "churn", "fp8", 30),
    ]
    assert figures["exact_beside_others"] is True
    changes = figures["divergence"]
    assert isinstance(changes, list)
    again, larger, narrow = changes
    assert again["kl_max"] == 0
    assert larger["kl_max"] < narrow["kl_max"] < 1
    assert len(lines) == 2 + len(rows) + len(changes) + 1


@pytest.mark.parametrize("text", ["64", "64:old:bf16", "64:full:int4", "many:full:bf16"])
def test_a_case_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not"):
        tick_cases.Case.parse(text, 1, 1)
