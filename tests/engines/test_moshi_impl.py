"""Many sessions of a small Moshi with random weights, in and out of one pool of slots."""

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

import torch

from duologue.engines.lockstep import Lockstep
from duologue.engines.moshi_impl import MoshiStepper
from duologue.engines.tick_scheduler import TickRules, TickScheduler
from duologue.models.moshi.duplex_network import DuplexNetwork
from duologue.models.moshi.language_model import LanguageModel
from duologue.models.moshi.mimi import Mimi
from duologue.models.moshi.moshi_config import (
    GREEDY,
    DepthConfig,
    MimiConfig,
    MoshiConfig,
    QuantizerConfig,
    SamplingChoice,
    SeanetConfig,
    TransformerConfig,
)
from duologue.models.moshi.prompting_frames import ForcedFrame, PromptCodes, prompt_frames

CODEBOOKS = 4
SLOTS = 6
PICKY = SamplingChoice(seed=3)


def random_weights(module: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.dim() > 1:
            noise = torch.randn(tensor.shape, generator=generator)
            tensor.copy_(noise * 1.3 / tensor[0].numel() ** 0.5)
        elif tensor.dim() == 1 and tensor.requires_grad:
            tensor.fill_(0.05)


@pytest.fixture(scope="module")
def network() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    acoustic = (1,) * (CODEBOOKS - 1)
    language = LanguageModel(
        MoshiConfig(
            n_q=2 * CODEBOOKS,
            agent_codebooks=CODEBOOKS,
            card=32,
            text_card=40,
            text_card_out=40,
            delays=(0, 0, *acoustic, 0, *acoustic),
            temporal=TransformerConfig(d_model=32, num_heads=4, num_layers=2, hidden=64, context=8),
            depth=DepthConfig(
                d_model=16,
                num_heads=2,
                num_layers=2,
                hidden=(32,) * CODEBOOKS,
                schedule=tuple(range(CODEBOOKS)),
            ),
        )
    )
    mimi = Mimi(
        MimiConfig(
            sample_rate=600,
            seanet=SeanetConfig(dimension=32, n_filters=4, ratios=(4, 3, 2)),
            quantizer=QuantizerConfig(dimension=16, outer_dimension=32, n_q=CODEBOOKS, bins=32),
            transformer=TransformerConfig(
                d_model=32,
                num_heads=4,
                num_layers=2,
                hidden=48,
                context=10,
                norm="layer_norm",
                gating=False,
                layer_scale=True,
            ),
        )
    )
    for seed, module in enumerate((language, mimi)):
        random_weights(module, seed)
    yield DuplexNetwork(language, mimi)
    torch.set_num_threads(threads)


Sound = NDArray[np.float32]
Said = list[tuple[int | None, bytes]]


def engine(network: DuplexNetwork) -> Lockstep[Any]:
    return Lockstep(MoshiStepper(network, SLOTS))


def speech(network: DuplexNetwork, name: str, frames: int) -> list[Sound]:
    rng = np.random.default_rng(sum(name.encode()))
    noise = rng.standard_normal((frames, network.frame_samples))
    return list((0.3 * noise).astype(np.float32))


def prompt(network: DuplexNetwork, seed: int) -> list[ForcedFrame]:
    rng = np.random.default_rng(seed)
    voice = rng.integers(0, 32, (3, CODEBOOKS)).tolist()
    codes = PromptCodes(silence=(1,) * CODEBOOKS, user=(2,) * CODEBOOKS)
    return prompt_frames(network.language.config, voice, [7, 8, 9], codes)


def run(lockstep: Lockstep[Any], slot: int, sound: list[Sound]) -> Said:
    """Work through a session's prompt, then let it hear this."""
    while lockstep.is_prompting(slot):
        lockstep.step({})
    said: Said = []
    for frame in sound:
        spoken = lockstep.step({slot: frame})[slot]
        said.append((spoken.text, spoken.pcm.tobytes()))
    return said


@dataclass
class Guest:
    """A session to come: what it hears, and what it said."""

    name: str
    choice: SamplingChoice
    prompt: list[ForcedFrame]
    sound: list[Sound]
    said: Said = field(default_factory=list)
    heard: int = 0


def guests(network: DuplexNetwork, rng: random.Random) -> list[Guest]:
    return [
        Guest(
            name := f"guest {number}",
            rng.choice([GREEDY, PICKY]),
            prompt(network, number) if number % 4 == 0 else [],
            speech(network, name, rng.choice([3, 6, 12, 24])),
        )
        for number in range(32)
    ]


def test_sessions_that_come_and_go_say_what_they_would_say_alone(network: Any) -> None:
    """32 sessions join and leave 6 slots at random ticks; every sample and token is the same."""
    rng = random.Random(4)
    everyone = guests(network, rng)
    rules = TickRules(slots=SLOTS)
    scheduler: TickScheduler[Sound] = TickScheduler(rules)
    for size in range(1, SLOTS + 1):
        scheduler.times.add(size, 0.001)
    lockstep = engine(network)
    waiting, here, now = list(everyone), dict[str, tuple[Guest, int]](), 0.0
    most = 0
    while waiting or here:
        now += rules.period_s
        while waiting and scheduler.fits() and rng.random() < 0.4:
            guest = waiting.pop(0)
            slot = scheduler.join(guest.name)
            lockstep.seat(slot, guest.choice, guest.prompt)
            here[guest.name] = guest, slot
        for guest, slot in here.values():
            if not lockstep.is_prompting(slot):
                scheduler.offer(guest.name, guest.sound[guest.heard], now)
                guest.heard += 1
        most = max(most, len(scheduler))
        steps = scheduler.take(now + rules.gather_s)
        spoken = lockstep.step({step.slot: step.frame for step in steps})
        if steps:
            scheduler.finish(now + rules.gather_s)
        for step in steps:
            guest, slot = here[str(step.session)]
            frame = spoken[slot]
            guest.said.append((frame.text, frame.pcm.tobytes()))
            if len(guest.said) == len(guest.sound):
                scheduler.leave(guest.name)
                lockstep.leave(slot)
                del here[guest.name]
        if rng.random() < 0.3:
            lockstep.step({})
    assert most == SLOTS
    assert scheduler.totals.silent == scheduler.totals.dropped == 0
    alone = engine(network)
    for guest in everyone:
        slot = rng.randrange(SLOTS)
        alone.seat(slot, guest.choice, guest.prompt)
        expected = run(alone, slot, guest.sound)
        alone.leave(slot)
        assert [text for text, _ in guest.said] == [text for text, _ in expected], guest.name
        assert guest.said == expected, guest.name
    assert len({tuple(text for text, _ in guest.said) for guest in everyone}) > 16


def test_a_fork_equals_its_parent_until_their_inputs_differ(network: Any) -> None:
    lockstep = engine(network)
    lockstep.seat(0, PICKY)
    sound = speech(network, "parent", 40)
    run(lockstep, 0, sound[:12])
    lockstep.fork(0, 4)
    for frame in sound[12:24]:
        spoken = lockstep.step({0: frame, 4: frame})
        assert spoken[0].text == spoken[4].text
        assert (spoken[0].pcm == spoken[4].pcm).all()
    apart = False
    for frame in sound[24:]:
        spoken = lockstep.step({0: frame, 4: -frame})
        apart |= spoken[0].text != spoken[4].text
    assert apart


def test_a_session_that_rested_goes_on_in_another_slot(network: Any) -> None:
    sound = speech(network, "rests", 30)
    steady, halting = engine(network), engine(network)
    steady.seat(0, PICKY)
    halting.seat(0, PICKY)
    said = run(halting, 0, sound[:5])
    resting = halting.rest(0)
    halting.seat(0, GREEDY)
    run(halting, 0, speech(network, "another", 10))
    halting.wake(3, resting)
    said += run(halting, 3, sound[5:])
    assert said == run(steady, 0, sound)


def test_a_cached_prompt_leads_where_the_prompt_leads(network: Any) -> None:
    lockstep = engine(network)
    sound = speech(network, "user", 12)
    script = prompt(network, 1)
    lockstep.seat(0, GREEDY, script, "butler")
    first = run(lockstep, 0, sound)
    lockstep.seat(1, GREEDY, script, "butler")
    assert not lockstep.prompting
    assert run(lockstep, 1, sound) == first
    lockstep.seat(2, SamplingChoice(seed=8), script, "butler")
    assert run(lockstep, 2, sound) != first


def test_sessions_with_another_seed_say_something_else(network: Any) -> None:
    lockstep = engine(network)
    said = []
    for slot, seed in enumerate((1, 1, 2)):
        lockstep.seat(slot, SamplingChoice(seed=seed))
        said.append(run(lockstep, slot, speech(network, "a", 12)))
    assert said[0] == said[1] != said[2]


def test_the_first_frame_is_silence_and_then_it_speaks(network: Any) -> None:
    lockstep = engine(network)
    lockstep.seat(0, GREEDY)
    said = run(lockstep, 0, speech(network, "a", 5))
    assert said[0][0] is None
    assert not any(said[0][1])
    assert all(text is not None for text, _ in said[1:])
    assert any(any(pcm) for _, pcm in said[1:])


def test_memory_is_the_same_at_the_end_as_at_the_start(network: Any) -> None:
    stepper = MoshiStepper(network, SLOTS)
    lockstep = Lockstep(stepper)
    first = stepper.nbytes()
    addresses = [tensor.data_ptr() for tensor in stepper.state.tensors()]
    lockstep.seat(0, GREEDY)
    run(lockstep, 0, speech(network, "a", 20))
    assert stepper.nbytes() == first
    assert [tensor.data_ptr() for tensor in stepper.state.tensors()] == addresses


def test_there_is_at_least_one_slot(network: Any) -> None:
    with pytest.raises(ValueError, match="0 slots"):
        MoshiStepper(network, 0)
