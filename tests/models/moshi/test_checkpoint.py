"""Checkpoints in folders, found and loaded."""

import io
import json
import tarfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch comes with duologue[moshi]")
pytest.importorskip("safetensors", reason="safetensors comes with duologue[moshi]")

from safetensors.torch import save_file

from duologue.models.moshi.checkpoint import (
    Checkpoint,
    load_language_model,
    load_mimi,
    load_temporal_part,
    read_checkpoint,
    unpack_voices,
)
from duologue.models.moshi.duplex_network import DuplexNetwork
from duologue.models.moshi.kyutai_layout import UnsupportedCheckpoint
from duologue.models.moshi.language_model import NOT_GIVEN
from duologue.models.moshi.narrow_weights import Narrow, NarrowLinear
from duologue.models.moshi.sampling import Sampling
from duologue.models.moshi.tensor_shards import Shard


def save(torch: ModuleType, module: Any, path: Path) -> None:
    tensors = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    save_file(tensors, path)


@pytest.fixture
def kyutai(
    tmp_path: Path, torch: ModuleType, language: Any, mimi: Any, language_settings: Any
) -> Path:
    """A folder as Kyutai's, with the names that its own configuration gives."""
    folder = tmp_path / "kyutai"
    folder.mkdir()
    save(torch, language.theirs, folder / "lm.safetensors")
    save(torch, mimi.theirs, folder / "codec.safetensors")
    (folder / "pieces.model").write_bytes(b"")
    (folder / "codec.json").write_text(json.dumps(language_settings.mimi))
    names = {
        "moshi_name": "lm.safetensors",
        "mimi_name": "codec.safetensors",
        "mimi_config_name": "codec.json",
        "tokenizer_name": "pieces.model",
        "model_type": "moshi",
        "lm_gen_config": {"temp": 0.8},
    }
    (folder / "config.json").write_text(json.dumps(language_settings.language | names))
    return folder


def test_a_folder_of_kyutais_gives_both_networks(
    kyutai: Path, torch: ModuleType, language: Any, mimi: Any
) -> None:
    checkpoint = read_checkpoint(kyutai)
    assert (checkpoint.kind, checkpoint.layout) == ("moshi", "kyutai")
    assert checkpoint.tokenizer == kyutai / "pieces.model"
    loaded = load_language_model(checkpoint, dtype=torch.float32)
    codec = load_mimi(checkpoint)
    for ours, expected in ((loaded, language.ours), (codec, mimi.ours)):
        found = ours.state_dict()
        assert found.keys() == expected.state_dict().keys()
        for name, tensor in expected.state_dict().items():
            assert torch.equal(found[name], tensor)
        for name, buffer in expected.named_buffers():
            assert torch.equal(ours.get_buffer(name), buffer)
        assert not any(parameter.requires_grad for parameter in ours.parameters())


def test_the_language_model_is_narrow_unless_asked_otherwise(
    kyutai: Path, torch: ModuleType
) -> None:
    checkpoint = read_checkpoint(kyutai)
    model = load_language_model(checkpoint)
    assert model.text_linear.weight.dtype == torch.bfloat16
    assert model.transformer.frequencies.dtype == torch.float32
    assert load_mimi(checkpoint).downsample.conv.weight.dtype == torch.float32


def test_a_hibiki_reads_the_end_as_padding(kyutai: Path, torch: ModuleType) -> None:
    path = kyutai / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "hibiki"}))
    checkpoint = read_checkpoint(kyutai)
    assert checkpoint.kind == "hibiki"
    text = load_language_model(checkpoint, dtype=torch.float32).text_emb.weight
    assert torch.equal(text[2], text[3])


def parts_together(torch: ModuleType, checkpoint: Checkpoint) -> dict[str, Any]:
    """The temporal transformer's tensors, put together from those of two ranks."""
    first = load_language_model(checkpoint, dtype=torch.float32, shard=Shard(0, 2))
    second = load_temporal_part(checkpoint, "cpu", torch.float32, shard=Shard(1, 2))
    halves = first.transformer.state_dict(), second.state_dict()
    assert halves[0].keys() == halves[1].keys()
    assert (second.frequencies == first.transformer.frequencies).all()
    together = {}
    for name, half in halves[0].items():
        other = halves[1][name]
        if "in_proj" in name or "linear_in" in name:
            groups = 3 if "in_proj" in name else 2
            pairs = zip(half.chunk(groups), other.chunk(groups), strict=True)
            together[name] = torch.cat([torch.cat(pair) for pair in pairs])
        elif "out_proj" in name or "linear_out" in name:
            together[name] = torch.cat([half, other], dim=1)
        else:
            assert torch.equal(half, other)
            together[name] = half
    return together


def test_two_ranks_have_all_of_kyutais_tensors(kyutai: Path, torch: ModuleType) -> None:
    checkpoint = read_checkpoint(kyutai)
    whole = load_language_model(checkpoint, dtype=torch.float32)
    for name, tensor in parts_together(torch, checkpoint).items():
        assert torch.equal(tensor, whole.transformer.state_dict()[name]), name
    assert torch.equal(
        load_language_model(checkpoint, dtype=torch.float32, shard=Shard(0, 2)).depth.state_dict()[
            "text_emb.weight"
        ],
        whole.depth.text_emb.weight,
    )


def test_two_ranks_have_all_of_transformers_tensors(
    tmp_path: Path, torch: ModuleType, hub_moshi: Any
) -> None:
    hub_moshi.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    whole = load_language_model(checkpoint, dtype=torch.float32).transformer.state_dict()
    for name, tensor in parts_together(torch, checkpoint).items():
        assert torch.equal(tensor, whole[name]), name


def test_heads_that_do_not_split_are_told(kyutai: Path, torch: ModuleType) -> None:
    with pytest.raises(UnsupportedCheckpoint, match="heads do not split into 3 equal parts"):
        load_language_model(read_checkpoint(kyutai), shard=Shard(0, 3))


def logits_of(torch: ModuleType, model: Any, frames: int) -> Any:
    """The text's logits, ``[frames, tokens]``, when everything that is said and heard is given."""
    config, seen = model.config, []
    hook = model.text_linear.register_forward_hook(
        lambda module, args, output: seen.append(output[0].clone())
    )
    state, sampling = model.new_state(1), Sampling.new(1)
    generator = torch.Generator().manual_seed(4)
    everyone = torch.ones(1, dtype=torch.bool)
    for _ in range(frames):
        heard = torch.randint(0, config.card, (1, config.user_codebooks), generator=generator)
        given = torch.randint(0, config.card, (1, 1 + config.agent_codebooks), generator=generator)
        model.step(heard, given, sampling, state, everyone)
    hook.remove()
    assert NOT_GIVEN not in given
    return torch.stack(seen)


@pytest.mark.parametrize(("narrow", "near"), [("int8", 0.1), ("fp8", 0.7)])
def test_weights_in_8_bits_move_the_logits_little(
    kyutai: Path, torch: ModuleType, narrow: Narrow, near: float
) -> None:
    checkpoint = read_checkpoint(kyutai)
    wide = load_language_model(checkpoint, dtype=torch.float32)
    model = load_language_model(checkpoint, dtype=torch.float32, narrow=narrow)
    assert _linear(model.transformer.layers) == {NarrowLinear}
    assert NarrowLinear not in _linear(model.depth.layers)
    assert type(model.text_linear) is torch.nn.Linear
    expected, found = (logits_of(torch, one, 16) for one in (wide, model))
    apart = (found - expected).abs() / expected.std()
    assert 0 < apart.max() < near
    assert apart.mean() < near / 4


def _linear(layers: Any) -> set[type]:
    return {type(one) for one in layers.modules() if "Linear" in type(one).__name__}


def test_a_rank_keeps_its_part_in_8_bits(kyutai: Path, torch: ModuleType) -> None:
    part = load_temporal_part(
        read_checkpoint(kyutai), "cpu", torch.bfloat16, shard=Shard(1, 2), narrow="fp8"
    )
    mlp = part.layers[0].mlp
    assert isinstance(mlp.linear_out, NarrowLinear)
    assert mlp.linear_out.weight.shape == (part.config.d_model, part.config.hidden // 2)
    assert part.new_state(1).pools[0].keys.dtype == torch.bfloat16


def test_a_folder_without_sizes_holds_a_7b_model(tmp_path: Path) -> None:
    """As NVIDIA's PersonaPlex, which also brings its voices."""
    for name in ("model.safetensors", "tokenizer-e351c8d8-checkpoint125.safetensors"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "tokenizer_spm_32k_3.model").write_bytes(b"")
    assert read_checkpoint(tmp_path).kind == "moshi"
    (tmp_path / "voices.tgz").write_bytes(b"")
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.kind == "personaplex"
    assert checkpoint.voices == tmp_path / "voices.tgz"
    assert checkpoint.language is not None
    assert checkpoint.language.temporal.num_layers == 32
    assert checkpoint.language.temporal.hidden == 11264
    assert (checkpoint.language.agent_codebooks, checkpoint.language.user_codebooks) == (8, 8)
    assert checkpoint.mimi.frame_samples == 1920
    assert checkpoint.mimi.frame_rate == 12.5


def test_a_folder_of_transformers_gives_both_networks(
    tmp_path: Path, torch: ModuleType, hub_moshi: Any
) -> None:
    hub_moshi.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert (checkpoint.kind, checkpoint.layout) == ("moshi", "transformers")
    assert checkpoint.tokenizer is None
    network = DuplexNetwork(
        load_language_model(checkpoint, dtype=torch.float32), load_mimi(checkpoint)
    )
    assert network.frame_samples == 48
    expected = hub_moshi.decoder.lm_head.weight
    assert torch.equal(network.language.text_linear.weight, expected)


def test_a_folder_of_transformers_mimi_is_a_codec_alone(
    tmp_path: Path, torch: ModuleType, hub_mimi: Any
) -> None:
    hub_mimi.theirs.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.kind == "mimi"
    found = load_mimi(checkpoint).state_dict()
    for name, tensor in hub_mimi.ours.state_dict().items():
        assert torch.equal(found[name], tensor)
    with pytest.raises(UnsupportedCheckpoint, match="codec alone"):
        load_language_model(checkpoint)


def test_codec_and_language_model_must_fit(kyutai: Path, torch: ModuleType, hub_mimi: Any) -> None:
    model = load_language_model(read_checkpoint(kyutai))
    with pytest.raises(ValueError, match="different codebooks"):
        DuplexNetwork(model, hub_mimi.ours)


@pytest.mark.parametrize("name", ["lm.safetensors", "codec.safetensors", "pieces.model"])
def test_a_missing_file_is_named(name: str, kyutai: Path) -> None:
    (kyutai / name).unlink()
    with pytest.raises(UnsupportedCheckpoint, match=name):
        read_checkpoint(kyutai)


@pytest.mark.parametrize("content", ["[]", "{", '{"dim": "wide"}', '{"dim": 8}'])
def test_a_configuration_that_makes_no_sense_is_refused(content: str, kyutai: Path) -> None:
    (kyutai / "config.json").write_text(content)
    with pytest.raises(UnsupportedCheckpoint, match=r"config\.json"):
        read_checkpoint(kyutai)


def test_tensors_of_another_network_are_refused(kyutai: Path, language_settings: Any) -> None:
    path = kyutai / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_layers": 3}))
    with pytest.raises(UnsupportedCheckpoint, match="not the network's"):
        load_language_model(read_checkpoint(kyutai))


def test_voices_are_unpacked_within_their_folder(tmp_path: Path) -> None:
    archive = tmp_path / "voices.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("voices/NATF2.pt")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"voice"))
    (voice,) = unpack_voices(archive, tmp_path / "out")
    assert voice.name == "NATF2.pt"
    assert voice.read_bytes() == b"voice"


def test_voices_do_not_escape_their_folder(tmp_path: Path) -> None:
    archive = tmp_path / "voices.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("../escaped"), io.BytesIO(b""))
    with pytest.raises(UnsupportedCheckpoint, match=r"voices\.tgz"):
        unpack_voices(archive, tmp_path / "out")
    assert not (tmp_path / "escaped").exists()
