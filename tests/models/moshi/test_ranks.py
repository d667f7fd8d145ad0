"""Sums over ranks."""

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.moshi_config import TransformerConfig
from duologue.models.moshi.ranks import Summed
from duologue.models.moshi.transformer import TemporalTransformer


class Twice:
    """Another rank that has the same, and says so."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def share(self, x: Any) -> None:
        self.calls.append("share")

    def add(self, x: Any) -> None:
        self.calls.append("add")
        x += x.clone()


def test_a_layers_part_is_added_to_the_others(torch: ModuleType) -> None:
    linear, x = torch.nn.Linear(3, 4, bias=False), torch.ones(2, 3)
    with torch.no_grad():
        assert (Summed(linear, Twice())(x) == 2 * linear(x)).all()


@pytest.mark.parametrize("gating", [True, False])
def test_a_step_has_one_sum_after_attention_and_one_after_each_feed_forward_layer(
    torch: ModuleType, gating: bool
) -> None:
    config = TransformerConfig(
        d_model=8, num_heads=2, num_layers=3, hidden=6, context=4, gating=gating
    )
    transformer, peers = TemporalTransformer(config), Twice()
    transformer.join(peers)
    with torch.no_grad():
        everyone = torch.ones(1, dtype=torch.bool)
        transformer(torch.ones(1, 8), transformer.new_state(1), everyone)
    assert peers.calls == ["share", *["add"] * 6]
