"""The parent of several gateways and of the workers: it starts them, watches them, ends them.

It serves nobody itself. Gateways bind the port with SO_REUSEPORT, and the kernel deals new
connections out among them; the parent holds the port, without listening, while any of them is
replaced.
"""

import mmap
import os
from collections.abc import Sequence
from typing import Final

import anyio
import anyio.abc

from duologue.engines.lifeline import Staff, Told, WorkerConfig
from duologue.engines.supervisor import SupervisionRules, Supervisor
from duologue.engines.worker_directory import private_directory
from duologue.sessions.headcount import ROW_BYTES, Headcount
from duologue.web.app import staff
from duologue.web.crew import Crew
from duologue.web.gateway_options import GatewayOptions, encode_options
from duologue.web.rtc_setup import peer_settings
from duologue.web.seat import gateway_name, share_of
from duologue.web.serve_command import Say, ServeError, bind, plain, stop_signals, welcome
from duologue.web.settings import Settings

TELL_SECONDS: Final = 0.5
RULES: Final = SupervisionRules(silence_s=15.0, stop_s=25.0)
"""A gateway ends its sessions before itself: ten seconds for them, five for what is sent."""
_POLL_SECONDS: Final = 0.02
_MODULE: Final = "duologue.web.gateway"


class Gateways:
    """What to run, made before the event loop is: making it reads files. Raises SettingsError."""

    def __init__(self, settings: Settings, certificate: tuple[str, str] | None) -> None:
        self.settings = settings
        self._certificate = certificate
        self._hired = staff(settings)
        for number in range(settings.gateways):
            peer_settings(share_of(settings, number))

    async def run(self, made_up_key: str | None, say: Say) -> None:
        """Serve until a signal says to stop. Raises ServeError."""
        with bind(self.settings) as probe:  # nobody else listens there
            port = probe.getsockname()[1]
        board = os.memfd_create("duologue-sessions", os.MFD_CLOEXEC)
        try:
            os.ftruncate(board, ROW_BYTES * self.settings.gateways)
            with bind(self.settings, port=port):
                await self._run(port, board, made_up_key, say)
        finally:
            os.close(board)

    async def _run(self, port: int, board: int, made_up_key: str | None, say: Say) -> None:
        crew = self._hired()
        gateways = self._gateways(crew, port, board)
        count = Headcount(mmap.mmap(board, ROW_BYTES * len(gateways)))
        async with anyio.create_task_group() as workers:
            for keeper in crew.keepers:
                workers.start_soon(keeper.run)
            workers.start_soon(_inform, crew, gateways)
            for number, gateway in enumerate(gateways):
                workers.start_soon(_clear, gateway, count, number)
            starting = anyio.CancelScope()
            workers.start_soon(self._announce, starting, crew, gateways, port, made_up_key, say)
            async with anyio.create_task_group() as serving:
                workers.start_soon(self._stop_on_signal, starting, gateways, serving)
                for gateway in gateways:
                    serving.start_soon(gateway.run)
            workers.cancel_scope.cancel()

    def _gateways(self, crew: Crew, port: int, board: int) -> list[Supervisor]:
        directories = [
            private_directory(gateway_name(number)) for number in range(self.settings.gateways)
        ]
        made = []
        for number, directory in enumerate(directories):
            options = GatewayOptions(
                settings=self.settings,
                port=port,
                certificate=self._certificate,
                number=number,
                directories=tuple(map(str, directories)),
                workers=tuple(str(remote.directory) for remote in crew.remotes),
                scribes=tuple(str(remote.directory) for remote in crew.scribes),
                names=tuple(keeper.name for keeper in crew.keepers),
                board=board,
            )
            config = WorkerConfig(
                name=str(number),
                backend="gateway",
                directory=str(directory),
                remove_directory=True,
                options=encode_options(options),
                log_level=self.settings.log_level,
                log_format=self.settings.log_format,
                stop_s=RULES.stop_s,
            )
            made.append(Supervisor(config, RULES, module=_MODULE, kind="gateway", pass_fds=[board]))
        return made

    async def _announce(
        self,
        starting: anyio.CancelScope,
        crew: Crew,
        gateways: Sequence[Supervisor],
        port: int,
        made_up_key: str | None,
        say: Say,
    ) -> None:
        """Say where the server is once all of it can talk. Raises ServeError."""
        say("Starting the model.")
        with starting:
            while not all(gateway.reading.gauges.get("ready") for gateway in gateways):
                for one in crew.keepers:
                    if one.last_fault:
                        raise ServeError(f"the model did not start: {one.last_fault}")
                for gateway in gateways:
                    if gateway.last_fault:
                        raise ServeError(f"a gateway did not start: {gateway.last_fault}")
                await anyio.sleep(_POLL_SECONDS)
            welcome(self.settings, port, made_up_key, say)

    async def _stop_on_signal(
        self,
        starting: anyio.CancelScope,
        gateways: Sequence[Supervisor],
        serving: anyio.abc.TaskGroup,
    ) -> None:
        """The first signal lets conversations end; the second does not wait for them."""
        with anyio.open_signal_receiver(*stop_signals()) as signals:
            await anext(signals)
            starting.cancel()
            for gateway in gateways:
                await gateway.drain(self.settings.drain_seconds)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_ended, gateways, tasks.cancel_scope)
                with anyio.move_on_after(self.settings.drain_seconds + RULES.stop_s):
                    await anext(signals)
                tasks.cancel_scope.cancel()
        serving.cancel_scope.cancel()


async def serve_with(gateways: Gateways, made_up_key: str | None, say: Say) -> None:
    """Run them until told to stop. Raises ServeError."""
    try:
        await gateways.run(made_up_key, say)
    except BaseExceptionGroup as group:
        raise plain(group) from None


async def _until_ended(gateways: Sequence[Supervisor], scope: anyio.CancelScope) -> None:
    """One that waits to be started again has nothing to end."""
    for gateway in gateways:
        while gateway.pid is not None:
            await gateway.wait_change()
    scope.cancel()


async def _clear(gateway: Supervisor, count: Headcount, number: int) -> None:
    """The sessions of a gateway that is gone are."""
    while True:
        await gateway.wait_change()
        if gateway.pid is None:
            count.clear(number)


async def _inform(crew: Crew, gateways: Sequence[Supervisor]) -> None:
    """Tell the gateways of the workers, at an interval."""
    while True:
        told = Staff(
            tuple(
                Told(
                    name=one.name,
                    state=one.state,
                    restarts=one.restarts,
                    sessions=one.sessions,
                    start_s=one.start_s,
                    reading=one.reading,
                )
                for one in crew.keepers
            ),
            sum(gateway.restarts for gateway in gateways),
        )
        for gateway in gateways:
            if gateway.state == "ready":
                # One that does not read is about to be replaced; the others hear it next time.
                with anyio.move_on_after(TELL_SECONDS):
                    await gateway.tell(told)
        await anyio.sleep(TELL_SECONDS)
