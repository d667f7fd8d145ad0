"""Ports, addresses and consent."""

import socket

import anyio
import anyio.lowlevel
import pytest
from aioice.ice import ConnectionClosed
from aiortc.rtcicetransport import RTCIceParameters, RTCIceTransport

from duologue.realtime.ice_agent import (
    IceAgent,
    IceGatherer,
    IceSettings,
    NoPortFree,
    bind_all,
    bind_one,
)
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio
HOME = ("127.0.0.1",)


def closed(*sockets):
    for one in sockets:
        one.close()


@pytest.fixture
def taken():
    """A UDP port of this machine that is in use."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        yield other.getsockname()[1]


def test_a_port_of_the_range_is_taken_whatever_is_in_use(taken):
    low = min(taken, 65_500)
    found = bind_one("127.0.0.1", (low, low + 30))
    assert low <= found.getsockname()[1] <= low + 30
    assert found.getsockname()[1] != taken
    closed(found)


def test_a_range_without_a_free_port_is_an_error_of_its_own(taken):
    with pytest.raises(NoPortFree):
        bind_one("127.0.0.1", (taken, taken))
    with pytest.raises(NoPortFree):
        bind_all(HOME, (taken, taken))


def test_an_address_that_is_not_ours_is_passed_over():
    found = bind_all(("192.0.2.77", "127.0.0.1"), None)
    assert [one.getsockname()[0] for one in found] == ["127.0.0.1"]
    closed(*found)


async def test_candidates_are_gathered_on_the_given_addresses_alone():
    gatherer = IceGatherer(IceSettings(addresses=HOME), controlling=False)
    await gatherer.gather()
    assert [candidate.ip for candidate in gatherer.getLocalCandidates()] == ["127.0.0.1"]
    assert not gatherer.agent.ice_controlling
    await gatherer.agent.close()


async def test_a_machine_without_a_network_can_be_called_from_itself(monkeypatch):
    monkeypatch.setattr("aioice.ice.get_host_addresses", lambda use_ipv4, use_ipv6: [])
    gatherer = IceGatherer(IceSettings(), controlling=True)
    await gatherer.gather()
    assert [candidate.ip for candidate in gatherer.getLocalCandidates()] == ["127.0.0.1"]
    await gatherer.agent.close()


async def test_servers_that_do_not_answer_hold_nothing_up_for_long(taken):
    nobody = ("127.0.0.1", taken)
    settings = IceSettings(addresses=HOME, stun=nobody, turn=nobody, gather_seconds=0.05)
    gatherer = IceGatherer(settings, controlling=False)
    with anyio.fail_after(PATIENCE_S):
        await gatherer.gather()
    assert len(gatherer.getLocalCandidates()) == 1
    await gatherer.agent.close()


async def connected(first, second):
    """Two agents that have found each other."""
    for one, other in ((first, second), (second, first)):
        await one.gather_candidates()
        one.remote_username, one.remote_password = other.local_username, other.local_password
    for candidate in second.local_candidates:
        await first.add_remote_candidate(candidate)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(first.connect)
            tasks.start_soon(second.connect)


async def test_a_peer_is_learnt_from_its_checks_and_lost_when_it_no_longer_answers():
    settings = IceSettings(addresses=HOME, consent_interval=0.01, consent_failures=3)
    caller, ours = IceAgent(IceSettings(addresses=HOME), True), IceAgent(settings, False)
    lost = anyio.Event()
    ours.on_lost = lost.set
    await connected(caller, ours)
    await caller.send(b"hello")
    assert await ours.recv() == b"hello"
    await caller.close()
    with anyio.fail_after(PATIENCE_S):
        await lost.wait()
    await ours.close()


async def test_one_that_is_closed_says_so_whenever_it_is_asked():
    agent = IceAgent(IceSettings(addresses=HOME), controlling=False)
    await agent.close()
    for _ in range(2):
        with anyio.fail_after(PATIENCE_S):
            assert isinstance(await agent.get_event(), ConnectionClosed)


async def test_a_transport_that_is_stopped_as_it_starts_holds_nobody_up():
    gatherer = IceGatherer(IceSettings(addresses=HOME), controlling=False)
    transport = RTCIceTransport(gatherer)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(transport.start, RTCIceParameters("user", "p" * 24, False))
        await anyio.lowlevel.checkpoint()
        with anyio.fail_after(PATIENCE_S):
            await transport.stop()
        tasks.cancel_scope.cancel()
    assert transport.state == "closed"
