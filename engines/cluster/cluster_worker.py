"""A worker on a machine of a cluster: the same process under the same supervisor, and a relay."""

import anyio
import msgspec

from duologue.engines.cluster.lane_relay import LaneRelay
from duologue.engines.cluster.tcp_stream import listen_tcp
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.pulse import Reading
from duologue.engines.supervisor import SupervisionRules, Supervisor


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker is. ``restarts`` of its process on this machine, ``fault``: why the last time;
    ``start_s``: what its last start took, in seconds."""

    state: str = "waiting"
    restarts: int = 0
    fault: str = ""
    sessions: int = 0
    start_s: float = 0.0
    reading: Reading = Reading()


class ClusterWorker:
    """What a cluster's actor does. All methods are for one event loop."""

    def __init__(self, config: bytes, rules: bytes, secret: bytes, host: str) -> None:
        """`config` and `rules` are the msgpack of :class:`WorkerConfig` and
        :class:`SupervisionRules`; `host` is the machine's address among the others."""
        told = msgspec.msgpack.decode(config, type=WorkerConfig)
        # Memory can't be shared with another machine.
        limits = msgspec.structs.replace(told.limits, shared_bytes=0)
        self._supervisor = Supervisor(
            msgspec.structs.replace(told, limits=limits, directory=""),
            msgspec.msgpack.decode(rules, type=SupervisionRules),
        )
        self._secret = secret
        self._host = host
        self._port = 0
        self._listening = anyio.Event()
        self._stop = anyio.Event()
        self._ended = anyio.Event()

    async def run(self) -> str:
        """Keep the worker running until it is drained or told to stop; why it ended."""
        relay = LaneRelay(self._supervisor.directory, self._secret)
        try:
            async with listen_tcp(self._host) as listener, anyio.create_task_group() as group:
                self._port = listener.port
                self._listening.set()
                group.start_soon(relay.serve, listener)

                async def end_when_told() -> None:
                    await self._stop.wait()
                    group.cancel_scope.cancel()

                group.start_soon(end_when_told)
                await self._supervisor.run()
                group.cancel_scope.cancel()
        finally:
            self._ended.set()
        return "it was told to stop" if self._stop.is_set() else "it was drained"

    async def address(self) -> tuple[str, int]:
        """Where gateways connect to."""
        await self._listening.wait()
        return self._host, self._port

    async def condition(self) -> bytes:
        """The msgpack of a :class:`Condition`."""
        supervisor = self._supervisor
        return msgspec.msgpack.encode(
            Condition(
                state=supervisor.state,
                restarts=supervisor.restarts,
                fault=supervisor.last_fault,
                sessions=supervisor.sessions,
                start_s=supervisor.start_s,
                reading=supervisor.reading,
            )
        )

    async def drain(self, deadline_s: float) -> None:
        """Take no more sessions; :meth:`run` returns when the last one has ended."""
        await self._supervisor.drain(deadline_s)

    async def stop(self) -> None:
        """End now, in order; returns when nothing is left."""
        self._stop.set()
        await self._ended.wait()
