"""Draws that depend on the session alone, and have the right distribution."""

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.sampling import Sampling, choose, gumbel, mix


def draws(
    torch: ModuleType, logits: Any, count: int, temperature: float, top_k: int, seed: int = 1
) -> Any:
    """The same logits, drawn from in each of ``count`` frames."""
    return choose(
        logits.expand(count, -1),
        torch.full((count,), temperature),
        torch.full((count,), top_k),
        torch.full((count,), seed),
        torch.arange(count),
        0,
    )


def test_splitmix_gives_the_published_numbers(torch: ModuleType) -> None:
    """The first outputs of the generator from seed 0, which adds its increment each time."""
    increment = 0x9E3779B97F4A7C15
    states = torch.tensor([0, increment - 2**64])
    assert [number % 2**64 for number in mix(states).tolist()] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
    ]


def test_temperature_zero_is_greedy(torch: ModuleType) -> None:
    logits = torch.tensor([0.1, 3.0, 2.9])
    assert (draws(torch, logits, 50, temperature=0.0, top_k=0) == 1).all()


def test_draws_follow_the_softmax_at_the_temperature(torch: ModuleType) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -3.0])
    count = 20_000
    shares = torch.bincount(draws(torch, logits, count, 0.7, 0), minlength=4) / count
    assert (shares - (logits / 0.7).softmax(0)).abs().max() < 0.015


def test_only_the_k_likeliest_are_drawn_in_their_proportion(torch: ModuleType) -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, 1.5, -3.0])
    count = 20_000
    shares = torch.bincount(draws(torch, logits, count, 1.0, 2), minlength=5) / count
    expected = torch.tensor([2.0, 1.5]).softmax(0)
    assert (shares[[2, 3]] - expected).abs().max() < 0.015
    assert shares[[0, 1, 4]].sum() == 0


def test_more_than_there_are_is_all(torch: ModuleType) -> None:
    logits = torch.randn(30, generator=torch.Generator().manual_seed(0))
    expected = draws(torch, logits, 100, 1.0, 0)
    assert torch.equal(draws(torch, logits, 100, 1.0, 99), expected)


def test_a_draw_depends_on_no_other_slot(torch: ModuleType) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 30, generator=generator)
    settings = (torch.tensor([0.0, 1.0, 0.5, 2.0]), torch.tensor([0, 0, 5, 3]))
    seed, frame = torch.tensor([1, 2, 2, 2]), torch.tensor([5, 6, 7, 7])
    together = choose(logits, *settings, seed, frame, 3)
    for slot in range(4):
        one = slice(slot, slot + 1)
        alone = choose(logits[one], *(s[one] for s in settings), seed[one], frame[one], 3)
        assert alone == together[slot]


def test_seed_frame_stream_and_token_each_change_the_noise(torch: ModuleType) -> None:
    tokens = torch.arange(50)

    def noise(seed: int, frame: int, stream: int) -> Any:
        return gumbel(torch.tensor([seed]), torch.tensor([frame]), stream, tokens)[0]

    base = noise(1, 1, 1)
    assert torch.equal(base, noise(1, 1, 1))
    for other in (noise(2, 1, 1), noise(1, 2, 1), noise(1, 1, 2)):
        assert (other != base).all()
    assert base.unique().numel() == 50
    assert base.isfinite().all()


def test_new_settings_are_greedy(torch: ModuleType) -> None:
    assert all((tensor == 0).all() for tensor in Sampling.new(3).tensors())
