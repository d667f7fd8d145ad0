"""One end of a call: what it says of itself, and that it gives up in time."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from duologue.realtime.ice_agent import IceAgent, IceSettings, NoPortFree
from duologue.realtime.pacer import Pacer
from duologue.realtime.rtc_peer import (
    MOST_OFFERS,
    Certificates,
    PeerFailed,
    PeerSettings,
    RtcPeer,
)
from duologue.realtime.sdp_answer import choose
from duologue.realtime.sdp_offer import Fingerprint, parse_offer
from duologue.sessions.errors import ProtocolError
from tests.patience import PATIENCE_S
from tests.realtime.remote_peer import RemotePeer

pytestmark = pytest.mark.anyio

OFFER = Path(__file__).parent.parent / "data" / "sdp" / "chrome-no-candidates-red.sdp"
CHOICE = choose(parse_offer(OFFER.read_text()))
HOME = IceSettings(addresses=("127.0.0.1",))


class Listener:
    """Hears nothing it should not."""

    def __init__(self):
        self.told = []

    def __getattr__(self, name):
        return lambda *what: self.told.append(name)


def peer(settings=None, choice=CHOICE):
    return RtcPeer(choice, settings or PeerSettings(HOME), Certificates(), Pacer(), Listener())


def test_a_certificate_is_renewed_before_it_expires():
    certificates = Certificates()
    now = datetime.now(UTC)
    first = certificates.current(now)
    assert certificates.current(now) is first
    assert certificates.current(now + timedelta(days=20)) is not first


async def test_the_address_of_a_nat_is_offered_beside_our_own():
    ours = peer(PeerSettings(replace(HOME, public_address="192.0.2.9")))
    own, public = (await ours.gather()).candidates
    assert " 127.0.0.1 " in own
    assert " 192.0.2.9 " in public
    assert "typ srflx raddr 127.0.0.1" in public
    assert own.split()[5] == public.split()[5]
    await ours.aclose()


async def test_an_address_of_another_family_is_not_ours():
    ours = peer(PeerSettings(replace(HOME, public_address="2001:db8::9")))
    assert len((await ours.gather()).candidates) == 1
    await ours.aclose()


async def test_a_peer_that_never_comes_is_given_up_and_leaves_nothing():
    ours = peer(PeerSettings(HOME, connect_seconds=0.05))
    await ours.gather()
    with pytest.raises(PeerFailed, match="ICE took too long"), anyio.fail_after(PATIENCE_S):
        await ours.connect()
    assert not ours.open
    ours.say("nobody hears this")
    await ours.aclose()
    await ours.aclose()
    assert ours._ice.state == "closed"


async def test_a_restart_has_new_credentials_and_anything_else_is_refused():
    ours = peer(PeerSettings(HOME, connect_seconds=0.05))
    first = await ours.gather()
    same = await ours.renew(CHOICE)
    assert (same.ufrag, same.version) == (first.ufrag, 2)
    await ours.reconnect()
    restarted = replace(CHOICE, ufrag="other", password="0123456789abcdef01234567")
    assert (await ours.renew(restarted)).ufrag != first.ufrag
    again = await ours.renew(replace(restarted, ufrag="third"))
    assert again.version == 4
    with pytest.raises(PeerFailed, match="restart"):
        await ours.reconnect()
    for changed in (
        replace(CHOICE, fingerprints=(Fingerprint("sha-256", "00"),)),
        replace(CHOICE, data=None),
        replace(CHOICE, audio=None),
    ):
        with pytest.raises(ProtocolError, match="new call"):
            await ours.renew(changed)
    await ours.aclose()


def made_by(ours, monkeypatch):
    """Every connection that a peer makes from now on."""
    made = []
    make = ours._make_ice

    def remember(choice):
        made.append(make(choice))
        return made[-1]

    monkeypatch.setattr(ours, "_make_ice", remember)
    return made


async def test_a_storm_of_offers_is_answered_in_turn_and_leaves_no_socket(monkeypatch):
    ours = peer(PeerSettings(HOME, connect_seconds=0.05))
    await ours.gather()
    made = made_by(ours, monkeypatch)
    told = []

    async def offer(number):
        try:
            told.append((await ours.renew(replace(CHOICE, ufrag=f"other{number}"))).version)
        except ProtocolError as error:
            told.append(error.code)

    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(offer, number)
    answered = [one for one in told if isinstance(one, int)]
    assert len(answered) == MOST_OFFERS + 1 == len(made)
    assert told.count("rate_limit_exceeded") == 30 - len(answered)
    # Of each but the last, nothing is left.
    assert [bool(ice._connection._protocols) for ice in made] == [False] * MOST_OFFERS + [True]
    await ours.aclose()
    assert not any(ice._connection._protocols for ice in made)


async def test_an_offer_at_the_end_of_a_call_leaves_no_socket(monkeypatch):
    ours = peer()
    await ours.gather()
    made = made_by(ours, monkeypatch)

    async def offer(number):
        with suppress(ProtocolError):
            await ours.renew(replace(CHOICE, ufrag=f"other{number}"))

    async with anyio.create_task_group() as tasks:
        for number in range(3):
            tasks.start_soon(offer, number)
        while not made:
            await anyio.lowlevel.checkpoint()
        await ours.aclose()
    assert not any(ice._connection._protocols for ice in (ours._ice, *made))
    with pytest.raises(ProtocolError, match="over"):
        await ours.renew(replace(CHOICE, ufrag="late"))


async def test_an_offer_for_which_there_is_no_port_changes_nothing(monkeypatch):
    ours = peer()
    first = await ours.gather()
    other = replace(CHOICE, ufrag="other")

    async def full(self, addresses):
        raise NoPortFree("full")

    with monkeypatch.context() as patched:
        patched.setattr(IceAgent, "_open", full)
        with pytest.raises(NoPortFree):
            await ours.renew(other)
    assert (await ours.renew(CHOICE)).ufrag == first.ufrag
    assert (await ours.renew(other)).ufrag != first.ufrag
    await ours.aclose()


@pytest.fixture
def loopback(monkeypatch):
    monkeypatch.setattr("aioice.ice.get_host_addresses", lambda use_ipv4, use_ipv6: ["127.0.0.1"])


async def until(condition):
    with anyio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - packets come over real sockets
            await anyio.sleep(0.005)


async def test_an_ice_restart_moves_the_sound_of_both_sides_and_closes_the_old_sockets(loopback):
    remote = RemotePeer()
    choice = await remote.offer()
    ours = peer(choice=choice)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ours._media._pacer.run)
        local = await ours.gather()
        async with anyio.create_task_group() as connecting:
            connecting.start_soon(ours.connect)
            connecting.start_soon(remote.connect, local)
        remote.send(b"\x48")
        ours.play(bytes(960))
        await until(lambda: remote.heard and "peer_heard" in ours._listener.told)

        ice = remote._make_ice()
        renewed = await ours.renew(await remote.offer(ice))
        assert renewed.ufrag != local.ufrag
        before = ours._ice
        async with anyio.create_task_group() as connecting:
            connecting.start_soon(ours.reconnect)
            connecting.start_soon(remote.move, renewed, ice)
        assert ours._listener.told[-1] == "peer_back"
        assert before.state == "closed" and not before._connection._protocols
        remote.heard.clear()
        ours._listener.told.clear()
        remote.send(b"\x48")
        ours.play(bytes(960))
        await until(lambda: remote.heard and "peer_heard" in ours._listener.told)
        # DTLS goes the new way too: its farewell arrives.
        await remote.close()
        await until(lambda: "peer_gone" in ours._listener.told)
        await ours.aclose()
        tasks.cancel_scope.cancel()


async def test_a_handshake_that_never_ends_is_given_up_and_leaves_nothing(loopback):
    async def fails_within(seconds):
        remote = RemotePeer()
        ours = peer(PeerSettings(HOME, connect_seconds=seconds), await remote.offer())
        local = await ours.gather()
        async with anyio.create_task_group() as tasks:
            # ICE comes about; nobody answers to DTLS.
            tasks.start_soon(remote.reach, local)
            with pytest.raises(PeerFailed) as raised:
                await ours.connect()
            tasks.cancel_scope.cancel()
        await ours.aclose()
        assert ours._ice.state == "closed" and not ours._ice._connection._protocols
        await remote.close()
        return str(raised.value)

    # ICE takes its time where others use the machine.
    for seconds in (0.5, 5.0, 30.0):
        failure = await fails_within(seconds)
        if failure != "ICE took too long":
            break
    assert failure == "DTLS took too long"


async def test_a_certificate_of_somebody_else_is_no_connection(loopback):
    remote, other = RemotePeer(), RemotePeer()
    theirs = await other.offer()
    ours = peer(choice=replace(await remote.offer(), fingerprints=theirs.fingerprints))
    local = await ours.gather()
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(remote.connect, local)
            with pytest.raises(PeerFailed, match="DTLS failed"):
                await ours.connect()
    await ours.aclose()
    await remote.close()
    await other.close()
