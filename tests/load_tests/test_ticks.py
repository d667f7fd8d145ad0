"""The command that measures ticks, over a tiny network."""

import argparse
from collections.abc import Iterator

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

import torch

from load_tests import tick_cases, tick_networks, tick_ranks, tick_rows, ticks


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
    cases = ["2:full:bf16", "2:young:fp8", "2:churn:fp8", "2:young:bf16:int8"]
    args = arguments(
        "--cases", *cases, "--ticks", "4", "--long", "30", "--reference", "--compared", "6"
    )
    lines: list[str] = []
    figures = ticks.run(args, lines.append)
    rows = figures["ticks"]
    assert isinstance(rows, list)
    told = ("sessions", "windows", "kv", "weights", "ticks")
    assert [tuple(row[name] for name in told) for row in rows] == [
        (2, "full", "bf16", "bf16", 4),
        (2, "young", "fp8", "bf16", 4),
        (2, "churn", "fp8", "bf16", 30),
        (2, "young", "bf16", "int8", 4),
    ]
    assert figures["exact_beside_others"] is True
    changes = figures["divergence"]
    assert isinstance(changes, list)
    again, larger, narrow, int8, fp8 = changes
    assert again["kl_max"] == 0
    assert larger["kl_max"] < narrow["kl_max"] < 1
    assert again["kl_max"] < int8["kl_max"] < fp8["kl_max"] < 0.1
    assert len(lines) == 2 + len(rows) + len(changes) + 1


def test_a_model_on_two_ranks_has_a_row_for_one_session_and_for_several() -> None:
    pytest.importorskip("moshi.models", reason="pip install --no-deps moshi einops")
    words = ("--cases", "--reference", "--compared", "0", "--ticks", "3")
    args = arguments(*words, "--ranks", "2", "--rank-sessions", "2")
    figures = ticks.run(args, lambda line: None)
    rows = figures["ticks"]
    assert isinstance(rows, list)
    assert [(row["who"], row["sessions"], row["ticks"]) for row in rows] == [
        ("2 devices", 1, 3),
        ("2 devices", 2, 3),
    ]
    assert figures["ranks_differ_at"] is None
    assert all("said" not in row for row in rows)


@pytest.mark.parametrize(
    ("others", "tick"), [([[4, 5, 6]], None), ([[4, 5, 7]], 2), ([[4, 5, 7], [4, None, 6]], 1)]
)
def test_the_first_tick_at_which_ranks_say_different_words_is_told(
    others: list[list[int | None]], tick: int | None
) -> None:
    rows: list[tick_rows.Row] = [{"said": list(said)} for said in [[4, 5, 6], *others]]
    assert tick_ranks.first_difference(rows) == tick


def test_narrow_weights_are_read_as_a_byte_each_and_the_wide_ones_come_back() -> None:
    network = tick_networks.small_network("cpu")
    layer = network.language.transformer.layers[0].self_attn.in_proj
    wide = tick_networks.weight_bytes(network)
    with tick_networks.narrowed(network, "fp8", "cpu"):
        assert network.language.transformer.layers[0].self_attn.in_proj is not layer
        assert tick_networks.weight_bytes(network) < wide
    assert network.language.transformer.layers[0].self_attn.in_proj is layer
    assert tick_networks.weight_bytes(network) == wide


@pytest.mark.parametrize(
    "text",
    [
        "64",
        "64:old:bf16",
        "64:full:int4",
        "many:full:bf16",
        "1:full:bf16:fp4",
        "1:full:fp8:fp8:fp8",
    ],
)
def test_a_case_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not"):
        tick_cases.Case.parse(text, 1, 1)
