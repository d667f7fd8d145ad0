"""All Live sessions of a process: how they begin, who may find them again, what is kept of them.

A session that was stored can be forked and its recording fetched for a while after its end. Enter
it to run; leaving it ends every call over WebRTC.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from types import TracebackType
from typing import Final

import anyio
import anyio.abc

from duologue.engines.duplex import BeginDuplex, DuplexStream
from duologue.engines.duplex_stream import DuplexPlaces, DuplexRefused, RemoteDuplex
from duologue.engines.engine import EngineLost, EngineSpec, EngineUnavailable
from duologue.engines.scribes import Scribes
from duologue.models.silero_vad import SileroVad
from duologue.realtime.calls import Calls, reconnect
from duologue.realtime.duplex_driver import LiveDuplex
from duologue.realtime.live_call import LiveCall, Past, history_of
from duologue.realtime.live_peer import LivePeer
from duologue.realtime.live_room import LiveLink, LiveRoom
from duologue.realtime.live_session_wire import Medium
from duologue.realtime.live_transport import LiveTransport
from duologue.realtime.live_wire import LiveDecoder, LiveEncoder
from duologue.realtime.rtc_peer import RtcPeer
from duologue.realtime.sdp_answer import choose, write_answer
from duologue.realtime.sdp_offer import parse_offer
from duologue.sessions.errors import CODES, ProtocolError
from duologue.sessions.live_cascade import CascadeVoice, cascade_config
from duologue.sessions.live_config import (
    DecisionsDelegation,
    LiveConfig,
    LiveFormat,
    ResponsesDelegation,
)
from duologue.sessions.live_duplex import DuplexVoice, duplex_pace
from duologue.sessions.live_microphone import WakeDetector
from duologue.sessions.live_recording import LiveRecording
from duologue.sessions.live_session import LiveSession
from duologue.sessions.live_voice import LivePace
from duologue.sessions.ports import Clock
from duologue.sessions.registry import (
    RETRY_AFTER,
    Draining,
    SessionRegistry,
    SessionsFull,
    new_id,
)
from duologue.sessions.session_config import AudioFormat, SessionConfig

logger = logging.getLogger(__name__)

MOST_KEPT: Final = 64
"""Sessions that are remembered after their end."""
MOST_RECORDINGS: Final = 8
"""Of those, with their sound."""
HEARD: Final = LiveFormat(AudioFormat.PCM, 16_000)
"""What comes from a call's receiver."""
FAREWELL_SECONDS: Final = 5.0


class LiveSessions:
    """``recording_seconds``: how much of a stored session's sound is kept; 0 for none."""

    def __init__(
        self,
        registry: SessionRegistry,
        calls: Calls,
        vad: SileroVad,
        clock: Clock,
        engine: DuplexPlaces,
        *,
        recording_seconds: float = 0.0,
        max_sessions: int = 64,
        max_duration: float = 3600.0,
        name: Callable[[str], str] = new_id,
        scribes: Scribes | None = None,
    ) -> None:
        """``engine`` is what the registry's sessions speak with in the end. ``max_sessions``, with
        Realtime's; ``max_duration`` in seconds. ``name`` makes the sessions' ids, from
        their prefix. ``scribes`` write down what is said to a frame-locked model.
        """
        self._registry = registry
        self._name = name
        self._engine = engine
        self._duplex = RemoteDuplex(engine)
        self._scribes = scribes
        self._most = max_sessions
        self._longest = max_duration
        self._peers = calls
        self._vad = vad
        self._clock = clock
        self._recording_seconds = recording_seconds
        self._calls: dict[str, LiveCall] = {}
        self._kept: OrderedDict[str, Past] = OrderedDict()
        self._recordings: OrderedDict[str, LiveRecording] = OrderedDict()
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> "LiveSessions":
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._tasks is not None
        self.close_all()
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, error, trace)

    # -- finding ----------------------------------------------------------------------------

    @property
    def active(self) -> int:
        return len(self._calls)

    @property
    def records(self) -> bool:
        return self._recording_seconds > 0

    def expires_in(self, call: LiveCall) -> float:
        """Seconds that a session may last from now on."""
        return max(0.0, call.room.session.expires_at - self._clock.now())

    def find(self, session_id: str) -> LiveCall | None:
        return self._calls.get(session_id)

    def past(self, session_id: str) -> Past | None:
        """Of a session that is on, or that was stored."""
        call = self._calls.get(session_id)
        return call.past() if call is not None else self._kept.get(session_id)

    def recording(self, session_id: str) -> LiveRecording | None:
        """Of a stored session, on or over."""
        call = self._calls.get(session_id)
        return call.room.recording if call is not None else self._recordings.get(session_id)

    # -- beginning and ending ---------------------------------------------------------------

    async def open(
        self,
        config: LiveConfig,
        link: LiveLink,
        decoder: LiveDecoder,
        base: SessionConfig,
        heard: LiveFormat,
        *,
        medium: Medium = "socket",
        past: Past | None = None,
        client_event_id: str | None = None,
    ) -> LiveCall:
        """A session that begins now; :meth:`hold` it, which says that it has started.

        ``decoder`` is its own client's, ``base`` the operator's defaults, ``heard`` the format of
        the sound that comes in, ``past`` that of the session which this one is a fork of. Raises
        what ``SessionRegistry.open`` raises.
        """
        if not config.voice:
            config = replace(config, voice=base.voice)
        spec = self._engine.spec
        if spec.duplex is not None:
            return self._enter(
                await self._open_duplex(
                    config, link, decoder, spec, heard, medium, past, client_event_id
                )
            )
        if past is not None:
            config = replace(config, history=past.history)
        core_config = cascade_config(config, base, spec.recognizer or spec.model)
        conversation = await self._registry.open(core_config, plays_out=True)
        now = self._clock.now()
        session = LiveSession(
            config,
            LivePace(),
            now,
            now + conversation.expires_in,
            new_id,
            WakeDetector(self._vad) if config.idle_timeout is not None else None,
            client_event_id,
        )
        room = self._room(session, link, heard)
        voice = CascadeVoice(session, base, self._clock.now, conversation.hear, conversation.report)
        transport = LiveTransport(room, voice)

        async def serve() -> None:
            await conversation.attach(transport)

        return self._enter(
            LiveCall(
                room.id,
                room,
                medium,
                decoder,
                serve,
                lambda: conversation.close(1011, "the session failed"),
                lambda: Past(session.config, history_of(conversation)),
                conversation.see,
            )
        )

    async def _open_duplex(
        self,
        config: LiveConfig,
        link: LiveLink,
        decoder: LiveDecoder,
        spec: EngineSpec,
        heard: LiveFormat,
        medium: Medium,
        past: Past | None,
        client_event_id: str | None,
    ) -> LiveCall:
        """As :meth:`open`, for a frame-locked model."""
        assert spec.duplex is not None
        if self._registry.draining:
            raise Draining("the server is restarting")
        others = self._registry.headcount.others
        if self._registry.active + self.active + others >= self._most:
            raise SessionsFull(RETRY_AFTER)
        stream = await self._stream(config, spec, past)
        now = self._clock.now()
        session = LiveSession(
            config,
            duplex_pace(spec.duplex),
            now,
            now + self._longest,
            new_id,
            WakeDetector(self._vad) if config.idle_timeout is not None else None,
            client_event_id,
        )
        room = self._room(session, link, heard)
        driver = LiveDuplex(room, stream, self._clock)
        listening = None
        if self._scribes is not None:
            listening = driver.write_down(self._scribes, self._vad)
        voice = DuplexVoice(session, spec.duplex, driver.tell, listening)
        session.voice = voice
        if isinstance(config.delegation, DecisionsDelegation) or config.triggers:
            message = "This model answers no questions: no decision will be made."
            room.note("decisions_unavailable", message)
        if isinstance(config.delegation, ResponsesDelegation):
            message = "This model hands nothing over: its delegation has no effect."
            room.note("delegation_unavailable", message)
        if config.history:
            room.note("input_left_out", "This model can't be told of an earlier conversation.")
        return LiveCall(
            room.id,
            room,
            medium,
            decoder,
            lambda: driver.serve(voice),
            lambda: room.close("connection_lost"),
            lambda: Past(session.config, fork=stream.fork),
            counted=True,
        )

    async def _stream(
        self, config: LiveConfig, spec: EngineSpec, past: Past | None
    ) -> DuplexStream:
        name = new_id("live")
        try:
            if past is not None and past.fork is not None:
                return await past.fork(name, None)
            voice = config.voice if config.voice in spec.voices else ""
            begin = BeginDuplex(session="", voice=voice, instructions=config.instructions)
            return await self._duplex.open(name, begin)
        except DuplexRefused as refused:
            code = refused.code if refused.code in CODES else "engine_error"
            raise ProtocolError(code, refused.message) from None
        except EngineLost:
            raise EngineUnavailable(RETRY_AFTER) from None

    def _room(self, session: LiveSession, link: LiveLink, heard: LiveFormat) -> LiveRoom:
        keeps = session.config.store and self.records
        recording = LiveRecording(self._recording_seconds) if keeps else None
        return LiveRoom(self._name("live"), session, link, heard, self._clock, recording)

    def _enter(self, call: LiveCall) -> LiveCall:
        self._calls[call.id] = call
        if call.counted:
            self._registry.headcount.enter()
        delegation = call.config.delegation
        if isinstance(delegation, ResponsesDelegation) and delegation.refused:
            kinds = ", ".join(sorted(set(delegation.refused)))
            call.room.note("tools_left_out", f"Nothing here runs these tools: {kinds}.")
        if call.config.channel is not None:
            message = "What may pass over the data channel is as the session was told."
            call.room.note("data_channel_permissions", message)
        return call

    async def hold(self, call: LiveCall) -> None:
        """A session from its beginning to its end."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call.room.run)
                await call.serve()
                tasks.cancel_scope.cancel()
        except Exception:
            logger.exception("live session %s failed", call.id)
            call.fail()
        finally:
            self._leave(call)
            with anyio.CancelScope(shield=True):
                await call.room.aclose(1011, "the session failed")
            call.over.set()

    def _drop(self, call: LiveCall) -> None:
        if self._calls.pop(call.id, None) is not None and call.counted:
            self._registry.headcount.leave()

    def _leave(self, call: LiveCall) -> None:
        self._drop(call)
        if not call.config.store:
            return
        past = call.past()
        if past.fork is None:
            self._kept[call.id] = past
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        if call.room.recording is not None:
            self._recordings[call.id] = call.room.recording
        while len(self._recordings) > MOST_RECORDINGS:
            self._recordings.popitem(last=False)

    def close_all(self) -> None:
        """The server stops: those that the registry does not know of are told so."""
        for call in list(self._calls.values()):
            call.room.close("connection_lost")

    async def hang_up(self, call: LiveCall) -> None:
        """End a session, and wait for its end within a bound."""
        call.room.close("close_requested")
        with anyio.move_on_after(FAREWELL_SECONDS):
            await call.over.wait()

    # -- over WebRTC ------------------------------------------------------------------------

    async def accept(
        self,
        sdp: str,
        config: LiveConfig,
        base: SessionConfig,
        now_epoch: int,
        past: Past | None = None,
    ) -> tuple[LiveCall, str]:
        """Answer an offer: the session, which goes on by itself, and the answer's SDP.

        ``now_epoch``: seconds since the Unix epoch. Raises as :meth:`open`, ProtocolError for an
        offer that can't be answered, and OSError when there is no port.
        """
        assert self._tasks is not None
        offer = parse_offer(sdp)
        choice = choose(offer, sees=self._peers.sees)
        encoder = LiveEncoder("channel", "media", config.channel)
        decoder = LiveDecoder("channel", config, rules=config.channel)
        link = LivePeer(encoder, decoder)
        peer = self._peers.peer(choice, link)
        try:
            answer = write_answer(offer, choice, await peer.gather())
            call = await self.open(config, link, decoder, base, HEARD, medium="media", past=past)
        except BaseException:
            await peer.aclose()
            raise
        decoder.config = call.config
        encoder.begin(call.id, now_epoch + round(self.expires_in(call)), HEARD)
        link.hear = call.room.hear
        link.see = call.see
        call.peer = peer
        self._tasks.start_soon(self._hold_peer, call, link, peer)
        return call, answer

    async def _hold_peer(self, call: LiveCall, link: LivePeer, peer: RtcPeer) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(link.connect, peer)
            tasks.start_soon(link.watch)
            await self.hold(call)
            tasks.cancel_scope.cancel()

    async def renew(self, call: LiveCall, sdp: str) -> str:
        """Answer a later offer of a session over WebRTC: an ICE restart, or the offer before.

        Raises ProtocolError for any other, and OSError when there is no port.
        """
        assert self._tasks is not None
        if call.peer is None:
            message = "The session is not over WebRTC: there is no connection to make anew."
            raise ProtocolError("invalid_event_for_transport", message)
        offer = parse_offer(sdp)
        choice = choose(offer, sees=self._peers.sees)
        answer = write_answer(offer, choice, await call.peer.renew(choice))
        self._tasks.start_soon(reconnect, call.id, call.peer, call.fail)
        return answer
