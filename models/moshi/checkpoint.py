"""Finding a checkpoint's files in a folder, and loading its networks.

Four layouts are known. Kyutai's: a language model, ``tokenizer-*.safetensors`` with the codec,
a sentencepiece model and a ``config.json`` with sizes and file names. NVIDIA's PersonaPlex: the
same files, sizes left out, and ``voices.tgz``. transformers' Moshi: all networks in
``model*.safetensors``. transformers' Mimi: the codec alone.
"""

import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from duologue.models.moshi import kyutai_layout, transformers_layout
from duologue.models.moshi.kyutai_layout import UnsupportedCheckpoint
from duologue.models.moshi.language_model import LanguageModel
from duologue.models.moshi.mimi import Mimi
from duologue.models.moshi.moshi_config import MimiConfig, MoshiConfig
from duologue.models.moshi.narrow_weights import Narrow, narrow_layers
from duologue.models.moshi.tensor_shards import WHOLE, Shard, read_shard
from duologue.models.moshi.transformer import TemporalTransformer, Transformer

Kind = Literal["moshi", "personaplex", "hibiki", "mimi"]

Network = TypeVar("Network", bound=nn.Module)

VOICES = "voices.tgz"


class _Header(msgspec.Struct, frozen=True):
    """What tells the layouts apart, and Kyutai's file names."""

    model_type: str = ""
    dim: int | None = None
    moshi_name: str = "model.safetensors"
    mimi_name: str = "tokenizer-e351c8d8-checkpoint125.safetensors"
    mimi_config_name: str | None = None
    tokenizer_name: str = "tokenizer_spm_32k_3.model"
    audio_encoder_config: dict[str, msgspec.Raw] | None = None
    sampling_rate: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Where everything is. ``language`` is ``None`` where there is a codec alone."""

    kind: Kind
    layout: Literal["kyutai", "transformers"]
    mimi: MimiConfig
    mimi_files: tuple[Path, ...]
    language: MoshiConfig | None = None
    language_files: tuple[Path, ...] = ()
    tokenizer: Path | None = None
    voices: Path | None = None


def read_checkpoint(folder: Path) -> Checkpoint:
    """Look a folder over; no tensor is read.

    Raises :exc:`UnsupportedCheckpoint`, also where a file is missing.
    """
    path = folder / "config.json"
    content = path.read_bytes() if path.is_file() else b"{}"
    try:
        header = msgspec.json.decode(content, type=_Header)
        if header.audio_encoder_config is not None or header.sampling_rate is not None:
            return _transformers(folder, content, header)
        return _kyutai(folder, content, header)
    except msgspec.MsgspecError as error:
        raise UnsupportedCheckpoint(f"{path}: {error}") from error


def _kyutai(folder: Path, content: bytes, header: _Header) -> Checkpoint:
    settings = kyutai_layout.settings_7b()
    if header.dim is not None:
        settings = msgspec.json.decode(content, type=kyutai_layout.LanguageSettings)
    mimi = MimiConfig()
    if header.mimi_config_name is not None:
        own = _there(folder / header.mimi_config_name).read_bytes()
        mimi = kyutai_layout.mimi_config(msgspec.json.decode(own, type=kyutai_layout.MimiSettings))
    voices = folder / VOICES
    kind: Kind = "hibiki" if header.model_type == "hibiki" else "moshi"
    if header.model_type == "personaplex" or voices.exists():
        kind = "personaplex"
    return Checkpoint(
        kind=kind,
        layout="kyutai",
        mimi=mimi,
        mimi_files=(_there(folder / header.mimi_name),),
        language=kyutai_layout.language_config(settings),
        language_files=(_there(folder / header.moshi_name),),
        tokenizer=_there(folder / header.tokenizer_name),
        voices=voices if voices.exists() else None,
    )


def _transformers(folder: Path, content: bytes, header: _Header) -> Checkpoint:
    files = tuple(sorted(folder.glob("model*.safetensors")))
    if not files:
        raise UnsupportedCheckpoint(f"{folder} has no model.safetensors")
    if header.audio_encoder_config is None:
        codec = msgspec.json.decode(content, type=transformers_layout.MimiSettings)
        return Checkpoint(
            kind="mimi",
            layout="transformers",
            mimi=transformers_layout.mimi_config(codec),
            mimi_files=files,
        )
    settings = msgspec.json.decode(content, type=transformers_layout.MoshiSettings)
    tokenizer = folder / "tokenizer.json"
    return Checkpoint(
        kind="moshi",
        layout="transformers",
        mimi=transformers_layout.mimi_config(settings.audio_encoder_config),
        mimi_files=files,
        language=transformers_layout.language_config(settings),
        language_files=files,
        tokenizer=tokenizer if tokenizer.is_file() else None,
    )


def _there(path: Path) -> Path:
    if not path.is_file():
        raise UnsupportedCheckpoint(f"{path} is missing")
    return path


def load_mimi(checkpoint: Checkpoint, device: str = "cpu") -> Mimi:
    """The codec, in float32. Raises :exc:`UnsupportedCheckpoint`."""
    tensors = _tensors(checkpoint.mimi_files, device)
    if checkpoint.layout == "kyutai":
        tensors = kyutai_layout.mimi_tensors(tensors)
    else:
        if checkpoint.language is not None:
            tensors = transformers_layout.codec_part(tensors)
        tensors = transformers_layout.mimi_tensors(tensors, checkpoint.mimi)
    with torch.device("meta"):
        codec = Mimi(checkpoint.mimi)
    return _filled(codec, tensors, torch.float32)


def load_language_model(
    checkpoint: Checkpoint,
    device: str = "cpu",
    dtype: torch.dtype = torch.bfloat16,
    *,
    shard: Shard = WHOLE,
    narrow: Narrow | None = None,
) -> LanguageModel:
    """The language model, or what the first rank has of it. Raises :exc:`UnsupportedCheckpoint`.

    ``narrow``: keep the weights of the temporal transformer's layers so; then the wide ones are
    never on the device together. The depth transformer's layers are so small that rounding what
    they are given takes as long as it saves.
    """
    config, tensors = _language_tensors(checkpoint, shard, device if narrow is None else "cpu")
    if checkpoint.kind == "hibiki":
        # The end of a translation is sampled too early at times; it is read as padding instead.
        text = tensors["text_emb.weight"]
        text[2] = text[config.text_padding]
    with torch.device("meta"):
        model = LanguageModel(config)
    _filled(model, tensors, dtype)
    if narrow is not None:
        narrow_layers(model.transformer.layers, narrow, device)
        model.to(device)
    return model


def load_temporal_part(
    checkpoint: Checkpoint,
    device: str,
    dtype: torch.dtype,
    *,
    shard: Shard,
    narrow: Narrow | None = None,
) -> TemporalTransformer:
    """What a rank that is not the first has. See :func:`load_language_model`."""
    config, tensors = _language_tensors(checkpoint, shard, device if narrow is None else "cpu")
    with torch.device("meta"):
        part = TemporalTransformer(config.temporal)
    named = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    _filled(part, named, dtype)
    if narrow is not None:
        narrow_layers(part.layers, narrow, device)
        part.to(device)
    return part


def _language_tensors(
    checkpoint: Checkpoint, shard: Shard, device: str
) -> tuple[MoshiConfig, dict[str, Tensor]]:
    """Sizes and weights of one rank, under our names."""
    if checkpoint.language is None:
        raise UnsupportedCheckpoint("the checkpoint is a codec alone")
    config = shared_out(checkpoint.language, shard.ranks)
    if shard.ranks == 1:
        tensors = _tensors(checkpoint.language_files, device)
    else:
        try:
            tensors = read_shard(checkpoint.language_files, config.temporal, shard, device)
        except ValueError as error:
            raise UnsupportedCheckpoint(str(error)) from error
    layout = kyutai_layout if checkpoint.layout == "kyutai" else transformers_layout
    return config, layout.language_tensors(tensors, config)


def shared_out(config: MoshiConfig, ranks: int) -> MoshiConfig:
    """The sizes for so many ranks. Raises :exc:`UnsupportedCheckpoint`."""
    try:
        return replace(config, temporal=replace(config.temporal, shards=ranks))
    except ValueError as error:
        raise UnsupportedCheckpoint(str(error)) from error


def _tensors(files: tuple[Path, ...], device: str) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors.update(load_file(file, device=device))
    return tensors


def _filled(network: Network, tensors: dict[str, Tensor], dtype: torch.dtype) -> Network:
    """The network, made on no device, with these weights and what it computes by itself."""
    tensors = {
        name: tensor.to(dtype) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    try:
        network.load_state_dict(tensors, assign=True)
    except RuntimeError as error:
        raise UnsupportedCheckpoint(f"the tensors are not the network's: {error}") from error
    device = next(iter(tensors.values())).device
    for module in network.modules():
        if isinstance(module, TemporalTransformer | Transformer | LanguageModel):
            module.set_constants(device)
    network.requires_grad_(False)
    return network


def unpack_voices(archive: Path, folder: Path) -> tuple[Path, ...]:
    """The files of PersonaPlex' voices, unpacked; names are theirs (``NATF2.pt``).

    Raises :exc:`UnsupportedCheckpoint` for an archive that is none, or leads out of the folder.
    """
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except tarfile.TarError as error:
        raise UnsupportedCheckpoint(f"{archive}: {error}") from error
    return tuple(sorted(path for path in folder.rglob("*") if path.is_file()))
