"""Keys and values in pages are those of a ring, whoever else holds pages."""

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.moshi_config import TransformerConfig
from duologue.models.moshi.paged_kv import FP8, PagedState, page_places
from duologue.models.moshi.transformer import TemporalTransformer, Transformer

CONTEXT = 8


def network(torch: ModuleType, **sizes: Any) -> TemporalTransformer:
    torch.manual_seed(3)
    config = TransformerConfig(
        **{"d_model": 16, "num_heads": 4, "num_layers": 2, "hidden": 24, "context": CONTEXT} | sizes
    )
    return TemporalTransformer(config).requires_grad_(False)


def whole(torch: ModuleType, temporal: TemporalTransformer, x: Any) -> Any:
    """The same layers over all steps at once, ``[slots, steps, d_model]``."""
    transformer = Transformer(temporal.config).requires_grad_(False)
    transformer.load_state_dict(temporal.state_dict())
    return transformer(x, None)


def stepped(torch: ModuleType, temporal: TemporalTransformer, state: PagedState, x: Any) -> Any:
    everyone = torch.ones(x.shape[0], dtype=torch.bool)
    return torch.stack([temporal(step, state, everyone) for step in x.unbind(1)], dim=1)


@pytest.mark.parametrize("sizes", [{}, {"kv_repeat": 2}, {"interleaved": False}])
def test_steps_past_the_window_equal_the_whole(sizes: dict[str, Any], torch: ModuleType) -> None:
    temporal = network(torch, **sizes)
    x = torch.randn(2, 3 * CONTEXT + 1, 16)
    found = stepped(torch, temporal, temporal.new_state(2), x)
    assert torch.allclose(found, whole(torch, temporal, x), atol=1e-5)


def test_idle_slots_write_into_nobodys_pages(torch: ModuleType) -> None:
    temporal = network(torch)
    x = torch.randn(2, 2 * CONTEXT, 16)
    state = temporal.new_state(2)
    state.table[1] = state.table[0]  # an empty slot's entries may be somebody else's
    active = torch.tensor([True, False])
    found = torch.stack([temporal(step, state, active)[0] for step in x.unbind(1)])
    assert torch.allclose(found, whole(torch, temporal, x)[0], atol=1e-5)
    assert state.offset.tolist() == [2 * CONTEXT, 0]


def test_a_slot_with_a_shorter_ring_forgets_sooner(torch: ModuleType) -> None:
    temporal = network(torch, num_layers=1)
    page = page_places(CONTEXT)
    state = temporal.new_state(1)
    state.ring.fill_(2 * page)
    x = torch.randn(1, 3 * CONTEXT, 16)
    changed = x.clone()
    changed[:, : -2 * page] += 1  # beyond the ring, within the window
    other = temporal.new_state(1)
    other.ring.fill_(2 * page)
    last = stepped(torch, temporal, state, x)[:, -1]
    assert torch.allclose(last, stepped(torch, temporal, other, changed)[:, -1])


def test_pages_that_are_given_late_hold_the_same(torch: ModuleType) -> None:
    temporal = network(torch)
    x = torch.randn(1, CONTEXT, 16)
    state = temporal.new_state(1, pages=6)
    page = page_places(CONTEXT)
    found = []
    for index, step in enumerate(x.unbind(1)):
        if index % page == 0:
            state.give(torch.tensor([5 - index // page]))
        else:
            state.give(torch.tensor([-1]))
        found.append(temporal(step, state, torch.ones(1, dtype=torch.bool)))
    assert state.table[0].tolist() == [5, 4, 3, 2]
    assert torch.allclose(torch.stack(found, 1), whole(torch, temporal, x), atol=1e-5)


@pytest.mark.parametrize(("number", "close"), [("bfloat16", 0.02), ("float8_e4m3fn", 0.1)])
def test_narrow_numbers_say_nearly_the_same(number: str, close: float, torch: ModuleType) -> None:
    temporal = network(torch)
    x = torch.randn(2, 2 * CONTEXT, 16)
    state = temporal.new_state(2, getattr(torch, number))
    assert state.pools[0].keys.dtype == getattr(torch, number)
    difference = stepped(torch, temporal, state, x) - whole(torch, temporal, x)
    assert 0 < difference.square().mean().sqrt().item() < close


def test_large_values_survive_in_eight_bits(torch: ModuleType) -> None:
    """E4M3 ends at 448; what is larger is scaled."""
    temporal = network(torch, num_layers=1)
    with torch.no_grad():
        temporal.layers[0].self_attn.in_proj.weight.mul_(2000)
    state = temporal.new_state(1, FP8)
    y = stepped(torch, temporal, state, torch.randn(1, 4, 16))
    assert y.isfinite().all()
    assert state.pools[0].value_scales.max() > 1


def test_a_saved_slot_goes_on_in_other_pages(torch: ModuleType) -> None:
    temporal = network(torch)
    x = torch.randn(1, 2 * CONTEXT, 16)
    state = temporal.new_state(2)
    first, second = x.split(CONTEXT + 3, dim=1)
    only = torch.tensor([True, False])
    for step in first.unbind(1):
        temporal(torch.cat([step, step]), state, only)
    saved = state.save(0)
    state.reset(only)
    state.restore(1, saved)
    found = [temporal(torch.cat([step, step]), state, ~only)[1] for step in second.unbind(1)]
    expected = whole(torch, temporal, x)[0, CONTEXT + 3 :]
    assert torch.allclose(torch.stack(found), expected, atol=1e-5)
