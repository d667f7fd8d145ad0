"""Carries one request through its graph: the tasks around :class:`Flow`.

A stage is reached by a connector, which carries chunks to where the stage runs and brings back what
it makes. In this process the stage is its own connector.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import anyio

from duologue.engines.engine import EngineFailure
from duologue.engines.pipeline.flow import (
    Chunk,
    Close,
    Deliver,
    Effect,
    Flow,
    Hand,
    Outcome,
    Stop,
)
from duologue.engines.pipeline.flow_shape import Node
from duologue.engines.pipeline.stage_graph import Kind

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunKey:
    """Which request: its session, and the generation of its answer."""

    session: str
    generation: int


class StageError(Exception):
    """A stage can't serve this request; others go on."""

    def __init__(self, failure: EngineFailure) -> None:
        super().__init__(failure.message)
        self.failure = failure

    @classmethod
    def of(cls, code: str, message: str) -> "StageError":
        return cls(EngineFailure(code, message))


class StageFatal(Exception):
    """A stage is broken for all requests: its process has to be started anew."""


class StageHost(Protocol):
    """What carries a request to one stage or several: the pipeline, or the far end of a lane."""

    @property
    def over(self) -> bool:
        """Nobody wants what the stages make."""

    def took(self, node: Node) -> None:
        """See :meth:`Inbox.took`."""

    async def put(self, node: Node, kind: Kind, item: object, size: int) -> None:
        """See :meth:`Outlet.put`."""


class Inbox:
    """The chunks for one stage, in order. Iterating hands the next one over when the one before
    has been worked off; :meth:`receive` and :meth:`took` do the two apart."""

    def __init__(self, run: StageHost, node: Node) -> None:
        self._run = run
        self._node = node
        self._chunks: deque[Chunk] = deque()
        self._closed = False
        self._changed: anyio.Event | None = None
        self._held = False

    @property
    def branch(self) -> str:
        """The branch of a guided request that this is for; "" where there are none."""
        return self._node[1]

    @property
    def stopped(self) -> bool:
        """Nobody wants what the stage makes; may be read on any thread."""
        return self._run.over

    async def receive(self) -> Chunk | None:
        """The next chunk, ``None`` after the last."""
        while not self._chunks:
            if self._closed:
                return None
            if self._changed is None:
                self._changed = anyio.Event()
            await self._changed.wait()
        return self._chunks.popleft()

    def took(self) -> None:
        """A chunk that was received has been worked off."""
        self._run.took(self._node)

    def __aiter__(self) -> "Inbox":
        return self

    async def __anext__(self) -> Chunk:
        if self._held:
            self._held = False
            self.took()
        chunk = await self.receive()
        if chunk is None:
            raise StopAsyncIteration
        self._held = True
        return chunk

    def give(self, chunk: Chunk) -> None:
        """For the pipeline alone."""
        self._chunks.append(chunk)
        self._wake()

    def close(self) -> None:
        """For the pipeline alone."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()
            self._changed = None


class Outlet:
    """Takes what one stage makes."""

    def __init__(self, run: StageHost, node: Node) -> None:
        self._run = run
        self._node = node

    async def put(self, kind: Kind, item: object, size: int = 1) -> None:
        """Hand something on; waits while what is behind the stage is full."""
        await self._run.put(self._node, kind, item, size)


class HomeOutlet(Outlet):
    """That of a stage in the pipeline's own process, or of a connector."""

    def __init__(self, run: "PipelineRun", node: Node) -> None:
        super().__init__(run, node)
        self._home = run

    async def settled(self) -> None:
        """Wait until everything that was put has been worked off by the stages behind."""
        await self._home.settled(self._node)

    def put_late(self, kind: Kind, item: object) -> None:
        """The stage gave something after its end."""
        self._home.put_late(self._node, kind, item)


class Connector(Protocol):
    """Where a stage is. Knows nothing of the graph."""

    async def run(self, key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        """Serve one request to its end: all chunks have been taken, all that came of them put.

        Cancelled when nobody wants it any more; then nothing may be left of the request, here or
        elsewhere. Raises StageError, and StageFatal.
        """


class InProcess:
    """A stage that is a coroutine function of this process."""

    def __init__(self, work: Callable[[RunKey, Inbox, HomeOutlet], Awaitable[None]]) -> None:
        self._work = work

    async def run(self, key: RunKey, inbox: Inbox, outlet: HomeOutlet) -> None:
        await self._work(key, inbox, outlet)


def as_it_is(stage: str, chunk: Chunk) -> Chunk:
    """What a stage is given is what was put."""
    return chunk


def _to_nobody(stage: str, kind: Kind, item: object) -> None:
    """The request is over."""


class PipelineRun:
    """One request. Used on one event loop."""

    def __init__(
        self,
        key: RunKey,
        flow: Flow,
        connectors: Mapping[str, Connector],
        deliver: Callable[[str, Kind, object], None],
        clock: Callable[[], float],
        on_hand: Callable[[str, Chunk], Chunk] = as_it_is,
    ) -> None:
        """`connectors` has one for each stage that the flow runs. `deliver` gets what goes to the
        client, with the stage that made it; `clock` gives seconds. `on_hand` may add to a chunk
        what is known only when its stage gets it, as how urgent it is."""
        self._key = key
        self._flow = flow
        self._connectors = connectors
        self._deliver = deliver
        self._clock = clock
        self._on_hand = on_hand
        self._inboxes = {node: Inbox(self, node) for node in flow.nodes}
        self._stopping: anyio.CancelScope | None = None
        self._waited: anyio.Event | None = None
        self._ended = anyio.Event()
        self._performing = False
        self._fatal = ""

    @property
    def over(self) -> bool:
        """The request has had its one end."""
        return self._flow.outcome is not None

    @property
    def late(self) -> int:
        """Chunks that were dropped because their stage or the request had ended."""
        return self._flow.late

    async def run(self, items: Mapping[str, object]) -> Outcome:
        """Answer to the end. When this returns or is cancelled, no stage works for the request.

        Raises StageFatal.
        """
        if not self.over:
            try:
                await self._run(items)
            finally:
                self._let_go()
        if self._fatal:
            raise StageFatal(self._fatal)
        outcome = self._flow.outcome
        assert outcome is not None
        return outcome

    async def _run(self, items: Mapping[str, object]) -> None:
        async with anyio.create_task_group() as group:
            self._stopping = group.cancel_scope
            for line in self._flow.lines:
                group.start_soon(self._serve, line)
            if self._flow.timed:
                group.start_soon(self._watch)
            self._flow.begin(items, self._clock())
            self._perform()
            try:
                await self._ended.wait()
            finally:
                # Before the tasks are waited for: threads look at `stopped`.
                self.cancel()

    def _let_go(self) -> None:
        """Of all that refers back to this, or to who made it: what is in no cycle goes at once, and
        nobody has to look for it."""
        self._inboxes.clear()
        self._connectors = {}
        self._deliver = _to_nobody
        self._on_hand = as_it_is
        self._stopping = None

    def cancel(self) -> None:
        """Nobody wants it any more."""
        self._flow.cancel()
        self._perform()

    def hold(self, stage: str, held: bool) -> None:
        """Give the stage nothing for now, or go on."""
        for node in self._flow.nodes:
            if node[0] == stage:
                self._flow.hold(node, held, self._clock())
        self._perform()

    # -- for the stages ---------------------------------------------------------------------

    async def put(self, node: Node, kind: Kind, item: object, size: int) -> None:
        """See :meth:`Outlet.put`."""
        while not self._flow.room(node, kind):
            await self._moved().wait()
        self._flow.put(node, kind, item, self._clock(), size)
        self._perform()

    async def settled(self, node: Node) -> None:
        """See :meth:`Outlet.settled`."""
        while not self._flow.settle(node, self._clock()):
            self._perform()
            await self._moved().wait()

    def took(self, node: Node) -> None:
        """See :meth:`Inbox.took`."""
        self._flow.took(node, self._clock())
        self._perform()

    def put_late(self, node: Node, kind: Kind, item: object) -> None:
        """See :meth:`HomeOutlet.put_late`."""
        self._flow.put(node, kind, item, self._clock())
        self._perform()

    # -- tasks ------------------------------------------------------------------------------

    async def _serve(self, line: tuple[Node, ...]) -> None:
        """Stages of which each begins where the one before has ended. The task's outermost line."""
        for node in line:
            await self._serve_stage(node)
            if self.over:
                return

    async def _serve_stage(self, node: Node) -> None:
        try:
            connector = self._connectors[node[0]]
            await connector.run(self._key, self._inboxes[node], HomeOutlet(self, node))
            self._flow.end(node, self._clock())
        except StageError as error:
            self._flow.fail(error.failure)
        except StageFatal as error:
            self._fatal = f"stage {node[0]}: {error}"
            self._flow.fail("The engine failed on this answer.")
        except Exception:
            log.exception(
                "session %s: stage %s failed on answer %d",
                self._key.session,
                node[0],
                self._key.generation,
            )
            self._flow.fail("The engine failed on this answer.")
        self._perform()

    async def _watch(self) -> None:
        """Give each stage its time."""
        while not self.over:
            moved = self._moved()
            deadline = self._flow.next_deadline()
            wait = None if deadline is None else max(0.0, deadline - self._clock())
            with anyio.move_on_after(wait):
                await moved.wait()
            self._flow.handle_timer(self._clock())
            if self.over:
                self._perform()

    def _moved(self) -> anyio.Event:
        """Set by the next thing that happens. Made when somebody waits for it: most tokens of an
        answer are waited for by nobody, and it costs more than what is done for one."""
        if self._waited is None:
            self._waited = anyio.Event()
        return self._waited

    def _perform(self) -> None:
        if self._performing:
            return  # whoever does it goes on until nothing is left
        self._performing = True
        try:
            while effects := self._flow.take_effects():
                for effect in effects:
                    self._act(effect)
        finally:
            self._performing = False
        if self._waited is not None:
            self._waited.set()
            self._waited = None

    def _act(self, effect: Effect) -> None:
        match effect:
            case Deliver(stage, kind, item):
                self._deliver(stage, kind, item)
            case Hand(node, chunk):
                self._inboxes[node].give(self._on_hand(node[0], chunk))
            case Close(node):
                self._inboxes[node].close()
            case Stop():
                # The request's end stops all at once.
                if self._stopping is not None:
                    self._stopping.cancel()
            case Outcome():
                self._ended.set()
