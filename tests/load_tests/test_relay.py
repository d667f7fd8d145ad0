"""A network in the path of a call."""

import anyio
import pytest
from anyio.abc import SocketAttribute

from load_tests.impairment import Impairment
from load_tests.relay import Relay, open_relay, without_candidates
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

ANSWER = "\r\n".join(
    [
        "v=0",
        "m=audio 9 UDP/TLS/RTP/SAVPF 111",
        "a=candidate:1 1 udp 2130706431 127.0.0.1 {port} typ host",
        "a=candidate:2 1 udp 1694498815 192.0.2.9 {port} typ srflx raddr 127.0.0.1 rport 1",
        "a=end-of-candidates",
        "a=ice-ufrag:abcd",
        "",
    ]
)


async def through(relay: Relay, packets: int) -> list[bytes]:
    """What comes back from a server that sends everything back."""
    server = await anyio.create_udp_socket(local_host="127.0.0.1")
    port = server.extra(SocketAttribute.local_port)
    answer = relay.into(ANSWER.format(port=port))
    [line] = [line for line in answer.splitlines() if line.startswith("a=candidate:")]
    host, front = line.split()[4:6]
    client = await anyio.create_udp_socket(local_host="127.0.0.1")
    back: list[bytes] = []

    async def serve() -> None:
        async for data, address in server:
            await server.sendto(data, *address)

    async def hear() -> None:
        async for data, _ in client:
            back.append(data)

    def arrived() -> bool:
        up, down = relay.up, relay.down
        sent = (up.packets, down.packets, len(back))
        return sent == (packets, packets - up.lost, down.packets - down.lost)

    async with server, client, anyio.create_task_group() as tasks:
        tasks.start_soon(serve)
        tasks.start_soon(hear)
        for number in range(packets):
            await client.sendto(b"%d" % number, host, int(front))
        with anyio.fail_after(PATIENCE_S):
            while not arrived():  # noqa: ASYNC110 - packets come over real sockets
                await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()
    return back


async def test_packets_go_to_the_server_and_back() -> None:
    async with open_relay(Impairment(), 1) as relay:
        assert await through(relay, 5) == [b"0", b"1", b"2", b"3", b"4"]


async def test_of_lost_packets_nothing_comes_back() -> None:
    async with open_relay(Impairment(loss=50), 1) as relay:
        back = await through(relay, 40)
    assert relay.up.packets == 40
    assert len(back) == 40 - relay.up.lost - relay.down.lost < 40


async def test_an_answer_without_a_host_is_no_use() -> None:
    async with open_relay(Impairment(), 1) as relay:
        with pytest.raises(ValueError, match="candidate"):
            relay.into("v=0\r\n")


async def test_an_offer_can_go_without_its_candidates() -> None:
    assert "candidate" not in without_candidates(ANSWER)
