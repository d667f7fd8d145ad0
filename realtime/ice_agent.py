"""ICE as this server does it: aioice, with our addresses, our ports and a word when consent ends.

Source: RFC 8445 (ICE), RFC 7675 (consent). The other side's candidates are never said to be
complete: offers may come without any, and then the peer is learnt from its own checks.
"""

import asyncio
import errno
import random
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import aioice
import anyio
from aioice import stun
from aioice.candidate import candidate_foundation, candidate_priority
from aioice.ice import (
    ConnectionClosed,
    ConnectionEvent,
    StunProtocol,
    relayed_candidate,
    server_reflexive_candidate,
)
from aiortc.rtcicetransport import RTCIceGatherer

from duologue.realtime.shared_port import SharedPort

LOOPBACK: Final = "127.0.0.1"
RECEIVE_BUFFER: Final = 1024 * 1024
"""Bytes that the kernel may hold for a socket while the event loop is busy."""

_IN_USE: Final = frozenset({errno.EADDRINUSE, errno.EACCES})


class NoPortFree(OSError):
    """Every UDP port of the range is in use."""


@dataclass(frozen=True, slots=True)
class IceSettings:
    """``addresses``: of this machine, to gather on; ``None`` for all but loopback.

    ``ports``: UDP ports to use, both ends included; ``None`` for any. ``shared``: one port for
    all calls instead. ``public_address``: where a
    NAT in front of this machine is reached; it keeps port numbers. ``stun`` and ``turn`` are host
    and port. Times are in seconds.
    """

    addresses: tuple[str, ...] | None = None
    ports: tuple[int, int] | None = None
    shared: SharedPort | None = None
    public_address: str | None = None
    stun: tuple[str, int] | None = None
    turn: tuple[str, int] | None = None
    turn_transport: str = "udp"
    turn_tls: bool = False
    turn_username: str | None = None
    turn_password: str | None = None
    gather_seconds: float = 3.0
    consent_interval: float = 5.0
    consent_failures: int = 6


class IceAgent(aioice.Connection):
    """One session's ICE. ``on_lost`` is called when the other side no longer consents."""

    def __init__(self, settings: IceSettings, controlling: bool) -> None:
        super().__init__(ice_controlling=controlling)
        self._settings = settings
        self.on_lost: Callable[[], None] = _ignore

    async def get_event(self) -> ConnectionEvent:
        """As aioice's, but it never says that there is no event: aiortc would ask again for ever,
        without a pause, of a connection that was closed in the moment in which it began."""
        return await super().get_event() or ConnectionClosed()

    async def get_component_candidates(
        self,
        component: int,
        addresses: list[str],
        timeout: int = 5,  # noqa: ASYNC109 - as aioice calls it
    ) -> list[aioice.Candidate]:
        """Candidates on our addresses and in our range of ports; then what servers add."""
        settings = self._settings
        # A machine without a network still has callers of its own.
        chosen = settings.addresses or addresses or (LOOPBACK,)
        found: list[aioice.Candidate] = []
        for protocol in await self._open(chosen):
            host, port = protocol.transport.get_extra_info("sockname")[:2]
            protocol.local_candidate = aioice.Candidate(
                foundation=candidate_foundation("host", "udp", host),
                component=component,
                transport="udp",
                priority=candidate_priority(component, "host"),
                host=host,
                port=port,
                type="host",
            )
            found.append(protocol.local_candidate)
            self._protocols.append(protocol)
        return found + await self._ask_servers(component)

    async def _open(self, addresses: Sequence[str]) -> list[StunProtocol]:
        """What packets come and go by, on each address."""
        if self._settings.shared is not None:
            try:
                return await self._settings.shared.join(self, addresses)
            except OSError as error:
                raise NoPortFree(f"port {self._settings.shared.port}: {error}") from None
        opened: list[StunProtocol] = []
        loop = asyncio.get_running_loop()
        for bound in bind_all(addresses, self._settings.ports):
            _, protocol = await loop.create_datagram_endpoint(
                lambda: StunProtocol(self), sock=bound
            )
            opened.append(protocol)
        return opened

    async def _ask_servers(self, component: int) -> list[aioice.Candidate]:
        """What STUN and TURN servers say, as far as they say it in time."""
        settings = self._settings
        found: list[aioice.Candidate] = []

        async def ask_stun(protocol: StunProtocol, server: tuple[str, int]) -> None:
            with suppress(OSError, stun.TransactionError):
                candidate, _ = await server_reflexive_candidate(protocol, server)
                found.append(candidate)

        async def ask_turn(server: tuple[str, int]) -> None:
            with suppress(OSError, stun.TransactionError):
                candidate, protocol = await relayed_candidate(
                    component=component,
                    hide_related_address=False,
                    protocol_factory=lambda: StunProtocol(self),
                    turn_server=server,
                    turn_username=settings.turn_username,
                    turn_password=settings.turn_password,
                    turn_ssl=settings.turn_tls,
                    turn_transport=settings.turn_transport,
                )
                self._protocols.append(protocol)
                found.append(candidate)

        with anyio.move_on_after(settings.gather_seconds):
            async with anyio.create_task_group() as tasks:
                if settings.stun is not None:
                    for protocol in list(self._protocols):
                        if ":" not in protocol.local_candidate.host:
                            tasks.start_soon(ask_stun, protocol, settings.stun)
                if settings.turn is not None:
                    tasks.start_soon(ask_turn, settings.turn)
        return found

    async def query_consent(self) -> None:
        """Ask every few seconds whether the other side still wants packets; else send none.

        RFC 7675 section 5.1.
        """
        assert self.remote_password is not None
        failures = 0
        while failures < self._settings.consent_failures:
            await anyio.sleep(self._settings.consent_interval * random.uniform(0.8, 1.2))
            for pair in list(self._nominated.values()):
                request = self.build_request(pair, nominate=False)
                try:
                    await pair.protocol.request(
                        request,
                        pair.remote_addr,
                        integrity_key=self.remote_password.encode(),
                        retransmissions=0,
                    )
                except stun.TransactionError:
                    failures += 1
                else:
                    failures = 0
        self._nominated.clear()
        self.on_lost()


class IceGatherer(RTCIceGatherer):
    """aiortc's gatherer around our agent."""

    def __init__(self, settings: IceSettings, controlling: bool) -> None:
        super().__init__(iceServers=[])
        self.agent = IceAgent(settings, controlling)
        self._connection = self.agent


def bind_all(addresses: Sequence[str], ports: tuple[int, int] | None) -> list[socket.socket]:
    """A UDP socket on each address that can be bound.

    Raises NoPortFree when there is an address but no port, and leaves no socket behind then.
    """
    sockets: list[socket.socket] = []
    refused = False
    for address in addresses:
        try:
            sockets.append(bind_one(address, ports))
        except NoPortFree:
            refused = True
        except OSError:
            # The address has gone, or its family is switched off.
            continue
    if refused and not sockets:
        raise NoPortFree("every UDP port of the range is in use")
    return sockets


def bind_one(address: str, ports: tuple[int, int] | None) -> socket.socket:
    """A UDP socket on an address, in the range, from a random place on."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    choices = [0]
    if ports is not None:
        low, high = ports
        start = random.randint(low, high)
        choices = [*range(start, high + 1), *range(low, start)]
    for port in choices:
        bound = socket.socket(family, socket.SOCK_DGRAM)
        try:
            bound.setblocking(False)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            bound.bind((address, port))
        except OSError as error:
            bound.close()
            if ports is None or error.errno not in _IN_USE:
                raise
        else:
            return bound
    raise NoPortFree(f"every UDP port from {ports} is in use on {address}")


def _ignore() -> None:
    return
