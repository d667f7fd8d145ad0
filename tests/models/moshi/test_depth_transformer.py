"""The steps of one frame. Equality with the reference is tested with the language model."""

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.depth_transformer import NO_TOKEN, TokenEmbedding


def test_what_is_chosen_goes_into_the_next_step(torch: ModuleType, language: Any) -> None:
    depth = language.ours.depth
    hidden = torch.randn(2, 32, generator=torch.Generator().manual_seed(0))
    text = torch.tensor([4, 5])

    def logits_with(first: int) -> list[Any]:
        seen: list[Any] = []

        def choose(logits: Any, step: int) -> Any:
            assert step == len(seen)
            seen.append(logits)
            return torch.full((2,), first if step == 0 else 3)

        codes = depth(hidden, text, choose)
        assert codes.tolist() == [[first, 3, 3, 3]] * 2
        return seen

    one, other = logits_with(1), logits_with(2)
    assert torch.equal(one[0], other[0])
    for step in (1, 2, 3):
        assert not torch.allclose(one[step], other[step])


def test_nothing_is_carried_to_the_next_frame(torch: ModuleType, language: Any) -> None:
    depth = language.ours.depth
    hidden = torch.randn(1, 32)
    text = torch.tensor([4])
    first = depth(hidden, text, lambda logits, _: logits.argmax(-1))
    depth(torch.randn(1, 32), text, lambda logits, _: logits.argmax(-1))
    assert torch.equal(depth(hidden, text, lambda logits, _: logits.argmax(-1)), first)


@pytest.mark.parametrize("low_rank", [None, 3])
def test_no_token_is_embedded_as_zero(low_rank: int | None, torch: ModuleType) -> None:
    embed = TokenEmbedding(5, 8, low_rank).requires_grad_(False)
    y = embed(torch.tensor([0, NO_TOKEN]))
    assert y.shape == (2, 8)
    assert y[0].any()
    assert not y[1].any()
