"""Convolutions in pieces give what they give at once."""

from types import ModuleType

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.streaming_conv import StreamingConv1d, StreamingConvTranspose1d


@pytest.mark.parametrize("repeat_first", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(1, 1, 1), (3, 1, 1), (3, 1, 4), (8, 4, 1), (2, 2, 1)]
)
def test_pieces_of_any_size_give_the_whole(
    kernel: int, stride: int, dilation: int, repeat_first: bool, torch: ModuleType
) -> None:
    conv = StreamingConv1d(
        2, 3, kernel, stride=stride, dilation=dilation, repeat_first=repeat_first
    ).requires_grad_(False)
    x = torch.randn(2, 2, 12 * stride)
    state = conv.new_state(2)
    pieces = [conv(piece, state) for piece in x.split([stride, 3 * stride, 8 * stride], dim=2)]
    whole = conv(x, None)
    assert whole.shape == (2, 3, 12)
    assert torch.allclose(torch.cat(pieces, dim=2), whole, atol=1e-6)


def test_nothing_ahead_is_heard(torch: ModuleType) -> None:
    conv = StreamingConv1d(1, 1, 5).requires_grad_(False)
    x = torch.randn(1, 1, 9)
    changed = x.clone()
    changed[..., 6:] += 1
    assert torch.equal(conv(x, None)[..., :6], conv(changed, None)[..., :6])


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("kernel", "stride", "groups"), [(8, 4, 1), (4, 2, 2), (3, 3, 1)])
def test_transposed_pieces_give_the_whole(
    kernel: int, stride: int, groups: int, bias: bool, torch: ModuleType
) -> None:
    conv = StreamingConvTranspose1d(
        2, 4, kernel, stride=stride, groups=groups, bias=bias
    ).requires_grad_(False)
    x = torch.randn(2, 2, 9)
    state = conv.new_state(2)
    pieces = [conv(piece, state) for piece in x.split([1, 3, 5], dim=2)]
    whole = conv(x, None)
    assert whole.shape == (2, 4, 9 * stride)
    assert torch.allclose(torch.cat(pieces, dim=2), whole, atol=1e-6)


def test_an_idle_slot_keeps_its_past(torch: ModuleType) -> None:
    conv = StreamingConv1d(1, 1, 4, repeat_first=True).requires_grad_(False)
    up = StreamingConvTranspose1d(1, 1, 4, stride=2).requires_grad_(False)
    x = torch.randn(1, 1, 6)
    for network in (conv, up):
        state = network.new_state(2)
        idle = torch.tensor([True, False])
        said = []
        for piece in x.split(1, dim=2):
            both = torch.cat([piece, torch.randn(1, 1, 1)])
            network(torch.randn(2, 1, 1), state, idle & False)
            said.append(network(both, state, idle)[:1])
        assert torch.allclose(torch.cat(said, dim=2), network(x, None), atol=1e-6)
        assert not state.tail[1].any()
        assert not state.started[1]
