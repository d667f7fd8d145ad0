"""One of several gateway processes: it serves clients beside others, on the same port.

Started as ``python -m duologue.web.gateway`` by :mod:`duologue.web.gateways`, with a configuration
on standard input as a worker's (:mod:`duologue.engines.lifeline`), and it ends as one does: with
its parent, or when it is told to and its conversations are over.
"""

import logging
import mmap
import os
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from starlette.applications import Starlette

from duologue.engines.engine import EngineUnavailable
from duologue.engines.lifeline import Beat, Drain, Staff, Started, StartFailed
from duologue.engines.pulse import Reading
from duologue.engines.worker import Lifeline, log_to_stderr, take_standard_streams, tidy
from duologue.sessions.headcount import ROW_BYTES, Headcount
from duologue.web import logs
from duologue.web.app import create_app
from duologue.web.gateway_options import GatewayOptions, decode_options
from duologue.web.inside import Inside, adopt
from duologue.web.peers import Peers
from duologue.web.seat import Seat, ToldWorker, inside_socket
from duologue.web.serve_command import bind, drain, running
from duologue.web.service import Service
from duologue.web.uvicorn_impl import PatientServer, server_config

BEAT_SECONDS: Final = 0.25
SETTLE_SECONDS: Final = 3.0
"""How long a gateway waits for a worker before it lets clients in."""
_POLL_SECONDS: Final = 0.01

log = logging.getLogger("duologue.web.gateway")


class Gateway:
    """``app`` with its seat, from the first connection to the last."""

    def __init__(
        self, options: GatewayOptions, seat: Seat, app: Starlette, lifeline: Lifeline
    ) -> None:
        self._options = options
        self._seat = seat
        self._app = app
        self._lifeline = lifeline
        self._settled = anyio.Event()

    async def run(self) -> None:
        """Serve until told to stop. Raises ServeError."""
        options = self._options
        with bind(options.settings, port=options.port) as listener:
            server = PatientServer(server_config(self._app, certificate=options.certificate))
            async with running(self._app) as service, anyio.create_task_group() as tasks:
                tasks.start_soon(self._obey, service, server)
                tasks.start_soon(self._drain_on_signal, service, server)
                assert service.peers is not None
                path = inside_socket(self._seat.directories[self._seat.number])
                inside = PatientServer(
                    server_config(Inside(self._app, service.peers), path=str(path))
                )
                async with anyio.create_task_group() as serving:
                    serving.start_soon(inside.serve)
                    while not inside.started:  # noqa: ASYNC110 - uvicorn tells nobody
                        await anyio.sleep(_POLL_SECONDS)
                    tasks.start_soon(self._settle, service, service.peers)
                    with anyio.move_on_after(SETTLE_SECONDS):
                        await self._settled.wait()
                    tasks.start_soon(self._beat, service)
                    await server.serve(sockets=[listener])
                    inside.should_exit = True
                tasks.cancel_scope.cancel()

    async def _settle(self, service: Service, peers: Peers) -> None:
        """Once the model is known, learn the client secrets that other gateways have issued."""
        while not service.engine.ready:  # noqa: ASYNC110 - it has no word for it
            await anyio.sleep(_POLL_SECONDS)
        try:
            adopt(service, peers, await peers.fetch(), service.clock.now())
        except EngineUnavailable:  # pragma: no cover - a spec that was known stays known
            log.warning("client secrets of other gateways are not known here")
        self._settled.set()

    async def _beat(self, service: Service) -> None:
        self._lifeline.report(Started(self._options.settings.max_sessions))
        while True:
            gauges = {"ready": float(service.ready and self._settled.is_set())}
            self._lifeline.report(Beat(self._seat.headcount.own, Reading(gauges=gauges)))
            await anyio.sleep(BEAT_SECONDS)

    async def _obey(self, service: Service, server: PatientServer) -> None:
        """Drain when asked to; stop when the parent is gone or wants this process gone."""
        async with anyio.create_task_group() as tasks:
            async for request in self._lifeline.read_requests():
                match request:
                    case Drain(deadline_s=seconds):
                        tasks.start_soon(drain, service, server, seconds)
                    case Staff():
                        self._seat.hear(request)
            server.should_exit = True
            tasks.cancel_scope.cancel()

    async def _drain_on_signal(self, service: Service, server: PatientServer) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            async for _ in signals:
                # Who comes now is for the other gateways.
                for listening in server.servers:
                    listening.close()
                await drain(service, server, service.settings.drain_seconds)
                return


def main() -> int:
    """Run a gateway; the exit status is 0 after an orderly end."""
    # Ctrl-C and a terminal's end reach the whole process group; the parent decides when this
    # process ends.
    for one in (signal.SIGINT, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    lifeline = take_standard_streams()
    config = lifeline.read_config()
    log_to_stderr(config, "gateway")
    logs.quieten(config.log_level)
    lifeline.guard(config.stop_s, partial(tidy, config))
    try:
        options = decode_options(config.options)
        board = mmap.mmap(options.board, ROW_BYTES * len(options.directories))
        os.close(options.board)
        seat = Seat(
            options.number,
            [Path(one) for one in options.directories],
            [Path(one) for one in options.workers],
            {name: ToldWorker(name) for name in options.names},
            Headcount(board, options.number),
            [Path(one) for one in options.scribes],
        )
        gateway = Gateway(options, seat, create_app(options.settings, seat), lifeline)
        anyio.run(gateway.run, backend_options={"use_uvloop": True})
    except Exception as error:
        log.exception("the gateway failed")
        lifeline.report(StartFailed(f"{type(error).__name__}: {error}"))
        return 1
    finally:
        lifeline.finish()
        tidy(config)
    return 0


if __name__ == "__main__":
    sys.exit(main())
