"""Captured steps."""

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

import torch

from duologue.engines.step_graph import WARM_RUNS, capture


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("with_peers", [False, True])
def test_a_captured_step_runs_again_with_what_is_there_then(with_peers: bool) -> None:
    calls = []
    x = torch.zeros(4, device="cuda")
    total = torch.zeros(4, device="cuda")

    def run() -> None:
        calls.append(1)
        total.add_(x)

    replay = capture(run, with_peers=with_peers)
    assert len(calls) == WARM_RUNS + 1
    x.fill_(2)
    replay()
    replay()
    assert total.tolist() == [4.0] * 4
