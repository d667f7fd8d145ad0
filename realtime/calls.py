"""All WebRTC calls of a process: how they begin, who may find them again, how they end.

Each call has one task, which owns its connection and its session's transport. A call that raises
ends alone.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import anyio
import anyio.abc

from duologue.realtime.channel_events import RtcLimits
from duologue.realtime.pacer import Pacer
from duologue.realtime.peer_listener import PeerListener
from duologue.realtime.reception_totals import ReceptionTotals
from duologue.realtime.rtc_peer import Certificates, PeerFailed, PeerSettings, RtcPeer
from duologue.realtime.rtc_transport import RtcTransport
from duologue.realtime.sdp_answer import Choice, choose, write_answer
from duologue.realtime.sdp_offer import Offer, parse_offer
from duologue.realtime.server_wire import Encoder
from duologue.sessions.registry import SessionRegistry, new_id
from duologue.sessions.runner import Conversation
from duologue.sessions.session_config import SessionConfig

logger = logging.getLogger(__name__)

HUNG_UP: Final = "the call was hung up"


@dataclass(slots=True)
class Call:
    """A call that is on, from its answer to its end."""

    id: str
    conversation: Conversation
    transport: RtcTransport
    peer: RtcPeer
    over: anyio.Event

    def fail(self) -> None:
        self.conversation.close(1011, "the session failed")


class Calls:
    """Enter it to run; leaving it ends every call."""

    def __init__(
        self,
        registry: SessionRegistry,
        settings: PeerSettings,
        limits: RtcLimits | None = None,
        name: Callable[[str], str] = new_id,
    ) -> None:
        """``name`` makes the calls' ids, from their prefix."""
        self._registry = registry
        self._name = name
        self._settings = settings
        self._limits = limits or RtcLimits()
        self._certificates = Certificates()
        self._calls: dict[str, Call] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._threads = anyio.CapacityLimiter(max(1, (os.cpu_count() or 1) // 2))
        self.pacer = Pacer()
        self.reception = ReceptionTotals()

    @property
    def active(self) -> int:
        return len(self._calls)

    async def __aenter__(self) -> "Calls":
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self.pacer.run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        try:
            return await self._tasks.__aexit__(kind, error, trace)
        finally:
            if self._settings.ice.shared is not None:
                self._settings.ice.shared.close()

    def peer(self, choice: Choice, listener: PeerListener) -> RtcPeer:
        """A connection for an offer; whoever asks for it takes it down."""
        return RtcPeer(
            choice,
            self._settings,
            self._certificates,
            self.pacer,
            listener,
            self._threads,
            self.reception,
        )

    def find(self, call_id: str) -> Call | None:
        return self._calls.get(call_id)

    @property
    def sees(self) -> bool:
        """Whether somebody looks at a caller's camera."""
        return self._registry.sees and self._settings.camera.rate > 0

    def _choose(self, offer: Offer) -> Choice:
        return choose(offer, sees=self.sees, shows=self._registry.shows)

    async def accept(self, sdp: str, config: SessionConfig, now_epoch: int) -> tuple[Call, str]:
        """Answer an offer: the call, which connects from now on by itself, and the answer's SDP.

        ``now_epoch``: seconds since the Unix epoch. Raises ProtocolError for an offer that can't
        be answered, what ``SessionRegistry.open`` raises, and OSError when there is no port.
        """
        offer = parse_offer(sdp)
        choice = self._choose(offer)
        plays_out = choice.audio is not None and choice.audio.sends
        conversation = await self._registry.open(config, plays_out=plays_out)
        try:
            return await self._answer(offer, choice, conversation, config, now_epoch)
        except BaseException:
            conversation.close(1011, "the call could not be answered")
            raise

    async def _answer(
        self,
        offer: Offer,
        choice: Choice,
        conversation: Conversation,
        config: SessionConfig,
        now_epoch: int,
    ) -> tuple[Call, str]:
        assert self._tasks is not None
        transport = RtcTransport(
            Encoder(conversation.id, now_epoch + round(conversation.expires_in)),
            config,
            self._limits,
            conversation.hear,
            conversation.report,
            conversation.see,
            plays_out=choice.audio is not None and choice.audio.sends,
        )
        peer = self.peer(choice, transport)
        try:
            answer = write_answer(offer, choice, await peer.gather())
        except BaseException:
            await peer.aclose()
            raise
        call = Call(self._name("rtc"), conversation, transport, peer, anyio.Event())
        self._calls[call.id] = call
        self._tasks.start_soon(self._hold, call)
        return call, answer

    async def _hold(self, call: Call) -> None:
        """A call from its answer to its end."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call.transport.connect, call.peer)
                await call.conversation.attach(call.transport)
                tasks.cancel_scope.cancel()
        except Exception:
            logger.exception("call %s failed", call.id)
            call.fail()
        finally:
            del self._calls[call.id]
            with anyio.CancelScope(shield=True):
                await call.peer.aclose()
            call.over.set()

    async def renew(self, call: Call, sdp: str) -> str:
        """Answer a later offer of a call: an ICE restart, or one that changes nothing.

        Raises ProtocolError for any other, and OSError when there is no port.
        """
        assert self._tasks is not None
        offer = parse_offer(sdp)
        choice = self._choose(offer)
        answer = write_answer(offer, choice, await call.peer.renew(choice))
        self._tasks.start_soon(reconnect, call.id, call.peer, call.fail)
        return answer

    async def hang_up(self, call: Call) -> None:
        """End a call, and wait for its end within a bound."""
        call.conversation.close(1000, HUNG_UP)
        with anyio.move_on_after(2 * self._settings.farewell_seconds):
            await call.over.wait()


async def reconnect(call_id: str, peer: RtcPeer, fail: Callable[[], None]) -> None:
    """Go over to the way that a call's later offer has; ``fail`` ends its session."""
    try:
        await peer.reconnect()
    except PeerFailed as error:
        # The way that there was may still do; else the session is let go of in its time.
        logger.info("call %s: %s", call_id, error)
    except Exception:
        logger.exception("call %s failed", call_id)
        fail()
