"""The cache of model files: where it is, and whether what lies there is what the lock says."""

import contextlib
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from duologue.models.lockfile import Lock, Model, WeightFile, read_lock

STAMP = ".verified"


class WeightsError(Exception):
    """The model files can't be used as they are. The text says which, and what to do."""


class WeightsMissing(WeightsError):
    """A file of a model is not in the cache."""

    def __init__(self, model: str, path: Path) -> None:
        super().__init__(f"{path} is missing. Run: duologue models sync {model}")
        self.model = model
        self.path = path


class WeightsAltered(WeightsError):
    """A file in the cache is not the one the lock names."""

    def __init__(self, model: str, path: Path, why: str) -> None:
        super().__init__(f"{path} was altered: {why}. Run: duologue models sync {model}")
        self.model = model
        self.path = path


class CacheUnusable(WeightsError):
    """The cache folder can't be written: no room, no permission, or not a folder."""


@dataclass(frozen=True, slots=True)
class Located:
    """A model that is there: its name, which may be a fallback's, and its folder."""

    name: str
    folder: Path


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The cache: `$DUOLOGUE_CACHE`, else `$XDG_CACHE_HOME/duologue`, else `~/.cache/duologue`.

    A relative `$XDG_CACHE_HOME` is ignored, as the XDG base directory specification asks.
    """
    if own := environ.get("DUOLOGUE_CACHE"):
        return Path(own).expanduser().absolute()
    shared = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(shared):
        return Path(shared) / "duologue"
    try:
        return Path.home() / ".cache" / "duologue"
    except RuntimeError as error:
        raise CacheUnusable("This user has no home folder: set DUOLOGUE_CACHE.") from error


def model_folder(cache: Path, name: str) -> Path:
    """Where the files of the model of that name belong."""
    return cache / "models" / name


def locate(name: str, *, cache: Path | None = None, lock: Lock | None = None) -> Path:
    """The folder of a model whose files are all there and unaltered.

    A file that was verified before is known by its size and time of change, which takes
    microseconds; one that wasn't is read and hashed, about a second for each 500 MB.

    Raises WeightsMissing, WeightsAltered, and LockError for a name that is not in the lock.
    """
    model = (lock or read_lock()).model(name)
    folder = model_folder(cache or cache_folder(), name)
    check_model(model, folder)
    return folder


def locate_or_fallback(
    name: str, *, cache: Path | None = None, lock: Lock | None = None
) -> Located:
    """The model of that name, or the first of its fallbacks that is there in its place.

    Raises WeightsMissing for the model asked for when neither it nor a fallback is there, and
    WeightsAltered as `locate` does: an altered file is never passed over silently.
    """
    lock = lock or read_lock()
    wanted: WeightsMissing | None = None
    candidate: str | None = name
    while candidate is not None:
        try:
            return Located(candidate, locate(candidate, cache=cache, lock=lock))
        except WeightsMissing as error:
            wanted = wanted or error
            candidate = lock.model(candidate).fallback
    assert wanted is not None
    raise wanted


def check_model(model: Model, folder: Path, *, full: bool = False) -> None:
    """Check every file of a model; with `full`, by its SHA-256 even if it was verified before.

    Raises WeightsMissing or WeightsAltered for the first file that is wrong.
    """
    stamp = read_stamp(folder)
    for file in model.files:
        check_file(model, folder, file, None if full else stamp.get(file.name))
    if full or any(stamp.get(f.name) != stamp_line(folder / f.name, f) for f in model.files):
        # A cache that can't be written is still one that can be read.
        with contextlib.suppress(OSError):
            write_stamp(model, folder)


def faulty_files(model: Model, folder: Path) -> tuple[WeightFile, ...]:
    """The files of a model that are missing or altered."""
    stamp = read_stamp(folder)
    faulty = []
    for file in model.files:
        try:
            check_file(model, folder, file, stamp.get(file.name))
        except WeightsError:
            faulty.append(file)
    return tuple(faulty)


def check_file(model: Model, folder: Path, file: WeightFile, verified: str | None) -> None:
    path = folder / file.name
    if not path.is_file():
        raise WeightsMissing(model.name, path)
    size = path.stat().st_size
    if size != file.size:
        raise WeightsAltered(model.name, path, f"it has {size} bytes, not {file.size}")
    if verified is not None and verified == stamp_line(path, file):
        return
    if digest(path) != file.sha256:
        # Whoever looks next must not trust the stamp either.
        with contextlib.suppress(OSError):
            (folder / STAMP).unlink(missing_ok=True)
        raise WeightsAltered(model.name, path, "its SHA-256 is not the lock's")


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def stamp_line(path: Path, file: WeightFile) -> str:
    status = path.stat()
    return f"{file.sha256} {status.st_size} {status.st_mtime_ns} {file.name}"


def read_stamp(folder: Path) -> dict[str, str]:
    try:
        lines = (folder / STAMP).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return {line.rpartition(" ")[2]: line for line in lines}


def write_stamp(model: Model, folder: Path) -> None:
    """Record that the files of a model are verified as they are now. Raises OSError."""
    lines = [stamp_line(folder / file.name, file) + "\n" for file in model.files]
    # The name differs by process: two that verify at once must not write into one file.
    new = folder / f"{STAMP}.{os.getpid()}"
    try:
        new.write_text("".join(lines), encoding="utf-8")
        new.replace(folder / STAMP)
    finally:
        new.unlink(missing_ok=True)
