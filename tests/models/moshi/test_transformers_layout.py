"""Checkpoints as transformers writes them, computed as transformers computes them."""

from types import ModuleType
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")

from duologue.models.moshi.kyutai_layout import UnsupportedCheckpoint
from duologue.models.moshi.language_model import NOT_GIVEN, LanguageModel
from duologue.models.moshi.mimi import Mimi
from duologue.models.moshi.sampling import Sampling
from duologue.models.moshi.transformers_layout import (
    MimiSettings,
    MoshiSettings,
    codec_part,
    language_config,
    language_tensors,
    mimi_config,
    mimi_tensors,
    side_by_side,
)

FRAMES = 24  # theirs has no window when it sees the whole


@pytest.fixture(scope="module")
def settings(hub_moshi: Any) -> MoshiSettings:
    return msgspec.convert(hub_moshi.config.to_dict(), MoshiSettings)


def test_every_greedy_choice_is_the_likeliest_of_transformers(
    torch: ModuleType, hub_moshi: Any, settings: MoshiSettings
) -> None:
    """Ours talks freely; the columns it made then go through theirs as a whole."""
    config = language_config(settings)
    ours = LanguageModel(config)
    ours.load_state_dict(language_tensors(hub_moshi.state_dict(), config))
    slots, made = 2, 1 + config.agent_codebooks
    state = ours.new_state(slots)
    heard = torch.randint(0, 32, (FRAMES, slots, 4), generator=torch.Generator().manual_seed(6))
    free = torch.full((slots, made), NOT_GIVEN)
    everyone = torch.ones(slots, dtype=torch.bool)
    columns, chosen = [], []
    for index in range(FRAMES):
        ours.step(heard[index], free, Sampling.new(slots), state, everyone)
        ring = state.columns.shape[2]
        blank = index <= ours.delays
        columns.append(torch.where(blank, ours.initial, state.columns[:, :, index % ring]))
        chosen.append(state.columns[:, :made, (index + 1) % ring].clone())
    sequence = torch.stack(columns, dim=1)  # [slots, frames, rows]
    embedded = hub_moshi.decoder.model.embed_tokens(sequence[..., 0])
    for row, embed in enumerate(hub_moshi.embed_tokens, start=1):
        embedded = embedded + embed(sequence[..., row])
    hidden = hub_moshi.decoder.model(inputs_embeds=embedded, use_cache=False).last_hidden_state
    text = hub_moshi.decoder.lm_head(hidden).argmax(dim=-1)
    for index in range(FRAMES):
        assert torch.equal(text[:, index], chosen[index][:, 0])
        codes = hub_moshi.depth_decoder(
            input_ids=chosen[index][:, :-1],
            last_hidden_state=hidden[:, index : index + 1],
            attention_mask=torch.ones(slots, config.agent_codebooks),
            use_cache=False,
        ).logits.argmax(dim=-1)
        assert torch.equal(codes, chosen[index][:, 1:])


def test_the_codec_inside_is_a_mimi(
    torch: ModuleType, hub_moshi: Any, settings: MoshiSettings
) -> None:
    config = mimi_config(settings.audio_encoder_config)
    ours = Mimi(config)
    ours.load_state_dict(mimi_tensors(codec_part(hub_moshi.state_dict()), config))
    pcm = torch.randn(1, 4 * config.frame_samples, generator=torch.Generator().manual_seed(1))
    expected = hub_moshi.audio_encoder.encode(pcm[:, None], num_quantizers=4).audio_codes
    assert torch.equal(ours.encode(pcm, 4), expected)


def test_names_of_the_published_codec_are_known_too(hub_mimi: Any) -> None:
    """Checkpoints leave out which half of the codec a part is in."""
    config = hub_mimi.ours.config
    tensors = hub_mimi.theirs.state_dict()
    published = {
        name.replace("encoder.encoder_seanet.", "encoder.")
        .replace("decoder.decoder_seanet.", "decoder.")
        .replace("encoder.encoder_transformer.", "encoder_transformer.")
        .replace("decoder.decoder_transformer.", "decoder_transformer.")
        .replace("encoder.downsample.", "downsample.")
        .replace("decoder.upsample.", "upsample."): tensor
        for name, tensor in tensors.items()
    }
    assert published.keys() != tensors.keys()
    expected = mimi_tensors(tensors, config)
    found = mimi_tensors(published, config)
    assert found.keys() == expected.keys()
    assert all((found[name] == expected[name]).all() for name in expected)


def test_pairs_half_a_head_apart_come_side_by_side(torch: ModuleType) -> None:
    rows = torch.arange(8)[:, None]
    assert side_by_side(rows, heads=2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_what_is_not_a_moshi_is_refused(settings: MoshiSettings) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="language model"):
        language_config(msgspec.structs.replace(settings, hidden_act="gelu"))
    with pytest.raises(UnsupportedCheckpoint, match="codec"):
        mimi_config(MimiSettings(use_conv_shortcut=True))
