"""Sound to sound and text against the reference's loop of codec and language model."""

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.duplex_network import DuplexInput, DuplexNetwork
from duologue.models.moshi.language_model import NOT_GIVEN

FRAMES = 24  # the windows are 8 and 5


@pytest.fixture(scope="module")
def network(language: Any, mimi: Any) -> DuplexNetwork:
    return DuplexNetwork(language.ours, mimi.ours)


def sound(torch: ModuleType, network: DuplexNetwork, slots: int, frames: int) -> Any:
    generator = torch.Generator().manual_seed(11)
    return 0.3 * torch.randn(frames, slots, network.frame_samples, generator=generator)


def listen(torch: ModuleType, network: DuplexNetwork, pcm: Any, listening: Any) -> DuplexInput:
    slots, config = len(pcm), network.language.config
    return DuplexInput(
        pcm=pcm,
        forced=torch.full((slots, 1 + config.agent_codebooks), NOT_GIVEN),
        heard=torch.zeros(slots, config.user_codebooks, dtype=torch.int64),
        listening=listening,
        active=torch.ones(slots, dtype=torch.bool),
    )


def test_sound_and_text_equal_the_reference_past_both_windows(
    torch: ModuleType, network: DuplexNetwork, language: Any, mimi: Any
) -> None:
    from moshi.models.lm import LMGen

    pcm = sound(torch, network, 2, FRAMES)
    everyone = torch.ones(2, dtype=torch.bool)
    reference = LMGen(language.theirs, use_sampling=False, check=True)
    state = network.new_state(2)
    spoken = 0
    with reference.streaming(2), mimi.theirs.streaming(2):
        for index in range(FRAMES):
            codes = mimi.theirs.encode(pcm[index][:, None])
            tokens = reference.step(codes)
            output = network.step(listen(torch, network, pcm[index], everyone), state)
            if tokens is None:
                assert not output.ready.any()
                assert not output.pcm.any()
                continue
            assert torch.equal(output.text, tokens[:, 0, 0])
            assert torch.equal(output.codes, tokens[:, 1:, 0])
            expected = mimi.theirs.decode(tokens[:, 1:])[:, 0]
            assert (output.pcm - expected).abs().max() < 1e-4
            spoken += 1
    assert spoken == FRAMES - 1


def test_who_is_prompted_neither_hears_nor_speaks(
    torch: ModuleType, network: DuplexNetwork
) -> None:
    pcm = sound(torch, network, 2, 4)
    state = network.new_state(2)
    listening = torch.tensor([True, False])
    for frame in pcm:
        output = network.step(listen(torch, network, frame, listening), state)
        assert not output.pcm[1].any()
    assert output.ready.tolist() == [True, False]
    assert output.pcm[0].any()
    assert state.language.offset.tolist() == [4, 4]
    assert state.encoder.transformer.offset.tolist() == [8, 0]
    assert state.decoder.transformer.offset.tolist() == [6, 0]


def test_a_recorded_voice_becomes_the_agents_codes(
    torch: ModuleType, network: DuplexNetwork
) -> None:
    pcm = sound(torch, network, 1, 3)[:, 0].flatten()
    codes = network.encode_voice(torch.cat([pcm, pcm[:7]]))
    assert codes.shape == (3, network.language.config.agent_codebooks)
    assert torch.equal(codes, network.mimi.encode(pcm[None], codes.shape[1])[0].T)


def test_narrow_weights_and_keys_say_nearly_the_same(
    torch: ModuleType, make_language: Any, mimi: Any, network: DuplexNetwork
) -> None:
    """bfloat16 has 8 bits: in a few frames the likeliest text stays the likeliest."""
    narrow = DuplexNetwork(make_language().ours.to(torch.bfloat16), mimi.ours)
    state, exact = narrow.new_state(2, torch.bfloat16), network.new_state(2)
    everyone = torch.ones(2, dtype=torch.bool)
    same = 0
    for frame in sound(torch, network, 2, 6):
        inputs = listen(torch, network, frame, everyone)
        output, expected = narrow.step(inputs, state), network.step(inputs, exact)
        assert output.pcm.dtype == torch.float32
        assert output.pcm.isfinite().all()
        same += int((output.text == expected.text).sum())
    assert same >= 9
    assert state.language.temporal.pools[0].keys.dtype == torch.bfloat16
