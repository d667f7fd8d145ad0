"""What a larger batch, 8-bit keys and 8-bit weights change of what a Moshi says."""

import torch
from torch import Tensor

from duologue.engines.lockstep import Lockstep
from duologue.engines.moshi_impl import MoshiStepper
from duologue.models.moshi.duplex_network import DuplexNetwork
from duologue.models.moshi.language_model import NOT_GIVEN
from duologue.models.moshi.moshi_config import GREEDY, SamplingChoice
from duologue.models.moshi.paged_kv import FP8
from duologue.models.moshi.sampling import Sampling
from load_tests.tick_networks import narrowed
from load_tests.tick_rows import Row, free, speech


def divergence(network: DuplexNetwork, device: str, ticks: int) -> list[Row]:
    """How far the text's distribution moves: in a larger batch, and with keys and values, or the
    layers' weights, in 8 bits.

    Both runs are told the same tokens. Weights are random, so that many tokens are about equally
    likely: agreement on the likeliest is worse than a trained model's.
    """
    baseline, tokens = _logits(network, device, ticks, slots=2)
    rows: list[Row] = []
    for what, slots, kv, weights in (
        ("again", 2, None, "bf16"),
        ("batch of 64", 64, None, "bf16"),
        ("fp8 kv", 2, FP8, "bf16"),
        ("int8 weights", 2, None, "int8"),
        ("fp8 weights", 2, None, "fp8"),
    ):
        with narrowed(network, weights, device):
            other, _ = _logits(network, device, ticks, slots=slots, kv=kv, told=tokens)
        p = torch.log_softmax(baseline.float(), -1)
        q = torch.log_softmax(other.float(), -1)
        kl = (p.exp() * (p - q)).sum(-1)
        same = (baseline.argmax(-1) == other.argmax(-1)).float().mean()
        rows.append(
            {
                "changed": what,
                "kl_mean": float(f"{kl.mean().item():.3g}"),
                "kl_max": float(f"{kl.max().item():.3g}"),
                "logit_std": round(baseline.float().std().item(), 3),
                "likeliest_agrees": round(same.item(), 4),
            }
        )
    return rows


def _logits(
    network: DuplexNetwork,
    device: str,
    ticks: int,
    slots: int,
    kv: torch.dtype | None = None,
    told: list[Tensor] | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """The text's logits of slot 0, ``[ticks, tokens]``, and the columns it made or was told."""
    model = network.language
    config = model.config
    seen: list[Tensor] = []
    handle = model.text_linear.register_forward_hook(
        lambda module, args, output: seen.append(output[0].clone())
    )
    state = model.new_state(slots, kv)
    sampling = Sampling.new(slots, torch.device(device))
    generator = torch.Generator(device).manual_seed(5)
    active = torch.ones(slots, dtype=torch.bool, device=device)
    free_choice = torch.full((slots, 1 + config.agent_codebooks), NOT_GIVEN, device=device)
    made = []
    try:
        for tick in range(ticks):
            shape = (2, config.user_codebooks)
            heard = torch.randint(0, config.card, shape, generator=generator, device=device)
            forced = free_choice.clone()
            if told is not None and tick < len(told):
                forced[:] = told[tick]
            frame = model.step(heard.repeat(slots // 2, 1), forced, sampling, state, active)
            if frame is not None and tick >= config.max_delay:
                made.append(torch.cat([frame.text[:1], frame.codes[0]]))
    finally:
        handle.remove()
    return torch.stack(seen), made


def exact_beside_others(network: DuplexNetwork, slots: int, ticks: int) -> bool:
    """Whether a greedy session says the same alone and beside others, at one size of graph."""
    said = []
    for others in (False, True):
        stepper = MoshiStepper(network, slots)
        lockstep = Lockstep(stepper)
        lockstep.seat(slots - 1, GREEDY)
        mine = speech(slots, network.frame_samples)
        if others:
            for slot in range(slots - 1):
                lockstep.seat(slot, SamplingChoice(seed=slot))
        mouth = []
        for _ in range(ticks):
            frames = next(mine)
            if not others:
                frames = {slots - 1: frames[slots - 1]}
            spoken = lockstep.step(frames)[slots - 1]
            mouth.append((spoken.text, spoken.pcm.tobytes()))
        said.append(mouth)
        del stepper, lockstep
        free()
    return said[0] == said[1]
