"""The client's end of a call without a client: transports that can be held, moved and broken."""

import re
from pathlib import Path

import anyio
from aiortc import RTCCertificate, RTCIceGatherer, RTCIceTransport
from aiortc.rtcdtlstransport import RTCDtlsFingerprint, RTCDtlsParameters
from aiortc.rtcicetransport import RTCIceParameters
from aiortc.sdp import candidate_from_sdp

from duologue.codecs.rtp import RtpPacket, build_rtp
from duologue.realtime.rtc_media import MediaTransport
from duologue.realtime.sdp_answer import Choice, LocalSide, choose
from duologue.realtime.sdp_offer import parse_offer

OFFER = Path(__file__).parent.parent / "data" / "sdp" / "chrome-no-candidates-red.sdp"


class RemotePeer:
    """Offers in Chromium's words; has audio, and no data channel."""

    def __init__(self) -> None:
        self._certificate = RTCCertificate.generateCertificate()
        self.ice = self._make_ice()
        self.dtls = MediaTransport(self.ice, [self._certificate])
        self.dtls._set_role("server")
        self.heard: list[RtpPacket] = []
        self.dtls.listen([111], self.heard.append)
        self._sent = 0

    @staticmethod
    def _make_ice() -> RTCIceTransport:
        ice = RTCIceTransport(RTCIceGatherer(iceServers=[]))
        ice._connection.ice_controlling = True
        ice._role_set = True
        return ice

    async def offer(self, ice: RTCIceTransport | None = None) -> Choice:
        """What the server takes of this peer's offer, over another ICE transport if need be."""
        ice = ice or self.ice
        await ice.iceGatherer.gather()
        ours = ice.iceGatherer.getLocalParameters()
        print_ = next(
            entry.value
            for entry in self.dtls.getLocalParameters().fingerprints
            if entry.algorithm == "sha-256"
        )
        text = OFFER.read_text()
        for pattern, line in (
            (r"a=ice-ufrag:.*", f"a=ice-ufrag:{ours.usernameFragment}"),
            (r"a=ice-pwd:.*", f"a=ice-pwd:{ours.password}"),
            (r"a=fingerprint:.*", f"a=fingerprint:sha-256 {print_}"),
        ):
            text = re.sub(pattern, line, text)
        text = text.replace("m=application 9", "m=application 0")
        return choose(parse_offer(text))

    async def reach(self, local: LocalSide, ice: RTCIceTransport | None = None) -> None:
        """ICE with the server's side."""
        ice = ice or self.ice
        for line in local.candidates:
            candidate = candidate_from_sdp(line)
            candidate.sdpMLineIndex = 0
            await ice.addRemoteCandidate(candidate)
        await ice.addRemoteCandidate(None)
        await ice.start(RTCIceParameters(local.ufrag, local.password))

    async def connect(self, local: LocalSide) -> None:
        """ICE and DTLS with the server's side."""
        await self.reach(local)
        await self.dtls.start(RTCDtlsParameters([RTCDtlsFingerprint("sha-256", local.fingerprint)]))

    async def move(self, local: LocalSide, ice: RTCIceTransport) -> None:
        """Go over to another ICE transport; the old one's sockets are closed."""
        await self.reach(local, ice)
        before, self.ice = self.ice, ice
        self.dtls.follow(ice)
        await before.stop()

    def send(self, payload: bytes, ssrc: int = 7) -> None:
        self._sent += 1
        packet = RtpPacket(111, False, self._sent, self._sent * 960, ssrc, payload)
        assert self.dtls.send_media(build_rtp(packet))

    async def close(self) -> None:
        with anyio.CancelScope(shield=True):
            await self.dtls.stop()
            await self.ice.stop()
