"""Workers as Ray actors: Ray finds them a machine with the resources that they need.

Nothing else goes through Ray: a gateway talks to a worker over its lanes, through the relay beside
it. What Ray does better than we could is told here: where there is room, and that a machine is
gone.
"""

import logging
import os
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import ray
import ray.exceptions
import ray.util

from duologue.engines.cluster.cluster_worker import ClusterWorker, Condition
from duologue.engines.cluster.handshake import greet_listener, new_secret
from duologue.engines.cluster.tcp_stream import connect_tcp
from duologue.engines.lane import Wire
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.pulse import Reading
from duologue.engines.remote import LaneName
from duologue.engines.settled_heap import settle_heap
from duologue.engines.supervisor import Backoff, SupervisionRules

CONNECT_S = 1.0
"""How long a machine may take to accept a connection, in seconds."""

STOP_S = 5.0
NAMESPACE = "duologue"
"""Where the actors that others look for have their names."""

ORPHANED = 71
"""Exit status of an actor whose machine has left the cluster (EX_OSERR, sysexits.h)."""

PARENT_LOOK_S = 0.2

LOOK_S = 1.0
"""How often a worker is asked how it is, in seconds."""

DRAIN_LOOK_S = 1.0
"""How often it is asked which machines are being drained, in seconds."""

_CONDITIONS = msgspec.msgpack.Decoder(Condition)

log = logging.getLogger(__name__)


class ClusterUnreachable(Exception):
    """There is no Ray cluster at the address."""


def join_cluster(address: str) -> None:
    """Connect this process to a cluster: ``auto`` is the one that this machine is part of.

    Blocks. Raises ClusterUnreachable.
    """
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise ClusterUnreachable(f"{address}: {error}") from error


def cluster_address() -> str:
    """Where other machines reach the cluster that has been joined."""
    return str(ray.get_runtime_context().gcs_address)


def leave_cluster() -> None:
    """Disconnect. Blocks."""
    ray.shutdown()


def draining_nodes() -> frozenset[str]:
    """The ids of the machines that are to be emptied. Blocks."""
    # There is no public call for it; `ray drain-node` sets it.
    state: Any = ray._private.state.state
    return frozenset(state.get_draining_nodes())


class _Actor(ClusterWorker):
    """A worker as an actor, which knows the machine that it came to."""

    def __init__(self, config: bytes, rules: bytes, secret: bytes) -> None:
        super().__init__(config, rules, secret, ray.util.get_node_ip_address())

    async def run(self) -> str:
        # The sound of all sessions goes through here, beside Ray's own objects.
        settle_heap()
        async with anyio.create_task_group() as group:
            group.start_soon(self._end_with, os.getppid())
            reason = await super().run()
            group.cancel_scope.cancel()
        return reason

    async def _end_with(self, raylet: int) -> None:
        """Without the process that Ray runs on each machine, Ray counts the machine as lost and
        the worker is placed again elsewhere: this one must not go on. Ray sees to it too, later."""
        while os.getppid() == raylet:  # noqa: ASYNC110
            await anyio.sleep(PARENT_LOOK_S)
        os._exit(ORPHANED)

    async def node(self) -> str:
        """The machine's id."""
        return str(ray.get_runtime_context().get_node_id())


class RayWorker:
    """Keeps one worker running somewhere in the cluster. As
    :class:`duologue.engines.supervisor.Supervisor`, for a machine that is not known before."""

    def __init__(
        self,
        config: WorkerConfig,
        rules: SupervisionRules | None = None,
        *,
        cpus: float = 1.0,
        gpus: float = 0.0,
        draining: Callable[[], frozenset[str]] = draining_nodes,
    ) -> None:
        """`cpus` and `gpus` are what the worker takes of a machine's. `draining` is called on a
        thread."""
        self._config = config
        self._rules = rules or SupervisionRules()
        self._resources = {"num_cpus": cpus, "num_gpus": gpus}
        self._draining = draining
        self._secret = new_secret()
        self._address: tuple[str, int] | None = None
        self._condition = Condition()
        self._moves = 0
        self._fault = ""
        self.node = ""

    @property
    def name(self) -> str:
        return self._config.name

    @property
    def state(self) -> str:
        return self._condition.state

    @property
    def restarts(self) -> int:
        """Of its process where it is now, and how often it was placed again."""
        return self._moves + self._condition.restarts

    @property
    def last_fault(self) -> str:
        """Why it was started or placed again the last time."""
        return self._condition.fault or self._fault

    @property
    def sessions(self) -> int:
        return self._condition.sessions

    @property
    def start_s(self) -> float:
        return self._condition.start_s

    @property
    def reading(self) -> Reading:
        return self._condition.reading

    async def dial(self, lane: LaneName) -> Wire:
        """See :class:`duologue.engines.remote.RemoteEngine`."""
        if self._address is None:
            raise OSError(f"worker {self.name} has no machine yet")
        stream = await connect_tcp(*self._address, CONNECT_S)
        try:
            await greet_listener(stream, self._secret, lane)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await stream.aclose()
            raise
        return stream

    async def run(self) -> None:
        """Have the worker placed, and placed again after a loss, until cancelled."""
        backoff = Backoff(self._rules)
        while True:
            began = anyio.current_time()
            self._fault = await self._run_once()
            self._moves += 1 + self._condition.restarts
            self._condition = Condition()
            wait = backoff.after(anyio.current_time() - began)
            log.warning("worker %s has ended: %s", self.name, self._fault)
            await anyio.sleep(wait)

    async def _run_once(self) -> str:
        """One life of an actor; why it ended."""
        actor = (
            ray.remote(_Actor)
            .options(max_restarts=0, scheduling_strategy="SPREAD", **self._resources)
            .remote(
                msgspec.msgpack.encode(self._config),
                msgspec.msgpack.encode(self._rules),
                self._secret,
            )
        )
        try:
            ended = actor.run.remote()
            self.node = await actor.node.remote()
            self._address = await actor.address.remote()
            log.info("worker %s is on machine %s", self.name, self.node)
            async with anyio.create_task_group() as group:
                group.start_soon(self._drain_with_node, actor)
                group.start_soon(self._look_after, actor)
                reason = await self._end_of(ended)
                group.cancel_scope.cancel()
            return reason
        except (ray.exceptions.RayError, OSError) as error:
            return f"it was not placed: {error}"
        finally:
            self._address = None
            with anyio.CancelScope(shield=True), anyio.move_on_after(STOP_S):
                await self._stop(actor)
            ray.kill(actor)

    async def _look_after(self, actor: Any) -> None:
        try:
            while True:
                self._condition = _CONDITIONS.decode(await actor.condition.remote())
                await anyio.sleep(LOOK_S)
        except ray.exceptions.RayError:
            return  # its end is told where it is waited for

    async def _end_of(self, ended: Any) -> str:
        try:
            return str(await ended)
        except ray.exceptions.RayError as error:
            return str(error).splitlines()[0]

    async def _stop(self, actor: Any) -> None:
        try:
            await actor.stop.remote()
        except ray.exceptions.RayError:
            return  # it has gone already

    async def _drain_with_node(self, actor: Any) -> None:
        """When its machine is to be emptied the worker takes no more sessions, and ends after the
        last."""
        while self.node not in await anyio.to_thread.run_sync(self._draining):  # noqa: ASYNC110
            await anyio.sleep(DRAIN_LOOK_S)
        log.info("worker %s drains with its machine", self.name)
        try:
            await actor.drain.remote(float("inf"))
        except ray.exceptions.RayError:
            return
