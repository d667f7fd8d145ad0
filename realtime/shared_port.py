"""One UDP port for all calls of a process: which call a packet belongs to.

A call's first packet from an address is an ICE check whose user name begins with the fragment that
we gave that call, signed with its password (RFC 8445 section 7.3); from then on the address tells.
An address goes over to another call only by such a check, so nobody can take a call's packets away.
"""

import asyncio
import socket
from collections.abc import Sequence
from typing import Any, Final, cast

import aioice
import anyio
from aioice import stun
from aioice.ice import StunProtocol

RECEIVE_BUFFER: Final = 4 * 1024 * 1024
"""Bytes that the kernel may hold while the event loop is busy, for all calls together."""
MOST_ADDRESSES: Final = 16
"""From which one call is reached; with one more, the oldest is forgotten."""
_STUN: Final = 0x2112A442

Address = tuple[str, int]


class SharedPort:
    """The sockets are opened with the first call, and closed by :meth:`close`."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._sockets: dict[str, _Socket] = {}
        self._opening = anyio.Lock()

    async def join(self, agent: aioice.Connection, addresses: Sequence[str]) -> list[StunProtocol]:
        """A protocol for a call on each address that can be bound.

        Raises OSError when there is none.
        """
        failure: OSError | None = None
        joined: list[StunProtocol] = []
        for address in addresses:
            try:
                async with self._opening:
                    if address not in self._sockets:
                        self._sockets[address] = await _open(address, self.port)
            except OSError as error:
                failure = error
                continue
            joined.append(self._sockets[address].join(agent))
        if failure is not None and not joined:
            raise failure
        return joined

    @property
    def calls(self) -> int:
        """Which have joined and not left, on the address with the most."""
        return max((len(one.names) for one in self._sockets.values()), default=0)

    @property
    def strays(self) -> int:
        """Packets that belonged to no call."""
        return sum(one.strays for one in self._sockets.values())

    def close(self) -> None:
        """Idempotent."""
        for one in self._sockets.values():
            one.transport.close()
        self._sockets.clear()


async def _open(address: str, port: int) -> "_Socket":
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    loop = asyncio.get_running_loop()
    _, opened = await loop.create_datagram_endpoint(_Socket, sock=bound)
    return opened


class _Socket(asyncio.DatagramProtocol):
    """One address. ``names``: calls by the fragment that we gave them."""

    transport: asyncio.DatagramTransport

    def __init__(self) -> None:
        self.names: dict[str, SharedProtocol] = {}
        self.strays = 0
        self._owners: dict[Address, SharedProtocol] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def join(self, agent: aioice.Connection) -> "SharedProtocol":
        protocol = SharedProtocol(agent, self)
        self.names[agent.local_username] = protocol
        return protocol

    def leave(self, protocol: "SharedProtocol") -> None:
        """Idempotent."""
        self.names.pop(protocol.receiver.local_username, None)
        for address in protocol.addresses:
            if self._owners.get(address) is protocol:
                del self._owners[address]

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        address: Address = (addr[0], addr[1])
        owner = self._owners.get(address)
        if len(data) >= stun.HEADER_LENGTH and int.from_bytes(data[4:8]) == _STUN:
            owner = self._owner_of(data, address, owner)
        if owner is None:
            self.strays += 1
        else:
            owner.datagram_received(data, address)

    def _owner_of(
        self, data: bytes, address: Address, before: "SharedProtocol | None"
    ) -> "SharedProtocol | None":
        """Whose STUN message this is."""
        try:
            message = stun.parse_message(data)
        except ValueError:
            return None
        if message.message_class is stun.Class.REQUEST:
            name = str(message.attributes.get("USERNAME", "")).partition(":")[0]
            owner = self.names.get(name)
            if owner is None:
                return None
            if owner is not before:
                key = owner.receiver.local_password.encode()
                if not message.check_message_integrity(key):
                    return None
                self._assign(address, owner)
            return owner
        for protocol in (before, *self.names.values()):
            if protocol is not None and message.transaction_id in protocol.transactions:
                if before is None:
                    self._assign(address, protocol)
                return protocol
        return None

    def _assign(self, address: Address, owner: "SharedProtocol") -> None:
        self._owners[address] = owner
        owner.addresses.append(address)
        if len(owner.addresses) > MOST_ADDRESSES:
            oldest = owner.addresses.pop(0)
            if oldest != address and self._owners.get(oldest) is owner:
                del self._owners[oldest]


class SharedProtocol(StunProtocol):
    """One call's part of a socket, as aioice knows a socket of its own."""

    def __init__(self, agent: aioice.Connection, shared: _Socket) -> None:
        super().__init__(agent)
        self.addresses: list[Address] = []
        self.transport = cast(asyncio.DatagramTransport, _Line(self, shared))


class _Line:
    """What is used of a transport. Closing it closes one call's part only."""

    def __init__(self, protocol: SharedProtocol, shared: _Socket) -> None:
        self._protocol = protocol
        self._shared = shared
        self._closing = False

    def sendto(self, data: bytes, addr: Address) -> None:
        if not self._closing:
            self._shared.transport.sendto(data, addr)

    def get_extra_info(self, name: str, default: object = None) -> Any:
        return self._shared.transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._shared.leave(self._protocol)
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close
