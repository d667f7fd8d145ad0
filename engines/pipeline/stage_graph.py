"""What a model is made of: stages, what each takes and gives, and what flows between them.

A graph belongs to the model and says nothing of where its stages run; that is the deployment's
(:mod:`duologue.engines.pipeline.deployment`). Only the pipeline reads the edges: a stage knows the
kinds that it takes and gives, never who made the ones or who gets the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Kind(StrEnum):
    """What a chunk is."""

    SOUND = "sound"
    """What a microphone hears, for ever."""
    TURN = "turn"
    """A request whose words may still be sound."""
    PROMPT = "prompt"
    """A request in words and pictures."""
    TEXT = "text"
    CLAUSE = "clause"
    """Text that is spoken in one breath."""
    TOKENS = "tokens"
    CALL = "call"
    """A piece of a call of a function."""
    LATENTS = "latents"
    SPEECH = "speech"
    PICTURE = "picture"


class GraphError(ValueError):
    """A graph can't be run; the message names the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """``width``: chunks that it has in hand at a time, for one request. ``sampling``: parameters
    that a deployment may set. ``movable``: it may run in another process than the pipeline."""

    name: str
    task: str
    takes: tuple[Kind, ...]
    gives: tuple[Kind, ...]
    width: int = 1
    sampling: tuple[str, ...] = ()
    movable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Chunks of one kind from one stage to another.

    ``streamed``: each as soon as it is there; otherwise all of them together, when the source has
    ended. ``window``: chunks that may wait for the target; one more, and the source waits.
    ``first`` and ``size``: sizes of what is put are added up until a chunk of the stream has so
    much, ``first`` for the first one, which somebody waits for. 1: as it comes.
    """

    source: str
    target: str
    kind: Kind
    streamed: bool = True
    window: int = 4
    first: int = 1
    size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Companions:
    """A guided request runs once for each branch, from the entry up to the stage ``join``, which
    takes what the branches made as one chunk. ``branches[0]`` is the request itself; what else
    than that goes to the client comes from it alone. (Ho and Salimans, *Classifier-Free Diffusion
    Guidance*, 2022, has a conditional and an unconditional one.)"""

    join: str
    branches: tuple[str, ...] = ("positive", "negative")


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A checked graph, equal only to itself. Raises GraphError."""

    name: str
    stages: tuple[Stage, ...]
    edges: tuple[Edge, ...] = ()
    companions: Companions | None = None
    by_name: Mapping[str, Stage] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {stage.name: stage for stage in self.stages})
        _check(self)

    @property
    def entries(self) -> tuple[str, ...]:
        """The stages that a request goes to first."""
        fed = {edge.target for edge in self.edges}
        return tuple(stage.name for stage in self.stages if stage.name not in fed)

    @property
    def exits(self) -> tuple[str, ...]:
        """The stages that feed no other."""
        feeding = {edge.source for edge in self.edges}
        return tuple(stage.name for stage in self.stages if stage.name not in feeding)

    def before(self, name: str) -> frozenset[str]:
        """A stage and all that it depends on."""
        found = {name}
        todo = [name]
        while todo:
            target = todo.pop()
            for edge in self.edges:
                if edge.target == target and edge.source not in found:
                    found.add(edge.source)
                    todo.append(edge.source)
        return frozenset(found)


def _check(graph: Graph) -> None:
    where = f"graphs.{graph.name}"
    if not graph.stages:
        raise GraphError(f"{where}.stages: there is none")
    if len(graph.by_name) != len(graph.stages):
        names = [stage.name for stage in graph.stages]
        twice = next(name for name in names if names.count(name) > 1)
        raise GraphError(f"{where}.stages: two are called {twice!r}")
    for stage in graph.stages:
        if stage.width < 1:
            raise GraphError(f"{where}.stages.{stage.name}.width: {stage.width} is not at least 1")
    for number, edge in enumerate(graph.edges):
        _check_edge(graph, edge, f"{where}.edges[{number}]")
    _check_cycle(graph, where)
    companions = graph.companions
    if companions is None:
        return
    if companions.join not in graph.by_name:
        raise GraphError(f"{where}.companions.join: there is no stage {companions.join!r}")
    if companions.join in graph.entries:
        raise GraphError(f"{where}.companions.join: nothing comes before {companions.join!r}")
    if len(set(companions.branches)) != len(companions.branches) or len(companions.branches) < 2:
        raise GraphError(f"{where}.companions.branches: two of different names at least")
    inside = graph.before(companions.join) - {companions.join}
    for number, edge in enumerate(graph.edges):
        if edge.source in inside and edge.target not in inside | {companions.join}:
            raise GraphError(
                f"{where}.edges[{number}].target: {edge.target!r} takes from a branch, and is "
                f"not where they join"
            )


def _check_edge(graph: Graph, edge: Edge, where: str) -> None:
    for field_name, name in (("source", edge.source), ("target", edge.target)):
        if name not in graph.by_name:
            raise GraphError(f"{where}.{field_name}: there is no stage {name!r}")
    if edge.kind not in graph.by_name[edge.source].gives:
        given = ", ".join(graph.by_name[edge.source].gives)
        raise GraphError(f"{where}.kind: {edge.source} gives {given}, not {edge.kind}")
    if edge.kind not in graph.by_name[edge.target].takes:
        taken = ", ".join(graph.by_name[edge.target].takes)
        raise GraphError(f"{where}.kind: {edge.target} takes {taken}, not {edge.kind}")
    for field_name, value in (("window", edge.window), ("first", edge.first), ("size", edge.size)):
        if value < 1:
            raise GraphError(f"{where}.{field_name}: {value} is not at least 1")
    twins = [
        other
        for other in graph.edges
        if (other.source, other.target, other.kind) == (edge.source, edge.target, edge.kind)
    ]
    if len(twins) > 1:
        raise GraphError(f"{where}: a second edge of {edge.kind} between the same stages")


def _check_cycle(graph: Graph, where: str) -> None:
    left = {
        stage.name: {e.source for e in graph.edges if e.target == stage.name}
        for stage in graph.stages
    }
    while free := [name for name, sources in left.items() if not sources]:
        for name in free:
            del left[name]
        for sources in left.values():
            sources.difference_update(free)
    if left:
        raise GraphError(f"{where}.edges: a cycle through {', '.join(sorted(left))}")


ASR = "asr"
LLM = "llm"
TTS = "tts"

CASCADE = Graph(
    "cascade",
    stages=(
        Stage(name=ASR, task="recogniser", takes=(Kind.TURN,), gives=(Kind.PROMPT,)),
        Stage(
            name=LLM,
            task="language model",
            takes=(Kind.PROMPT,),
            gives=(Kind.TEXT, Kind.CLAUSE, Kind.CALL),
            sampling=("temperature", "top_p", "seed", "max_output_tokens"),
        ),
        Stage(
            name=TTS,
            task="voice",
            takes=(Kind.CLAUSE,),
            gives=(Kind.SPEECH,),
            movable=True,
        ),
    ),
    edges=(
        Edge(source=ASR, target=LLM, kind=Kind.PROMPT, streamed=False),
        Edge(source=LLM, target=TTS, kind=Kind.CLAUSE, window=4),
    ),
)
"""A conversation: what was said becomes words, the words an answer, its clauses speech."""

MODEL = "model"

SCRIPTED = Graph(
    "scripted",
    (
        Stage(
            name=MODEL,
            task="script",
            takes=(Kind.TURN,),
            gives=(Kind.TEXT, Kind.CALL, Kind.SPEECH),
        ),
    ),
)
"""Answers that a script times."""

DUPLEX = tuple(
    Graph(
        name,
        (Stage(name=MODEL, task=task, takes=(Kind.SOUND,), gives=(Kind.TEXT, Kind.SPEECH)),),
    )
    for name, task in (("moshi", "frame-locked model"), ("scripted-duplex", "script"))
)
"""Models that listen while they speak: whatever their parts are, they step as one."""

GRAPHS: Mapping[str, Graph] = {graph.name: graph for graph in (CASCADE, SCRIPTED, *DUPLEX)}
"""The graphs that a deployment can name."""
