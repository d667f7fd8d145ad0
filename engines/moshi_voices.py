"""The voices that a Moshi-family model can be told: files beside it, and one the operator names."""

import logging
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from duologue.codecs.media import CodecError, Float32Samples
from duologue.codecs.pcm import to_float
from duologue.codecs.resample import Resampler
from duologue.codecs.wav import read_wav
from duologue.engines.duplex_model import DuplexInvalid
from duologue.models.moshi.checkpoint import unpack_voices
from duologue.models.moshi.kyutai_layout import UnsupportedCheckpoint
from duologue.models.moshi.language_model import LanguageModel
from duologue.models.moshi.voice_prompts import NoVoice, voice_codes

log = logging.getLogger("duologue.engines.worker")

FOLDER: Final = "voices"
"""Beside the checkpoint's files."""

PICKLED: Final = (
    "is a pickle, which may run whatever is in it when it is opened, so it is not; convert it to "
    "safetensors (docs/engines.md, PersonaPlex' voices)"
)


@dataclass(frozen=True, slots=True)
class Voice:
    """Either a WAV file or the codes of one, ``[frames][agent_codebooks]``."""

    wav: bytes = b""
    codes: tuple[tuple[int, ...], ...] = ()


def find_voices(
    folder: Path, archive: Path | None, named: str, model: LanguageModel
) -> dict[str, Voice]:
    """By name: what is in the archive, then what is in the folder :data:`FOLDER`, then the file
    that ``named`` is, if it is one. Raises UnsupportedCheckpoint for one that can't be used."""
    voices: dict[str, Voice] = {}
    if archive is not None:
        with tempfile.TemporaryDirectory(prefix="voices-") as unpacked:
            voices |= _read_all(unpack_voices(archive, Path(unpacked)), model)
    beside = folder / FOLDER
    if beside.is_dir():
        voices |= _read_all(sorted(beside.iterdir()), model)
    if (path := _path(named)) is not None:
        voices |= dict(_read(path, model))
    return voices


def voice_name(named: str) -> str:
    """What the voice is called that the operator names, by its name or its file. Raises
    UnsupportedCheckpoint for a file that is not opened."""
    if named.endswith(".pt"):
        raise UnsupportedCheckpoint(f"voice: {named} {PICKLED}")
    path = _path(named)
    return named if path is None else path.stem


def _path(named: str) -> Path | None:
    return Path(named).expanduser() if named.endswith((".wav", ".safetensors")) else None


def _read_all(files: Iterable[Path], model: LanguageModel) -> dict[str, Voice]:
    voices: dict[str, Voice] = {}
    pickled = [path.name for path in files if path.suffix == ".pt"]
    for path in files:
        voices |= dict(_read(path, model))
    if left_out := [name for name in pickled if Path(name).stem not in voices]:
        log.warning("%s is left out: it %s", ", ".join(left_out), PICKLED)
    return voices


def _read(path: Path, model: LanguageModel) -> Iterator[tuple[str, Voice]]:
    try:
        if path.suffix == ".wav":
            yield path.stem, Voice(wav=path.read_bytes())
        elif path.suffix == ".safetensors":
            codes = voice_codes(path.read_bytes(), model)
            yield path.stem, Voice(codes=tuple(tuple(frame) for frame in codes))
    except OSError as error:
        raise UnsupportedCheckpoint(f"voice: {path}: {error.strerror}") from error
    except NoVoice as error:
        raise UnsupportedCheckpoint(f"voice: {path}: {error}") from error


def read_sound(name: str, wav: bytes, rate: int) -> Float32Samples:
    """A voice's WAV file at this rate. Raises DuplexInvalid."""
    try:
        chunk = read_wav(wav).mono()
    except CodecError as error:
        raise DuplexInvalid(f"the voice {name} can't be read: {error}") from error
    resampler = Resampler(chunk.rate, rate, np.float32)
    samples = to_float(chunk.samples)
    return np.concatenate([resampler.push(samples), resampler.flush()])
