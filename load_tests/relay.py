"""A network between a client and a server, without root: UDP packets pass through this process.

The client is told the relay's address in place of the server's, and the server learns the relay's
from the checks that come through it. Packets are not changed: they are lost, delayed or swapped.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from load_tests.clock import now
from load_tests.impairment import Impairment, Link

HOST = "127.0.0.1"
_CANDIDATE = re.compile(r"^a=candidate:(\S+ 1 udp \d+ \S+ \d+ typ host.*)$", re.I | re.M)

Address = tuple[str, int]


class _Port(asyncio.DatagramProtocol):
    """One side's socket; what comes in goes through a link and out of the other side's."""

    def __init__(self, link: Link, to: Address | None = None) -> None:
        self._link = link
        self.to = to
        """Where this side's packets go: the server, or the client once it has spoken."""
        self.other: _Port | None = None
        self.transport: asyncio.DatagramTransport | None = None
        self._learns = to is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        if self._learns:
            self.to = addr[0], addr[1]
        delay = self._link.admit(len(data), now())
        if delay is None or self.other is None:
            return
        if delay <= 0:
            self.other.pass_on(data)
        else:
            asyncio.get_running_loop().call_later(delay, self.other.pass_on, data)

    def pass_on(self, data: bytes) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing() and self.to is not None:
            transport.sendto(data, self.to)

    @property
    def address(self) -> Address:
        assert self.transport is not None
        host, port = self.transport.get_extra_info("sockname")[:2]
        return host, port


class Relay:
    """``up``: from the client to the server; ``down``: back."""

    def __init__(self, impairment: Impairment, seed: int) -> None:
        self.up = Link(impairment, 2 * seed)
        self.down = Link(impairment, 2 * seed + 1)
        self._front = _Port(self.up)
        self._back = _Port(self.down, (HOST, 9))
        self._front.other, self._back.other = self._back, self._front

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        for port in (self._front, self._back):
            await loop.create_datagram_endpoint(lambda port=port: port, local_addr=(HOST, 0))

    def close(self) -> None:
        for port in (self._front, self._back):
            if port.transport is not None:
                port.transport.abort()

    def candidate(self, theirs: str) -> str:
        """This relay's candidate in place of the server's, to which packets go from now on."""
        fields = theirs.split()
        self._back.to = fields[4], int(fields[5])
        host, port = self._front.address
        return f"1 1 udp 2130706431 {host} {port} typ host"

    def into(self, answer: str) -> str:
        """The answer's SDP with this relay as its only candidate. Raises ValueError without any."""
        found = _CANDIDATE.search(answer)
        if found is None:
            raise ValueError("no host candidate in the answer")
        mine = f"a=candidate:{self.candidate(found[1])}"
        lines = [line for line in answer.splitlines() if not line.startswith("a=candidate:")]
        at = lines.index("a=end-of-candidates")
        return "\r\n".join([*lines[:at], mine, *lines[at:]]) + "\r\n"


def without_candidates(sdp: str) -> str:
    """An offer as from a client that does not wait for its candidates: the server has to learn
    where it is, and learns of the relay."""
    lines = [line for line in sdp.splitlines() if not line.startswith("a=candidate:")]
    return "\r\n".join(line for line in lines if line != "a=end-of-candidates") + "\r\n"


@asynccontextmanager
async def open_relay(impairment: Impairment, seed: int) -> AsyncIterator[Relay]:
    """A relay that is open as long as the context is. Raises OSError where it can't be."""
    relay = Relay(impairment, seed)
    try:
        await relay.open()
        yield relay
    finally:
        relay.close()
