"""The other end of a WebRTC call: ICE, DTLS, the data channel, sound and pictures.

aiortc's transports under our own answer to an offer. Nothing here waits for ever: connecting and
going have their deadlines. What happens is told to a listener
(:mod:`duologue.realtime.peer_listener`), on the event loop.
"""

import logging
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import anyio
from aiortc.exceptions import InvalidStateError
from aiortc.rtcdatachannel import RTCDataChannel
from aiortc.rtcdtlstransport import RTCCertificate, RTCDtlsFingerprint, RTCDtlsParameters
from aiortc.rtcicetransport import RTCIceCandidate, RTCIceParameters, RTCIceTransport
from aiortc.rtcsctptransport import RTCSctpCapabilities
from aiortc.sdp import candidate_to_sdp

from duologue.realtime.ice_agent import IceGatherer, IceSettings
from duologue.realtime.pacer import Pacer
from duologue.realtime.peer_listener import PeerListener
from duologue.realtime.peer_media import PeerMedia
from duologue.realtime.reception_totals import ReceptionTotals
from duologue.realtime.rtc_media import MediaTransport
from duologue.realtime.sctp_association import SctpAssociation
from duologue.realtime.sdp_answer import Choice, LocalSide
from duologue.realtime.sdp_offer import invalid_sdp
from duologue.realtime.video_receiver import CameraSettings
from duologue.realtime.video_sender import Picture, ScreenSettings
from duologue.sessions.errors import ProtocolError

logger = logging.getLogger(__name__)

CHANNEL: Final = "oai-events"
"""The label of the data channel that carries events."""
MOST_OFFERS: Final = 8
"""Later offers of a call that wait while one is answered; one more is refused."""
_RENEW_BEFORE: Final = timedelta(days=15)


class PeerFailed(Exception):
    """The connection did not come about; the message says at which step."""


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """Seconds for the connection to come about, and for it to be taken down."""

    ice: IceSettings = field(default_factory=IceSettings)
    connect_seconds: float = 20.0
    farewell_seconds: float = 2.0
    camera: CameraSettings = field(default_factory=CameraSettings)
    screen: ScreenSettings = field(default_factory=ScreenSettings)


class Certificates:
    """The process's certificate for DTLS, renewed before it expires."""

    def __init__(self) -> None:
        self._current = RTCCertificate.generateCertificate()

    def current(self, now: datetime) -> RTCCertificate:
        if self._current.expires - now < _RENEW_BEFORE:
            self._current = RTCCertificate.generateCertificate()
        return self._current


class RtcPeer:
    """One call's connection: :meth:`gather`, then :meth:`connect`, at last :meth:`aclose`."""

    def __init__(
        self,
        choice: Choice,
        settings: PeerSettings,
        certificates: Certificates,
        pacer: Pacer,
        listener: PeerListener,
        video_threads: anyio.CapacityLimiter | None = None,
        totals: ReceptionTotals | None = None,
    ) -> None:
        """``video_threads`` bounds the work on pictures; all peers of a process share it, and
        ``totals`` of what they hear."""
        self._choice = choice
        self._settings = settings
        self._listener = listener
        self._ice = self._make_ice(choice)
        self._next_ice: RTCIceTransport | None = None
        self._renewal = anyio.Lock()
        self._version = 0
        certificate = certificates.current(datetime.now(UTC))
        self._dtls = MediaTransport(self._ice, [certificate])
        self._dtls._set_role(choice.role)
        self._dtls.on("statechange", self._follow_dtls)
        self._media = PeerMedia(
            self._dtls,
            choice,
            pacer,
            listener,
            camera=settings.camera,
            screen=settings.screen,
            threads=video_threads or anyio.CapacityLimiter(1),
            totals=totals,
        )
        self._origin = secrets.randbits(62)
        self._sctp: SctpAssociation | None = None
        self._channel: RTCDataChannel | None = None
        self._closing = False

    def _make_ice(self, choice: Choice) -> RTCIceTransport:
        gatherer = IceGatherer(self._settings.ice, controlling=choice.ice_lite)
        gatherer.agent.on_lost = self._listener.peer_lost
        return RTCIceTransport(gatherer)

    # -- coming about -----------------------------------------------------------------------

    async def gather(self) -> LocalSide:
        """What the answer says of our side. Raises OSError when there is no port for it."""
        return await self._side(self._ice)

    async def _side(self, ice: RTCIceTransport) -> LocalSide:
        await ice.iceGatherer.gather()
        parameters = ice.iceGatherer.getLocalParameters()
        candidates = ice.iceGatherer.getLocalCandidates()
        public = self._settings.ice.public_address
        if public is not None:
            candidates += [
                RTCIceCandidate(
                    component=1,
                    foundation=f"{candidate.foundation}p",
                    ip=public,
                    port=candidate.port,
                    priority=candidate.priority - 1,
                    protocol="udp",
                    type="srflx",
                    relatedAddress=candidate.ip,
                    relatedPort=candidate.port,
                )
                for candidate in candidates
                if candidate.type == "host" and (":" in candidate.ip) == (":" in public)
            ]
        fingerprint = next(
            entry.value
            for entry in self._dtls.getLocalParameters().fingerprints
            if entry.algorithm == "sha-256"
        )
        self._version += 1
        return LocalSide(
            ufrag=parameters.usernameFragment or "",
            password=parameters.password or "",
            fingerprint=fingerprint,
            candidates=[candidate_to_sdp(candidate) for candidate in candidates],
            ssrc=self._media.ssrc,
            cname=self._media.cname,
            origin=self._origin,
            version=self._version,
            video_ssrc=self._media.video_ssrc,
        )

    async def connect(self) -> None:
        """Until media and the data channel can flow. Raises PeerFailed, in time."""
        choice = self._choice
        step = "ICE"
        try:
            with anyio.fail_after(self._settings.connect_seconds):
                await self._start_ice(self._ice, choice)
                step = "DTLS"
                fingerprints = [
                    RTCDtlsFingerprint(entry.algorithm, entry.value)
                    for entry in choice.fingerprints
                ]
                await self._dtls.start(RTCDtlsParameters(fingerprints))
                if self._dtls.state != "connected":
                    raise PeerFailed("DTLS failed")
                await self._start_channels()
        except TimeoutError:
            raise PeerFailed(f"{step} took too long") from None
        except (ConnectionError, InvalidStateError) as error:
            raise PeerFailed(f"{step}: {error}") from None

    async def work(self) -> None:
        """What a connection does in tasks of its own, until cancelled; :meth:`connect` first."""
        await self._media.run()

    @staticmethod
    async def _start_ice(ice: RTCIceTransport, choice: Choice) -> None:
        for candidate in choice.candidates:
            await ice.addRemoteCandidate(
                RTCIceCandidate(
                    component=1,
                    foundation=candidate.foundation,
                    ip=candidate.ip,
                    port=candidate.port,
                    priority=candidate.priority,
                    protocol="udp",
                    type=candidate.type,
                )
            )
        await ice.start(RTCIceParameters(choice.ufrag, choice.password, choice.ice_lite))
        if ice.state != "completed":
            raise PeerFailed("ICE failed")

    # -- another way ------------------------------------------------------------------------

    async def renew(self, choice: Choice) -> LocalSide:
        """Our side for a later offer of the same peer; :meth:`reconnect` follows.

        New credentials are an ICE restart (RFC 8445 section 9); without, all stays as it is.
        Raises ProtocolError for an offer that changes more than that, or when too many wait for
        theirs, and OSError.
        """
        if self._renewal.statistics().tasks_waiting >= MOST_OFFERS:
            message = "Too many offers at once: wait for an answer."
            raise ProtocolError("rate_limit_exceeded", message)
        async with self._renewal:
            return await self._renew(choice)

    async def _renew(self, choice: Choice) -> LocalSide:
        if self._closing:
            raise invalid_sdp("The call is over.")
        before = self._choice
        same = (
            choice.fingerprints == before.fingerprints
            and _place(choice) == _place(before)
            and (None in (choice.video, before.video) or _video(choice) == _video(before))
            and choice.ice_lite == before.ice_lite
        )
        if not same:
            raise invalid_sdp("A later offer may restart ICE; for anything else, make a new call.")
        if (choice.ufrag, choice.password) == (before.ufrag, before.password):
            return await self._side(self._ice)
        if self._next_ice is not None:
            await _stop(self._next_ice)
            self._next_ice = None
        ice = self._make_ice(choice)
        try:
            side = await self._side(ice)
            if self._closing:
                raise invalid_sdp("The call is over.")
        except BaseException:
            with anyio.CancelScope(shield=True):
                await _stop(ice)
            raise
        self._next_ice, self._choice = ice, choice
        return side

    async def reconnect(self) -> None:
        """Go over to the way that was renewed, if it was. Raises PeerFailed, in time."""
        ice, choice = self._next_ice, self._choice
        if ice is None:
            return
        try:
            with anyio.fail_after(self._settings.connect_seconds):
                await self._start_ice(ice, choice)
        except (TimeoutError, ConnectionError, InvalidStateError, PeerFailed):
            raise PeerFailed("the ICE restart failed") from None
        if self._next_ice is not ice or self._closing:
            return
        before, self._ice, self._next_ice = self._ice, ice, None
        self._dtls.follow(ice)
        await before.stop()
        self._listener.peer_back()

    async def _start_channels(self) -> None:
        self._media.start()
        data = self._choice.data
        if data is not None:
            self._sctp = SctpAssociation(self._dtls, data.port)
            self._sctp.on("datachannel", self._take_channel)
            await self._sctp.start(RTCSctpCapabilities(data.max_message_size), data.port)

    def _take_channel(self, channel: RTCDataChannel) -> None:
        if channel.label != CHANNEL:
            channel.close()
            return
        self._channel = channel
        channel.on("message", self._listener.peer_said)
        self._listener.peer_opened()

    def _follow_dtls(self) -> None:
        if self._dtls.state in ("closed", "failed") and not self._closing:
            self._listener.peer_gone()

    # -- while it lasts ---------------------------------------------------------------------

    @property
    def has_channel(self) -> bool:
        """Whether the offer has a data channel, be it open or not."""
        return self._choice.data is not None

    @property
    def open(self) -> bool:
        """Whether the data channel can take messages."""
        return self._channel is not None and self._channel.readyState == "open"

    @property
    def largest_message(self) -> int:
        """Bytes that a message of ours may have; 0 for any number."""
        return self._choice.data.max_message_size if self._choice.data is not None else 0

    @property
    def waiting_bytes(self) -> int:
        """Given to the data channel and not sent."""
        return 0 if self._channel is None else self._channel.bufferedAmount

    def say(self, text: str) -> None:
        """Send a message, while :attr:`open`; it must not be larger than may be."""
        if self.open:
            assert self._channel is not None
            self._channel.send(text)

    def play(self, pcm: bytes) -> None:
        """Speech to be played after all that waits: mono int16 at 24 kHz."""
        self._media.play(pcm)

    def show(self, picture: Picture, due_ms: float | None) -> None:
        """Show it when so much of all that :meth:`play` was given has left; None: at once."""
        self._media.show(picture, due_ms)

    def flush(self) -> None:
        """Fade out and forget what waits, pictures as well."""
        self._media.flush()

    def duck(self) -> None:
        self._media.duck()

    def restore(self) -> None:
        self._media.restore()

    # -- going ------------------------------------------------------------------------------

    async def _say_all(self) -> None:
        """Until all messages have left the data channel."""
        if self._channel is not None and self.open and self.waiting_bytes:
            drained = anyio.Event()
            self._channel.once("bufferedamountlow", drained.set)
            await drained.wait()

    async def aclose(self) -> None:
        """Say what waits to be said, then take everything down, within a bound. Idempotent."""
        if self._closing:
            return
        self._closing = True
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(self._settings.farewell_seconds):
                await self._say_all()
            self._media.stop()
            with anyio.move_on_after(self._settings.farewell_seconds):
                if self._sctp is not None:
                    await self._sctp.stop()
                await self._dtls.stop()
            with anyio.move_on_after(self._settings.farewell_seconds):
                for ice in (self._ice, self._next_ice):
                    if ice is not None:
                        await _stop(ice)


async def _stop(ice: RTCIceTransport) -> None:
    """Leave no socket, whether it was started or only gathered."""
    await ice.stop()
    await ice._connection.close()


def _place(choice: Choice) -> tuple[object, ...]:
    """What a later offer must leave as it was."""
    audio, data = choice.audio, choice.data
    return (
        None if audio is None else (audio.index, audio.codec.payload_type, audio.red, audio.mid),
        None if data is None else (data.index, data.port, data.mid),
    )


def _video(choice: Choice) -> tuple[object, ...] | None:
    """As :func:`_place`, for a camera, which may also stop."""
    video = choice.video
    return None if video is None else (video.index, video.codec.payload_type, video.mid)
