"""Two ends of a WebRTC media connection that tell each other of themselves in JSON, without SDP."""

from collections.abc import Callable

import anyio
from aiortc import RTCCertificate, RTCIceGatherer, RTCIceTransport
from aiortc.rtcdtlstransport import RTCDtlsFingerprint, RTCDtlsParameters, RTCDtlsTransport
from aiortc.rtcicetransport import RTCIceCandidate, RTCIceParameters
from aiortc.sdp import candidate_from_sdp, candidate_to_sdp

from load_tests.report import Json

HOST = "127.0.0.1"
PAYLOAD_TYPE = 111
FRAME_SECONDS = 0.02
FRAME_TICKS = 960

Description = dict[str, Json]
MakeDtls = Callable[[RTCIceTransport, list[RTCCertificate]], RTCDtlsTransport]


def stay_on_loopback() -> None:
    """Have ICE use the loopback interface alone, for this process."""
    import aioice.ice

    aioice.ice.get_host_addresses = lambda use_ipv4, use_ipv6: [HOST] if use_ipv4 else []


class MediaPeer:
    """One end. `gather`, exchange `description`s, `connect`."""

    def __init__(self, make_dtls: MakeDtls, certificate: RTCCertificate, leads: bool) -> None:
        self._gatherer = RTCIceGatherer(iceServers=[])
        self.ice = RTCIceTransport(self._gatherer)
        self.ice._connection.ice_controlling = leads
        self.ice._role_set = True
        self.dtls = make_dtls(self.ice, [certificate])

    async def gather(self) -> Description:
        await self._gatherer.gather()
        parameters = self._gatherer.getLocalParameters()
        candidates: list[Json] = [
            candidate_to_sdp(candidate) for candidate in self._gatherer.getLocalCandidates()
        ]
        fingerprints: list[Json] = [
            [fingerprint.algorithm, fingerprint.value]
            for fingerprint in self.dtls.getLocalParameters().fingerprints
            if fingerprint.algorithm == "sha-256"
        ]
        return {
            "user": parameters.usernameFragment,
            "password": parameters.password,
            "candidates": candidates,
            "fingerprints": fingerprints,
        }

    async def connect(self, other: Description) -> None:
        """Raises ConnectionError if there is no connection."""
        candidates, fingerprints = other["candidates"], other["fingerprints"]
        assert isinstance(candidates, list) and isinstance(fingerprints, list)
        for line in candidates:
            candidate: RTCIceCandidate = candidate_from_sdp(str(line))
            candidate.sdpMLineIndex = 0
            await self.ice.addRemoteCandidate(candidate)
        await self.ice.addRemoteCandidate(None)
        prints = [
            RTCDtlsFingerprint(str(entry[0]), str(entry[1]))
            for entry in fingerprints
            if isinstance(entry, list)
        ]
        await self.ice.start(RTCIceParameters(str(other["user"]), str(other["password"])))
        await self.dtls.start(RTCDtlsParameters(prints))
        if self.dtls.state != "connected":
            raise ConnectionError(f"DTLS is {self.dtls.state}")

    async def close(self) -> None:
        with anyio.move_on_after(2):
            await self.dtls.stop()
            await self.ice.stop()
