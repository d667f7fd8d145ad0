"""Recorded speech: finding it, decoding it, and where in it somebody speaks.

Any file that FFmpeg reads will do; the default is Debian's ``asterisk-core-sounds-en-g722``
(G.722, 16 kHz, CC-BY-SA 3.0, spoken by Allison Smith).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

RATE = 24_000
"""Sample rate of everything here, in Hz: that of the Realtime protocol."""

FOLDER = Path("/usr/share/asterisk/sounds/en_US_f_Allison")
PACKAGE = "asterisk-core-sounds-en-g722"
ENDINGS = (".wav", ".flac", ".g722")

WINDOW = RATE // 100
"""Energy is measured over 10 ms."""

VOICED_BELOW_PEAK_DB = 35.0
"""A window is voiced when it is less than this below the recording's loudest window."""

QUESTIONS = (
    "agent-newlocation",
    "auth-incorrect",
    "followme/status",
    "privacy-prompt",
    "pbx-invalid",
    "demo-nomatch",
    "followme/sorry",
    "privacy-unident",
)
INTERRUPTIONS = (
    "tt-weasels",
    "tt-somethingwrong",
    "transfer",
    "queue-callswaiting",
    "privacy-incorrect",
    "hello-world",
)

Samples = NDArray[np.int16]


class RecordingError(Exception):
    """A recording is missing or can't be read."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Mono samples at 24 kHz. ``voiced``: the first and the last voiced sample; ``text``: words."""

    name: str
    samples: Samples
    voiced: tuple[int, int]
    text: str = ""

    @property
    def seconds(self) -> float:
        return len(self.samples) / RATE


def voiced_edges(samples: Samples, below_peak_db: float = VOICED_BELOW_PEAK_DB) -> tuple[int, int]:
    """The first sample of the first voiced 10 ms and the last sample of the last.

    Voiced is what has at least the energy of the loudest 10 ms less ``below_peak_db``. Raises
    RecordingError when there is no sound at all.
    """
    count = -(-len(samples) // WINDOW)
    padded = np.zeros(count * WINDOW)
    padded[: len(samples)] = samples
    power = np.square(padded.reshape(count, WINDOW)).mean(axis=1)
    if count == 0 or power.max() == 0:
        raise RecordingError("a recording of silence")
    voiced = np.nonzero(power >= power.max() * 10 ** (-below_peak_db / 10))[0]
    return int(voiced[0]) * WINDOW, min(len(samples), (int(voiced[-1]) + 1) * WINDOW) - 1


def decode(path: Path) -> Samples:
    """The samples of an audio file, mixed to mono at 24 kHz. Raises RecordingError."""
    form = "g722" if path.suffix == ".g722" else None
    resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
    pieces: list[Samples] = []
    try:
        with av.open(str(path), format=form) as container:
            for frame in container.decode(audio=0):
                pieces += [piece.to_ndarray()[0] for piece in resampler.resample(frame)]
            pieces += [piece.to_ndarray()[0] for piece in resampler.resample(None)]
    except (OSError, av.FFmpegError) as error:
        raise RecordingError(f"{path}: {error}") from error
    if not pieces:
        raise RecordingError(f"{path}: no audio in it")
    return np.concatenate(pieces)


def load(path: Path, name: str = "", text: str = "") -> Recording:
    """A recording from a file. Raises RecordingError."""
    samples = decode(path)
    return Recording(name or path.stem, samples, voiced_edges(samples), text)


def find(folder: Path, name: str) -> Path | None:
    """The file of a recording that is named without its ending."""
    paths = (folder / f"{name}{ending}" for ending in ENDINGS)
    return next((path for path in paths if path.is_file()), None)


def load_named(folder: Path, names: Sequence[str]) -> list[Recording]:
    """Those of the named recordings that the folder has."""
    found = ((name, find(folder, name)) for name in names)
    return [load(path, name) for name, path in found if path is not None]


def load_speech(folder: Path) -> tuple[list[Recording], list[Recording]]:
    """What is said to the server, and what it is interrupted with.

    In a folder of one's own all recordings serve for both. Raises RecordingError when there is
    none.
    """
    questions, interruptions = load_named(folder, QUESTIONS), load_named(folder, INTERRUPTIONS)
    if questions and interruptions:
        return questions, interruptions
    paths = [path for path in sorted(folder.glob("*")) if path.suffix in ENDINGS]
    if not paths:
        raise RecordingError(
            f"no recordings in {folder}: install {PACKAGE}, or name a folder of WAV files"
        )
    everything = [load(path) for path in paths]
    return everything, everything


def load_transcribed(folder: Path, table: Path) -> list[Recording]:
    """The recordings of a table (name, tab, words), in its order; those missing are left out."""
    found: list[Recording] = []
    for line in table.read_text().splitlines():
        name, _, text = line.partition("\t")
        path = find(folder, name.strip()) if text else None
        if path is not None:
            found.append(load(path, name.strip(), text.strip()))
    if not found:
        raise RecordingError(f"none of the recordings of {table} is in {folder}")
    return found
