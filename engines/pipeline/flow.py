"""One request's way through a graph: what goes to which stage, when, and how it ends; pure.

Stages put chunks; only what is here decides where those go. Effects come out, in order
(:meth:`Flow.take_effects`), and times are seconds on the caller's clock. Rules:

- A chunk goes on as soon as it is there (or whole, where the edge says so), and no further than
  the target has it in hand and the edge's window has room: then the source has to wait
  (:meth:`Flow.room`).
- A stage ends once. What it puts afterwards is dropped and counted, and fails the request, if that
  has not ended.
- Branches of a guided request run side by side and are joined chunk by chunk.
- A request ends once: completed, when its last stages have ended; failed; or cancelled. Every stage
  that has not ended is told to stop.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from duologue.engines.engine import EngineFailure
from duologue.engines.pipeline.flow_shape import Node, NodeShape, PortShape, flow_shape
from duologue.engines.pipeline.stage_graph import Graph, Kind


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a stage gets at once. ``branches``: for where branches join, the items of each."""

    kind: Kind
    items: tuple[object, ...]
    branches: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hand:
    """Give a chunk to a stage; it is in hand until :meth:`Flow.took`."""

    node: Node
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Close:
    """Nothing more comes to the stage."""

    node: Node


@dataclass(frozen=True, slots=True)
class Deliver:
    """What a stage made goes to the client."""

    stage: str
    kind: Kind
    item: object


@dataclass(frozen=True, slots=True)
class Stop:
    """The stage works for nobody any more."""

    node: Node


@dataclass(frozen=True, slots=True)
class Outcome:
    """The one end of a request."""

    reason: Literal["completed", "failed", "cancelled"]
    failure: EngineFailure | None = None


Effect = Hand | Close | Deliver | Stop | Outcome


class _Branch:
    """What has come over an edge from one branch and waits."""

    def __init__(self) -> None:
        self.gathered: list[object] = []
        self.size = 0
        self.waiting: deque[tuple[object, ...]] = deque()
        self.chunks = 0
        self.ended = False


class _Port:
    """An edge's end at one node."""

    def __init__(self, shape: PortShape) -> None:
        self.edge = shape.edge
        self.sources = shape.sources
        self.branches = {branch: _Branch() for _, branch in shape.sources}

    @property
    def ready(self) -> bool:
        for one in self.branches.values():
            if not one.waiting:
                return False
        return True

    @property
    def ended(self) -> bool:
        """Nothing waits, and nothing more comes."""
        for one in self.branches.values():
            if one.waiting or not one.ended:
                return False
        return True

    @property
    def uneven(self) -> bool:
        """One branch has something for which another has no counterpart."""
        if len(self.branches) == 1:
            return False
        lengths = {
            len(one.waiting[0]) if one.waiting else 0
            for one in self.branches.values()
            if one.waiting or one.ended
        }
        return len(lengths) > 1

    def put(self, branch: _Branch, item: object, size: int) -> None:
        branch.gathered.append(item)
        branch.size += size
        wanted = self.edge.size if branch.chunks else self.edge.first
        if self.edge.streamed and branch.size >= wanted:
            self.seal(branch)

    def seal(self, branch: _Branch) -> None:
        if branch.gathered:
            branch.waiting.append(tuple(branch.gathered))
            branch.gathered = []
            branch.size = 0
            branch.chunks += 1

    def take(self) -> Chunk:
        parts = {name: one.waiting.popleft() for name, one in self.branches.items()}
        first = next(iter(parts.values()))
        return Chunk(self.edge.kind, first, parts if len(parts) > 1 else {})


class _State:
    """A node while the request is under way."""

    def __init__(self, shape: NodeShape) -> None:
        self.shape = shape
        self.ports = [_Port(port) for port in shape.ports]
        self.ways: list[tuple[_Port, _Branch, Node]] = []
        """Where what the node makes may go, by whose port, to whom."""
        self.in_hand = 0
        self.held = False
        self.closed = False
        self.ended = False
        self.deadline: float | None = None


class Flow:
    """See the module. `final` ends the request at an earlier stage: those behind it don't run.

    `guided`: the request has a companion for each further branch of the graph. `answer_s` says of
    some stages how long they may take over a chunk, in seconds.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        final: str = "",
        guided: bool = False,
        answer_s: Mapping[str, float] | None = None,
    ) -> None:
        """Raises ValueError for a `final` that is not there, or a guided request where the graph
        has no branches."""
        self._shape = flow_shape(graph, final, guided)
        self.outcome: Outcome | None = None
        self.late = 0
        """Chunks that came after their stage's end or the request's."""
        self._answer_s = answer_s or {}
        self._effects: list[Effect] = []
        self._states = {shape.node: _State(shape) for shape in self._shape.nodes}
        for node, state in self._states.items():
            for port in state.ports:
                for source, one in zip(port.sources, port.branches.values(), strict=True):
                    self._states[source].ways.append((port, one, node))

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What runs for this request."""
        return tuple(self._states)

    @property
    def lines(self) -> tuple[tuple[Node, ...], ...]:
        """See :class:`FlowShape`."""
        return self._shape.lines

    @property
    def timed(self) -> bool:
        """Whether there can be deadlines."""
        return bool(self._answer_s) and any(stage in self._answer_s for stage, _ in self._states)

    def take_effects(self) -> list[Effect]:
        """What is to be done now, in order; to be called after every other call."""
        effects, self._effects = self._effects, []
        return effects

    # -- what happens -----------------------------------------------------------------------

    def begin(self, items: Mapping[str, object], now: float) -> None:
        """The request itself, for each branch; {"": item} where there are none."""
        for node, kind in self._shape.entries:
            self._hand(node, Chunk(kind, (items[node[1]],)), now)
            self._close(node)

    def put(self, node: Node, kind: Kind, item: object, now: float, size: int = 1) -> None:
        """A stage made something, of a size in the unit that its edges count in."""
        if self._is_late(node, "something"):
            return
        state = self._states[node]
        if kind not in state.shape.gives:
            self.fail(f"The stage {node[0]} does not give {kind}.")
            return
        self._touch(node, now)
        ways = [way for way in state.ways if way[0].edge.kind is kind]
        if not ways:
            if state.shape.speaks:
                self._effects.append(Deliver(node[0], kind, item))
            return
        for port, one, target in ways:
            port.put(one, item, size)
            self._advance(target, now)

    def end(self, node: Node, now: float) -> None:
        """A stage's terminal chunk."""
        if self._is_late(node, "another end"):
            return
        state = self._states[node]
        state.ended = True
        state.deadline = None
        for port, one, target in state.ways:
            port.seal(one)
            one.ended = True
            self._advance(target, now)
        if self.outcome is None and all(
            one.ended for one in self._states.values() if one.shape.final
        ):
            self._finish(Outcome("completed"))

    def took(self, node: Node, now: float) -> None:
        """A stage has done with one of the chunks that it had in hand."""
        state = self._states[node]
        if self.outcome is not None or state.ended:
            return
        if not state.in_hand:
            self.fail(f"The stage {node[0]} took what it was not given.")
            return
        state.in_hand -= 1
        state.deadline = None
        self._touch(node, now)
        self._advance(node, now)

    def hold(self, node: Node, held: bool, now: float) -> None:
        """Give the stage nothing for now, or go on."""
        state = self._states.get(node)
        if state is not None and self.outcome is None and state.held != held:
            state.held = held
            self._advance(node, now)

    def fail(self, failure: EngineFailure | str) -> None:
        """The request can't be answered; the first reason counts."""
        if isinstance(failure, str):
            failure = EngineFailure("engine_error", failure)
        if self.outcome is None:
            self._finish(Outcome("failed", failure))

    def cancel(self) -> None:
        """Nobody wants it any more."""
        if self.outcome is None:
            self._finish(Outcome("cancelled"))

    # -- what may happen --------------------------------------------------------------------

    def room(self, node: Node, kind: Kind) -> bool:
        """Whether the stage may put something of this kind now."""
        if self.outcome is not None:
            return True
        for port, one, _ in self._states[node].ways:
            if port.edge.kind is kind and port.edge.streamed:
                if len(one.waiting) >= port.edge.window:
                    return False
        return True

    def settle(self, node: Node, now: float) -> bool:
        """Let go of what has been gathered; whether all that the stage put has been worked off."""
        if self.outcome is not None:
            return True
        settled = True
        for port, one, target in self._states[node].ways:
            if port.edge.streamed and one.gathered:
                port.seal(one)
                self._advance(target, now)
            settled = settled and not one.waiting and not self._states[target].in_hand
        return settled

    # -- time -------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When :meth:`handle_timer` has something to do."""
        if self.outcome is not None:
            return None
        return min((at for _, at in self._deadlines()), default=None)

    def handle_timer(self, now: float) -> None:
        """Fail the request if a stage has had its time."""
        if self.outcome is not None:
            return
        for (stage, _), at in self._deadlines():
            if now >= at:
                limit = self._answer_s[stage]
                self.fail(f"The stage {stage} did not answer within {limit:g} s.")
                return

    def _deadlines(self) -> Iterator[tuple[Node, float]]:
        for node, state in self._states.items():
            if state.deadline is not None and not self._waits(node):
                yield node, state.deadline

    def _waits(self, node: Node) -> bool:
        """Whether something that the stage feeds is full: then it is not its fault."""
        ways = self._states[node].ways
        return any(not self.room(node, port.edge.kind) for port, _, _ in ways)

    def _touch(self, node: Node, now: float) -> None:
        if not self._answer_s:
            return
        state = self._states[node]
        limit = self._answer_s.get(node[0])
        if limit is not None and state.in_hand:
            state.deadline = now + limit

    # -- the rest ---------------------------------------------------------------------------

    def _advance(self, node: Node, now: float) -> None:
        """Give a stage what it has room for."""
        state = self._states[node]
        while self.outcome is None and not state.ended:
            port = next((port for port in state.ports if port.ready), None)
            if port is None or state.held or state.in_hand >= state.shape.width or port.uneven:
                break
            self._hand(node, port.take(), now)
            for source in port.sources:
                # It may go on where it had to wait.
                self._touch(source, now)
        if any(port.uneven for port in state.ports):
            self.fail(f"The branches that join at the stage {node[0]} are not equally long.")
        elif state.ports and all(port.ended for port in state.ports):
            self._close(node)

    def _hand(self, node: Node, chunk: Chunk, now: float) -> None:
        self._states[node].in_hand += 1
        self._effects.append(Hand(node, chunk))
        self._touch(node, now)

    def _close(self, node: Node) -> None:
        state = self._states[node]
        if not state.closed and not state.ended and self.outcome is None:
            state.closed = True
            self._effects.append(Close(node))

    def _is_late(self, node: Node, what: str) -> bool:
        if self.outcome is None and not self._states[node].ended:
            return False
        if self.outcome is None or self._states[node].ended:
            self.late += 1
        self.fail(f"The stage {node[0]} gave {what} after its terminal chunk.")
        return True

    def _finish(self, outcome: Outcome) -> None:
        self.outcome = outcome
        self._effects += [Stop(node) for node, state in self._states.items() if not state.ended]
        self._effects.append(outcome)
