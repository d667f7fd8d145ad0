"""A ring of keys shows what a window over the whole would show."""

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.moshi_config import Norm, TransformerConfig
from duologue.models.moshi.transformer import Transformer, make_norm


def network(torch: ModuleType, extra_keys: int = 0, **sizes: Any) -> Transformer:
    torch.manual_seed(3)
    config = TransformerConfig(
        **{"d_model": 16, "num_heads": 4, "num_layers": 2, "hidden": 24, "context": 5} | sizes
    )
    return Transformer(config, extra_keys).requires_grad_(False)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("sizes", [{}, {"kv_repeat": 2}, {"interleaved": False}])
def test_a_stream_past_its_window_equals_the_whole(
    steps: int, sizes: dict[str, Any], torch: ModuleType
) -> None:
    transformer = network(torch, extra_keys=steps - 1, **sizes)
    x = torch.randn(2, 18, 16)
    state = transformer.new_state(2)
    pieces = [transformer(piece, state) for piece in x.split(steps, dim=1)]
    assert torch.allclose(torch.cat(pieces, dim=1), transformer(x, None), atol=1e-5)
    assert state.offset.tolist() == [18, 18]


def test_what_is_older_than_the_window_is_not_seen(torch: ModuleType) -> None:
    transformer = network(torch, num_layers=1)
    x = torch.randn(1, 12, 16)
    changed = x.clone()
    changed[:, :7] += 1
    assert torch.allclose(transformer(x, None)[:, -1], transformer(changed, None)[:, -1])
    changed[:, 7] += 1
    assert not torch.allclose(transformer(x, None)[:, -1], transformer(changed, None)[:, -1])


def test_slots_are_at_positions_of_their_own(torch: ModuleType) -> None:
    transformer = network(torch)
    x = torch.randn(1, 20, 16)
    state = transformer.new_state(2)
    whole = transformer(x, None)
    for index in range(20):
        active = torch.tensor([True, index >= 9])
        both = torch.cat([x[:, index], x[:, max(0, index - 9)]])[:, None]
        y = transformer(both, state, active)
        assert torch.allclose(y[0, 0], whole[0, index], atol=1e-5)
        if index >= 9:
            assert torch.allclose(y[1, 0], whole[0, index - 9], atol=1e-5)
    assert state.offset.tolist() == [20, 11]


def test_a_reset_slot_sees_nothing_of_before(torch: ModuleType) -> None:
    transformer = network(torch)
    x = torch.randn(2, 9, 16)
    state = transformer.new_state(2)
    transformer(x, state)
    state.reset(torch.tensor([True, False]))
    fresh = transformer(x[:, :1], transformer.new_state(2))
    assert torch.equal(transformer(x[:, :1], state)[0], fresh[0])


@pytest.mark.parametrize("kind", ["layer_norm", "layer_norm_f32", "rms_norm", "rms_norm_f32"])
def test_norms_keep_the_dtype_and_the_scale(kind: Norm, torch: ModuleType) -> None:
    norm = make_norm(kind, 64).requires_grad_(False)
    x = 50 * torch.randn(2, 3, 64)
    assert norm(x).square().mean().item() == pytest.approx(1, abs=0.01)
    if kind.endswith("f32"):
        narrow = norm(x.bfloat16())
        assert narrow.dtype == torch.bfloat16
