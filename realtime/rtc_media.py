"""Where media leaves and enters a WebRTC connection: DTLS-SRTP with a short way for audio.

aiortc takes each packet through a queue, a task and a handful of coroutines. Audio comes 50 times
a second and session, so its packets go from the socket's callback to the receiver, and from the
pacer's tick to the socket, without any of them. All else (DTLS, SCTP, RTCP, video) goes their way.
"""

import logging
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pylibsrtp
from aiortc.rtcdtlstransport import RTCCertificate, RTCDtlsTransport, RtpRouter, State
from aiortc.rtcicetransport import RTCIceTransport
from aiortc.rtp import (
    RTCP_PSFB_FIR,
    AnyRtcpPacket,
    RtcpPsfbPacket,
    RtpPacket as RouterPacket,
)

from duologue.codecs.media import MalformedDataError
from duologue.codecs.rtp import HEADER_BYTES, RtpPacket, parse_rtp

logger = logging.getLogger(__name__)

OPUS = "opus"
PCMU = "PCMU"
PCMA = "PCMA"

Listener = Callable[[RtpPacket], None]


@dataclass(frozen=True, slots=True)
class AudioCodec:
    """What was agreed on for one payload type of an audio section."""

    name: str
    """opus, PCMU or PCMA."""
    payload_type: int
    clock_rate: int
    channels: int = 1
    parameters: Mapping[str, str] = field(default_factory=dict)
    """The client's `fmtp`: what it likes to receive."""
    red_payload_type: int | None = None
    """Of redundant audio (RFC 2198) whose blocks are this codec's."""

    @property
    def fec(self) -> bool:
        """Whether the client makes use of in-band redundancy (RFC 7587, section 6.1)."""
        return self.parameters.get("useinbandfec", "0") == "1"

    @property
    def dtx(self) -> bool:
        """Whether the client likes silence not to be sent. Any Opus decoder copes with that."""
        return self.parameters.get("usedtx", "0") == "1"


class MediaTransport(RTCDtlsTransport):
    """aiortc's DTLS transport over an ICE transport, with listeners by payload type."""

    def __init__(self, transport: RTCIceTransport, certificates: list[RTCCertificate]) -> None:
        super().__init__(transport, certificates)
        self._rtp_router = _Router()
        self._listeners: dict[int, Listener] = {}
        self.refused = 0
        """Audio packets that failed authentication, were replayed or malformed."""
        self.follow(transport)

    def follow(self, transport: RTCIceTransport) -> None:
        """Send and receive over this ICE transport from now on (an ICE restart). The one before
        may be stopped once this has returned."""
        before, self._transport = self._transport, transport
        connection = transport._connection
        through = connection.data_received

        def received(data: bytes, component: int) -> None:
            if not self._deliver(data):
                through(data, component)

        connection.data_received = received  # type: ignore[method-assign]
        if before is not transport:
            # Whoever reads waits for the old way: a packet that means nothing sends it to the new.
            before._connection.data_received(b"\0", 1)

    @property
    def ready(self) -> bool:
        """Whether media can leave now."""
        return self._state is State.CONNECTED and bool(self._transport._connection._nominated)

    def listen(self, payload_types: Sequence[int], listener: Listener) -> None:
        """Give packets of these payload types to `listener`, decrypted, from the socket's callback.

        It must be quick and must not raise.
        """
        for payload_type in payload_types:
            self._listeners[payload_type] = listener

    def unlisten(self, listener: Listener) -> None:
        """Idempotent."""
        self._listeners = {
            payload_type: other
            for payload_type, other in self._listeners.items()
            if other != listener
        }

    def send_media(self, data: bytes) -> bool:
        """Encrypt and send an RTP packet now; False, and nothing is sent, unless `ready`."""
        pair = self._transport._connection._nominated.get(1)
        if pair is None or self._state is not State.CONNECTED:
            return False
        pair.protocol.transport.sendto(self._tx_srtp.protect(data), pair.remote_addr)
        return True

    def send_report(self, data: bytes) -> bool:
        """As `send_media`, for a compound RTCP packet."""
        pair = self._transport._connection._nominated.get(1)
        if pair is None or self._state is not State.CONNECTED:
            return False
        pair.protocol.transport.sendto(self._tx_srtp.protect_rtcp(data), pair.remote_addr)
        return True

    def route_sender(self, sender: "ReportTarget", ssrc: int) -> None:
        """Give reports about this source to `sender`."""
        self._rtp_router.senders[ssrc] = sender

    def unroute_sender(self, sender: "ReportTarget") -> None:
        self._rtp_router.unregister_sender(sender)

    def route_source(self, receiver: "MediaTarget", ssrc: int, before: int | None) -> None:
        """Give reports by this source to `receiver`, which listened to `before` until now."""
        table = self._rtp_router.ssrc_table
        if before is not None and table.get(before) is receiver:
            del table[before]
        table[ssrc] = receiver
        self._rtp_router.receivers.add(receiver)

    def unroute_source(self, receiver: "MediaTarget") -> None:
        self._rtp_router.unregister_receiver(receiver)

    def _deliver(self, data: bytes) -> bool:
        """Whether this was audio for a listener, which now has it."""
        if len(data) < HEADER_BYTES or data[0] >> 6 != 2 or 192 <= data[1] <= 223:
            return False
        listener = self._listeners.get(data[1] & 0x7F)
        if listener is None or self._rx_srtp is None:
            return False
        try:
            packet = parse_rtp(self._rx_srtp.unprotect(data))
        except (pylibsrtp.Error, MalformedDataError):
            self.refused += 1
            return True
        try:
            listener(packet)
        except Exception:
            # The outermost line of a packet's way in.
            logger.exception("an audio receiver failed")
            self.unlisten(listener)
        return True


class _Router(RtpRouter):
    """aiortc's, which does not know requests for a key picture that name their source in the way
    of RFC 5104, section 4.3.1.1."""

    def route_rtcp(self, packet: AnyRtcpPacket) -> set[Any]:
        recipients: set[Any] = super().route_rtcp(packet)
        if isinstance(packet, RtcpPsfbPacket) and packet.fmt == RTCP_PSFB_FIR:
            for (ssrc,) in struct.iter_unpack("!L4x", packet.fci[: len(packet.fci) // 8 * 8]):
                if ssrc in self.senders:
                    recipients.add(self.senders[ssrc])
        return recipients


class ReportTarget:
    """A sender as aiortc's router knows it: reports about it arrive."""

    def __init__(self, ssrc: int) -> None:
        self._ssrc = ssrc

    def reported(self, packet: AnyRtcpPacket) -> None:
        """A report has come in."""

    async def _handle_rtcp_packet(self, packet: AnyRtcpPacket) -> None:
        self.reported(packet)


class MediaTarget:
    """A receiver as aiortc's router knows it. Its packets come by `MediaTransport.listen`."""

    def reported(self, packet: AnyRtcpPacket) -> None:
        """A report has come in."""

    def disconnected(self) -> None:
        """The connection is gone."""

    def _handle_disconnect(self) -> None:
        self.disconnected()

    async def _handle_rtcp_packet(self, packet: AnyRtcpPacket) -> None:
        self.reported(packet)

    async def _handle_rtp_packet(self, packet: RouterPacket, arrival_time_ms: int) -> None:
        return
