"""What a running server consists of, as its routes see it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from duologue.engines.duplex_stream import DuplexPlaces, RemoteDuplex
from duologue.engines.engine import BatchEngine, EngineSpec, EngineUnavailable
from duologue.realtime.calls import Calls
from duologue.realtime.live_sessions import LiveSessions
from duologue.sessions.ports import Clock
from duologue.sessions.registry import SessionRegistry
from duologue.web.auth import Gate
from duologue.web.metrics import Metrics
from duologue.web.peers import Peers
from duologue.web.settings import Settings


class ServedEngine(BatchEngine, DuplexPlaces, Protocol):
    """Both kinds of engines; the spec says which one it is."""


@dataclass(frozen=True, slots=True)
class Service:
    """``trouble``: why the engine is not ready, in words for the operator; empty when unknown.
    ``peers``: the server's other gateways, where it has several.
    """

    settings: Settings
    gate: Gate
    registry: SessionRegistry
    engine: ServedEngine
    clock: Clock
    metrics: Metrics
    calls: Calls
    live: LiveSessions
    trouble: Callable[[], str] = lambda: ""
    peers: Peers | None = None

    @property
    def spec(self) -> EngineSpec:
        """Raises EngineUnavailable before the first worker is ready."""
        return self.engine.spec

    @property
    def duplex(self) -> RemoteDuplex:
        """The frame-locked model; none of its sessions can be opened where there is none."""
        return RemoteDuplex(self.engine)

    @property
    def kind(self) -> str:
        """What the models are, as ``/v1/models`` tells it."""
        if self.settings.engine in ("scripted", "scripted-duplex"):
            return "scripted"
        if self.settings.engine == "moshi":
            return "duplex"
        return "chat" if self.settings.chat_url is not None else "cascade"

    @property
    def active(self) -> int:
        """Sessions that hold a place, at all gateways."""
        return self.registry.active + self.registry.headcount.others

    @property
    def ready(self) -> bool:
        """Whether a new session would be taken in, room permitting."""
        return self.engine.ready and not self.registry.draining

    def not_ready(self) -> str:
        """One word on why not."""
        if self.registry.draining:
            return "draining"
        try:
            _ = self.engine.spec
        except EngineUnavailable:
            return "starting"
        return "restarting"
