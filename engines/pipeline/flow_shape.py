"""What all requests of a kind have in common on their way through a graph, worked out once."""

from dataclasses import dataclass
from functools import lru_cache

from duologue.engines.pipeline.stage_graph import Edge, Graph, Kind

Node = tuple[str, str]
"""A stage, and the branch that it runs for: "" where there are none."""

KEPT = 64
"""Shapes; there are a few for each graph."""


@dataclass(frozen=True, slots=True)
class PortShape:
    """An edge's end at a node, and whom it comes from: several where branches join."""

    edge: Edge
    sources: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class NodeShape:
    """``speaks``: what of the node nobody takes goes to the client. ``final``: the request has
    ended when this and all others of its kind have."""

    node: Node
    width: int
    gives: tuple[Kind, ...]
    ports: tuple[PortShape, ...]
    speaks: bool
    final: bool


@dataclass(frozen=True, slots=True)
class FlowShape:
    """``entries``: what takes the request, as what kind.

    ``lines``: all nodes, in lines of which no two ever work at the same time: behind each node,
    one that is given nothing until that has ended.
    """

    nodes: tuple[NodeShape, ...]
    entries: tuple[tuple[Node, Kind], ...]
    lines: tuple[tuple[Node, ...], ...]


@lru_cache(maxsize=KEPT)
def flow_shape(graph: Graph, final: str, guided: bool) -> FlowShape:
    """See :class:`duologue.engines.pipeline.flow.Flow`, also for what is raised."""
    if final and final not in graph.by_name:
        raise ValueError(f"{graph.name} has no stage {final!r}")
    if guided and graph.companions is None:
        raise ValueError(f"{graph.name} has no branches")
    active = graph.before(final) if final else frozenset(graph.by_name)
    finals = {final} if final else set(graph.exits)
    branched = frozenset[str]()
    names: tuple[str, ...] = ("",)
    if guided and graph.companions is not None:
        names = graph.companions.branches
        branched = graph.before(graph.companions.join) - {graph.companions.join}

    def branches_of(stage: str) -> tuple[str, ...]:
        return names if stage in branched else ("",)

    def sources(edge: Edge, branch: str) -> tuple[Node, ...]:
        joins = edge.source in branched and edge.target not in branched
        of = names if joins else (branch,) if edge.source in branched else ("",)
        return tuple((edge.source, name) for name in of)

    nodes = tuple(
        NodeShape(
            (stage.name, branch),
            stage.width,
            stage.gives,
            tuple(
                PortShape(edge, sources(edge, branch))
                for edge in graph.edges
                if edge.source in active and edge.target == stage.name
            ),
            branch == names[0] or stage.name not in branched,
            stage.name in finals,
        )
        for stage in graph.stages
        if stage.name in active
        for branch in branches_of(stage.name)
    )
    entries = tuple(
        ((name, branch), graph.by_name[name].takes[0])
        for name in graph.entries
        if name in active
        for branch in branches_of(name)
    )
    return FlowShape(nodes, entries, _lines(nodes))


def _lines(nodes: tuple[NodeShape, ...]) -> tuple[tuple[Node, ...], ...]:
    behind: dict[Node, Node] = {}
    followers = set[Node]()
    for shape in nodes:
        if len(shape.ports) == 1 and not shape.ports[0].edge.streamed:
            source, *others = shape.ports[0].sources
            if not others and source not in behind:
                behind[source] = shape.node
                followers.add(shape.node)
    lines = []
    for shape in nodes:
        if shape.node not in followers:
            line = [shape.node]
            while line[-1] in behind:
                line.append(behind[line[-1]])
            lines.append(tuple(line))
    return tuple(lines)
