"""Many calls on one UDP port, told apart by the ICE user name."""

import anyio
import pytest
from aioice import stun
from anyio.abc import SocketAttribute

from duologue.realtime.ice_agent import IceAgent, IceGatherer, IceSettings, NoPortFree
from duologue.realtime.shared_port import MOST_ADDRESSES, SharedPort
from load_tests.server import free_port
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

HOME = ("127.0.0.1",)


@pytest.fixture
async def shared():
    port = SharedPort(free_port())
    yield port
    port.close()
    port.close()


def server_side(shared):
    return IceAgent(IceSettings(addresses=HOME, shared=shared), controlling=False)


async def reach(ours, caller):
    """A caller finds our side; its own candidates are not told."""
    await ours.gather_candidates()
    await caller.gather_candidates()
    for one, other in ((ours, caller), (caller, ours)):
        one.remote_username, one.remote_password = other.local_username, other.local_password
    for candidate in ours.local_candidates:
        await caller.add_remote_candidate(candidate)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ours.connect)
            tasks.start_soon(caller.connect)


def check(agent, *, password=None, name=None):
    """An ICE check as this agent's caller would send it."""
    request = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
    request.attributes["USERNAME"] = f"{name or agent.local_username}:them"
    request.attributes["PRIORITY"] = 1
    request.add_message_integrity((password or agent.local_password).encode())
    return bytes(request)


async def test_calls_on_one_port_get_their_own_packets(shared):
    pairs = [
        (server_side(shared), IceAgent(IceSettings(addresses=HOME), controlling=True))
        for _ in range(3)
    ]
    for ours, caller in pairs:
        await reach(ours, caller)
    assert {candidate.port for ours, _ in pairs for candidate in ours.local_candidates} == {
        shared.port
    }
    assert shared.calls == 3
    for number, (ours, caller) in enumerate(pairs):
        await caller.send(b"up %d" % number)
        assert await ours.recv() == b"up %d" % number
        await ours.send(b"down %d" % number)
        assert await caller.recv() == b"down %d" % number
    for ours, caller in pairs:
        await ours.close()
        await caller.close()
    assert shared.calls == 0
    [one] = shared._sockets.values()
    assert not one.names and not one._owners


async def test_a_call_that_ends_leaves_the_port_to_the_others(shared):
    first, second = server_side(shared), server_side(shared)
    callers = [IceAgent(IceSettings(addresses=HOME), controlling=True) for _ in range(2)]
    await reach(first, callers[0])
    await reach(second, callers[1])
    await first.close()
    await callers[1].send(b"still here")
    assert await second.recv() == b"still here"
    for agent in (second, *callers):
        await agent.close()


async def test_what_belongs_to_no_call_is_counted_and_dropped(shared):
    ours = server_side(shared)
    await ours.gather_candidates()
    [one] = shared._sockets.values()
    stranger = ("127.0.0.1", 9)
    for data in (
        b"",
        b"\x80\x6f" + bytes(40),
        check(ours, name="nobody"),
        check(ours, password="not the password at all"),
        check(ours)[:-1],
        bytes(stun.Message(stun.Method.BINDING, stun.Class.RESPONSE)),
    ):
        one.datagram_received(data, stranger)
    assert shared.strays == 6
    assert not one._owners
    await ours.close()


async def test_nobody_takes_over_the_packets_of_a_call(shared):
    first, second = server_side(shared), server_side(shared)
    await first.gather_candidates()
    await second.gather_candidates()
    [one] = shared._sockets.values()
    address = ("127.0.0.1", 9)
    one.datagram_received(check(first), address)
    owner = one._owners[address]
    one.datagram_received(check(second, password="not the password at all"), address)
    assert one._owners[address] is owner
    # Who knows the password may: the same client, in another call.
    one.datagram_received(check(second), address)
    assert one._owners[address] is not owner
    await first.close()
    assert address in one._owners
    await second.close()
    assert not one._owners


async def test_a_call_that_comes_from_everywhere_is_known_by_the_latest_addresses(shared):
    ours = server_side(shared)
    await ours.gather_candidates()
    [one] = shared._sockets.values()
    for port in range(2000, 2000 + 5 * MOST_ADDRESSES):
        one.datagram_received(check(ours), ("127.0.0.1", port))
    assert len(one._owners) == MOST_ADDRESSES
    await ours.close()
    assert not one._owners


async def test_a_port_in_use_is_an_error_of_its_own():
    taken = await anyio.create_udp_socket(local_host="127.0.0.1")
    async with taken:
        shared = SharedPort(taken.extra(SocketAttribute.local_port))
        gatherer = IceGatherer(IceSettings(addresses=HOME, shared=shared), controlling=False)
        with pytest.raises(NoPortFree, match="port"):
            await gatherer.gather()
        await gatherer.agent.close()
    shared.close()
