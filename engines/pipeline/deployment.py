"""Where a model's stages run, as an operator writes it down (TOML).

A deployment never changes what the model is. It is read once and resolved against the graph and
the machine into a plan (:mod:`duologue.engines.pipeline.plan`); nothing else reads it.
"""

import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]
Fraction = Annotated[float, msgspec.Meta(gt=0, le=1)]


class DeploymentError(ValueError):
    """A deployment can't be used; the message names the field."""


class StageSampling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What requests get that don't say. Only where the stage's graph lists the parameter."""

    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    seed: int | None = None
    max_output_tokens: Positive | None = None

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the parameters that are set."""
        fields = self.__struct_fields__
        return tuple(name for name in fields if getattr(self, name) is not None)


class StageLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``sessions`` at a time in one replica of the process; ``threads`` of one call of the model;
    0: as usual. ``memory``: the share of each of its devices that a replica takes. ``answer_s``:
    how long the stage may be silent over one chunk, in seconds; if not set 20 for a stage in
    another process, and for ever in the pipeline's, whose steps are watched. ``cpus``: cores that
    a replica counts for in a cluster."""

    sessions: Annotated[int, msgspec.Meta(ge=0)] = 0
    threads: Annotated[int, msgspec.Meta(ge=0)] = 0
    memory: Fraction = 1.0
    answer_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    cpus: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class StageDeployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``process`` names the process; stages that name the same one share it. What is not given is
    as the others of the process have it. ``devices``: ``cpu`` or ``cuda:N``; with several replicas
    they are dealt out in order."""

    process: str | None = None
    replicas: Positive | None = None
    devices: tuple[str, ...] | None = None
    environment: dict[str, str] | None = None
    limits: StageLimits = StageLimits()
    sampling: StageSampling = StageSampling()


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``pipeline`` names the graph, "" the one of the engine that is served. Stages that are not
    mentioned run in the process ``main``."""

    name: str = "default"
    pipeline: str = ""
    stages: dict[str, StageDeployment] = {}


def read_deployment(text: str, name: str = "", beside: Collection[str] = ()) -> Deployment:
    """The deployment in a TOML document: the document itself, its table ``deployment``, or the one
    called `name` of its tables ``[[deployment]]``. `beside` may stand beside these tables.

    Raises DeploymentError.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DeploymentError(f"not TOML: {error}") from None
    found = table.get("deployment", table)
    if "deployment" in table:
        for key in table:
            if key != "deployment" and key not in beside:
                raise DeploymentError(f"{key}: does not belong beside deployment")
    return choose(found, name)


def choose(found: object, name: str = "") -> Deployment:
    """A deployment from a table, or the one called `name` of a list of tables."""
    if not isinstance(found, list):
        deployment = _convert(found, "")
        if name and deployment.name != name:
            raise DeploymentError(f"name: {name!r} was asked for, not {deployment.name!r}")
        return deployment
    deployments = [_convert(table, f"deployment[{at}].") for at, table in enumerate(found)]
    names = [deployment.name for deployment in deployments]
    for at, one in enumerate(names):
        if one in names[:at]:
            raise DeploymentError(f"deployment[{at}].name: a second deployment is called {one!r}")
    if not names:
        raise DeploymentError("deployment: there is none")
    if not name and len(names) == 1:
        return deployments[0]
    if name not in names:
        wanted = f"none is called {name!r}" if name else "name one of them"
        raise DeploymentError(f"deployment: {wanted}: there are {', '.join(names)}")
    return deployments[names.index(name)]


def load_deployment(reference: str, beside: Collection[str] = ()) -> Deployment:
    """From ``FILE``, or ``FILE:NAME`` where the file has several; see :func:`read_deployment`.
    Reads a file. Raises DeploymentError."""
    path, name = Path(reference).expanduser(), ""
    if not path.is_file() and ":" in reference:
        file, _, name = reference.rpartition(":")
        path = Path(file).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DeploymentError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DeploymentError(f"{path}: not UTF-8: {error.reason}") from None
    try:
        return read_deployment(text, name, beside)
    except DeploymentError as error:
        raise DeploymentError(f"{path}: {error}") from None


def _convert(table: object, where: str) -> Deployment:
    try:
        return msgspec.convert(table, Deployment)
    except msgspec.ValidationError as error:
        raise DeploymentError(_in_words(str(error), table, where)) from None


def _in_words(message: str, table: object, where: str) -> str:
    """msgspec's message with the field first, as ``stages.tts.replicas: 0 is not at least 1``."""
    said, _, path = message.partition(" - at `")
    names = [part.strip(".") for part in re.findall(r"\.[\w-]+|\[[^\]]*\]", path.rstrip("`"))]
    value: object = table
    shown: list[str] = []
    for part in names:
        if part == "[...]":
            # msgspec does not say which key it was: the one whose value does not convert.
            part = _wrong_key(value, shown)
        shown.append(part)
        value = value.get(part) if isinstance(value, Mapping) else None
    field = ".".join(shown)
    if unknown := re.search(r"unknown field `([^`]+)`", said):
        field = f"{field}.{unknown[1]}" if field else unknown[1]
        return f"{where}{field}: there is no such field"
    if bound := re.search(r"`(?:int|float)` (>=|>|<=|<) ([\d.]+)", said):
        words = {">=": "at least", ">": "more than", "<=": "at most", "<": "less than"}
        number = f"{float(bound[2]):g}"
        return f"{where}{field}: {value} is not {words[bound[1]]} {number}"
    return f"{where}{field}: {said[0].lower()}{said[1:]}" if field else f"{where}{said}"


def _wrong_key(table: object, path: list[str]) -> str:
    kind: object = StageDeployment if path == ["stages"] else str
    if isinstance(table, Mapping):
        for key, value in table.items():
            try:
                msgspec.convert(value, kind)
            except msgspec.ValidationError:
                return str(key)
    return "?"
