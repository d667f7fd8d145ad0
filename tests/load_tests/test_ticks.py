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


def test_narrow_weights_are_read_as_a_byte_each_and_the_wide_ones_come_back() -> None:
    network = ticks.small_network("cpu")
    layer = network.language.transformer.layers[0].self_attn.in_proj
    wide = ticks.weight_bytes(network)
    with ticks.narrowed(network, "fp8", "cpu"):
        assert network.language.transformer.layers[0].self_attn.in_proj is not layer
        assert ticks.weight_bytes(network) < wide
    assert network.language.transformer.layers[0].self_attn.in_proj is layer
    assert ticks.weight_bytes(network) == wide


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
