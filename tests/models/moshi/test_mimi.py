"""The codec against transformers' and the ``moshi`` package's, whole and as a stream."""

from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.mimi import Mimi

FRAMES = 30  # the transformers see 5
LEVELS = 4


def noise(torch: ModuleType, model: Mimi, slots: int, frames: int = FRAMES, seed: int = 3) -> Any:
    generator = torch.Generator().manual_seed(seed)
    return 0.3 * torch.randn(slots, frames * model.config.frame_samples, generator=generator)


def frames(model: Mimi, pcm: Any) -> Any:
    return pcm.split(model.config.frame_samples, dim=1)


def test_codes_and_sound_equal_those_of_transformers(torch: ModuleType, hub_mimi: Any) -> None:
    model = hub_mimi.ours
    pcm = noise(torch, model, 3)
    expected = hub_mimi.theirs.encode(pcm[:, None], num_quantizers=LEVELS).audio_codes
    codes = model.encode(pcm, LEVELS)
    assert torch.equal(codes, expected)
    assert codes.unique().numel() > 8
    sound = hub_mimi.theirs.decode(expected).audio_values[:, 0]
    assert (model.decode(codes) - sound).abs().max() < 1e-4
    assert sound.abs().max() > 0.1


def test_a_stream_equals_the_whole(torch: ModuleType, hub_mimi: Any) -> None:
    model = hub_mimi.ours
    pcm = noise(torch, model, 2)
    codes = model.encode(pcm, LEVELS)
    sound = model.decode(codes)
    encoder, decoder = model.new_encoder_state(2), model.new_decoder_state(2)
    for index, piece in enumerate(frames(model, pcm)):
        frame = model.encode(piece, LEVELS, encoder)
        assert torch.equal(frame, codes[:, :, index : index + 1])
        samples = model.config.frame_samples
        expected = sound[:, index * samples : (index + 1) * samples]
        assert (model.decode(frame, decoder) - expected).abs().max() < 1e-4


def test_pieces_may_hold_several_frames(torch: ModuleType, hub_mimi: Any) -> None:
    model = hub_mimi.ours
    pcm = noise(torch, model, 1, frames=4)
    encoder = model.new_encoder_state(1)
    half = 2 * model.config.frame_samples
    pieces = [model.encode(pcm[:, :half], LEVELS, encoder)]
    pieces.append(model.encode(pcm[:, half:], LEVELS, encoder))
    assert torch.equal(torch.cat(pieces, dim=2), model.encode(pcm, LEVELS))


def test_a_stream_equals_the_reference_stream_past_its_window(torch: ModuleType, mimi: Any) -> None:
    model = mimi.ours
    pcm = noise(torch, model, 2)
    encoder, decoder = model.new_encoder_state(2), model.new_decoder_state(2)
    with mimi.theirs.streaming(2):
        for piece in frames(model, pcm):
            expected = mimi.theirs.encode(piece[:, None])
            codes = model.encode(piece, LEVELS, encoder)
            assert torch.equal(codes, expected)
            sound = mimi.theirs.decode(expected)[:, 0]
            assert (model.decode(codes, decoder) - sound).abs().max() < 1e-4


def test_each_slot_starts_stops_and_resets_by_itself(torch: ModuleType, hub_mimi: Any) -> None:
    model = hub_mimi.ours
    pcm = noise(torch, model, 1)
    whole = model.encode(pcm, LEVELS)
    sound = model.decode(whole)
    encoder, decoder = model.new_encoder_state(2), model.new_decoder_state(2)
    pieces = frames(model, pcm)
    samples = model.config.frame_samples
    for index in range(FRAMES):
        if index == 12:
            encoder.reset(torch.tensor([False, True]))
            decoder.reset(torch.tensor([False, True]))
        second = pieces[index - 12] if index >= 12 else torch.zeros_like(pieces[0])
        # The first slot sleeps through what is meant for another.
        for listening in ([False, False], [True, True]):
            mask = torch.tensor(listening)
            stacked = torch.cat([pieces[index] if listening[0] else pieces[5], second])
            codes = model.encode(stacked, LEVELS, encoder, mask)
            pcm_out = model.decode(codes, decoder, mask)
        assert torch.equal(codes[0], whole[0, :, index : index + 1])
        assert (pcm_out[0] - sound[0, index * samples :][:samples]).abs().max() < 1e-4
        if index >= 12:
            assert torch.equal(codes[1], whole[0, :, index - 12 : index - 11])
            assert (pcm_out[1] - sound[0, (index - 12) * samples :][:samples]).abs().max() < 1e-4


def test_one_codebook_is_enough(torch: ModuleType, hub_mimi: Any) -> None:
    model = hub_mimi.ours
    pcm = noise(torch, model, 1, frames=3)
    codes = model.encode(pcm, 1)
    assert torch.equal(codes, model.encode(pcm, LEVELS)[:, :1])
    assert model.decode(codes).shape == pcm.shape


@pytest.mark.parametrize("samples", [0, 47, 49])
def test_sound_that_is_not_whole_frames_is_refused(
    samples: int, torch: ModuleType, hub_mimi: Any
) -> None:
    with pytest.raises(ValueError, match="not frames of 48"):
        hub_mimi.ours.encode(torch.zeros(1, samples), LEVELS)
