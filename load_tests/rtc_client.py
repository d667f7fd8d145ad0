"""A client over WebRTC: stock aiortc, its microphone and its loudspeaker.

The server plays out and truncates by itself. What this client measures it measures on what its
loudspeaker gives, and on the packets that go and come.
"""

import fractions
import logging
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import aioice.ice
import anyio
import av
import httpx
import numpy as np
from aiortc import MediaStreamTrack, RTCConfiguration, RTCPeerConnection, RTCSessionDescription
from aiortc.mediastreams import MediaStreamError
from aiortc.rtp import RtpPacket

from duologue.codecs.opus import OpusDecoder, OpusEncoder, OpusSettings
from load_tests.client import Answer, Client, ClientError, cause
from load_tests.clock import now
from load_tests.impairment import Impairment
from load_tests.loudspeaker import RATE, SILENT_BELOW, Loudspeaker, fade_seconds
from load_tests.recordings import Samples
from load_tests.relay import open_relay, without_candidates

Coding = Literal["stock", "browser"]
"""How the microphone is coded: as aiortc does, 96 kb/s in stereo and nothing against loss, or as
browsers do, with redundancy in band and mono at 32 kb/s."""

FRAME = RATE // 50
HUSH_SECONDS = 0.35
"""Silence for this long ends what was being heard. An answer follows a turn's patience later."""
STOP_WITHIN = 3.0
KEPT_PACKETS = 500
"""Ten seconds of packets that came in are remembered."""
BROWSER = OpusSettings(bit_rate=32_000, complexity=5, loss_percent=10, dtx=False)
"""The microphone of a browser that has been told of some loss."""
_TIME_BASE = fractions.Fraction(1, RATE)


@dataclass(slots=True)
class Wire:
    """What went over the wire: when microphone packets left and the server's came."""

    sent: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_PACKETS))
    came: deque[tuple[float, int, bytes]] = field(
        default_factory=lambda: deque(maxlen=KEPT_PACKETS)
    )
    """Arrival, sequence number and payload."""

    def last_speech(self) -> float | None:
        """When the last packet came that has sound in it."""
        decoder = OpusDecoder(RATE)
        last = None
        for arrival, _, payload in sorted(self.came, key=lambda packet: packet[1]):
            samples = decoder.decode(payload)
            if np.abs(samples.astype(np.int32)).max(initial=0) >= SILENT_BELOW:
                last = arrival
        return last


class Track(MediaStreamTrack):  # type: ignore[misc]
    """The microphone as aiortc wants it."""

    kind = "audio"

    def __init__(self, coding: Coding) -> None:
        super().__init__()
        self._give, self._take = anyio.create_memory_object_stream[Samples](50)
        self._encoder = OpusEncoder(RATE, BROWSER) if coding == "browser" else None
        self._frames = 0
        self.dropped = 0

    def give(self, samples: Samples) -> None:
        """20 ms. While nobody takes them, they are dropped beyond a second."""
        try:
            self._give.send_nowait(samples)
        except anyio.WouldBlock:
            self.dropped += 1

    def close(self) -> None:
        self._give.close()
        self._take.close()

    async def recv(self) -> av.AudioFrame | av.Packet:
        try:
            samples = await self._take.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise MediaStreamError from None
        pts = self._frames * FRAME
        self._frames += 1
        if self._encoder is not None:
            packet = av.Packet(self._encoder.encode(samples))
            packet.pts, packet.time_base = pts, _TIME_BASE
            return packet
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, pts, _TIME_BASE
        return frame


class RtcClient(Client):
    """One call."""

    rate = RATE

    def __init__(self, opened: float, coding: Coding, keep: bool) -> None:
        super().__init__(opened)
        self.loudspeaker = Loudspeaker()
        self.wire = Wire()
        self.call_id = ""
        self.fades: list[float] = []
        """Seconds that interrupted answers took to fade."""
        self.shares: list[float] = []
        """Seconds from the arrival of the first voiced packet at the path to the server to the
        last packet of speech out of it."""
        self._keep = keep
        self._track = Track(coding)
        self._connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._channel: Any = None
        self._speaks: tuple[Answer, float] | None = None

    # -- the connection ---------------------------------------------------------------------

    async def offer(self) -> str:
        self._connection.addTrack(self._track)
        self._channel = self._connection.createDataChannel("oai-events")
        self._channel.on("message", lambda text: self.take(text, now()))
        self._channel.on("close", self.end)
        await self._connection.setLocalDescription(await self._connection.createOffer())
        self._tap()
        return str(self._connection.localDescription.sdp)

    async def answer(self, sdp: str) -> None:
        await self._connection.setRemoteDescription(RTCSessionDescription(sdp, "answer"))

    def _tap(self) -> None:
        """Note when packets pass, and leave them as they are."""
        [sender] = self._connection.getSenders()
        [receiver] = self._connection.getReceivers()
        send, handle = sender.transport._send_rtp, receiver._handle_rtp_packet

        async def sending(data: bytes) -> None:
            if not 192 <= data[1] <= 223:
                self.wire.sent.append(now())
            await send(data)

        async def handling(packet: RtpPacket, arrival_time_ms: int) -> None:
            self.wire.came.append((now(), packet.sequence_number, packet.payload))
            await handle(packet, arrival_time_ms)

        sender.transport._send_rtp = sending
        receiver._handle_rtp_packet = handling

    async def listen(self) -> None:
        """Play what comes until the call is over."""
        [receiver] = self._connection.getReceivers()
        try:
            while True:
                frame = await receiver.track.recv()
                self._hear(frame.to_ndarray().reshape(-1, 2)[:, 0].copy(), now())
        except MediaStreamError:
            self.end()

    def _hear(self, samples: Samples, moment: float) -> None:
        heard = self.loudspeaker.play(samples, moment)
        if not self._keep and len(self.loudspeaker.pieces) > KEPT_PACKETS:
            del self.loudspeaker.pieces[0]
        if heard is None:
            return
        latest = self.answers[-1] if self.answers else None
        if latest is not None and latest.first_audio is None:
            latest.first_audio = heard
            self.stir()

    async def close(self) -> None:
        self._track.close()
        with anyio.move_on_after(3):
            await self._connection.close()

    # -- as a client ------------------------------------------------------------------------

    async def send_text(self, text: str) -> None:
        if self.closed:
            raise ClientError("the call is over")
        self._channel.send(text)

    async def send_sound(self, samples: Samples) -> None:
        self._track.give(samples)

    def audible(self, moment: float) -> bool:
        return moment < self.loudspeaker.last_sound + HUSH_SECONDS

    async def quiet(self) -> None:
        left = self.loudspeaker.last_sound + HUSH_SECONDS - now()
        if left > 0:
            await anyio.sleep(left)
            # More may have come meanwhile.
            await self.quiet()

    async def stopped(self, answer: Answer, noticed: float) -> float | None:
        with anyio.move_on_after(STOP_WITHIN):
            await self.quiet()
            if answer.item_id not in self.heard.cut:
                return None
            last = self.loudspeaker.last_sound
            fade = fade_seconds(self.loudspeaker.between(last - 0.3, last + 0.05))
            if fade is not None:
                self.fades.append(fade)
            return last
        return None

    def note_share(self, spoke: float) -> None:
        """``spoke``: when the first voiced sample of an interruption was spoken."""
        voiced = next((sent for sent in self.wire.sent if sent >= spoke), None)
        last = self.wire.last_speech()
        if voiced is not None and last is not None:
            self.shares.append(last - voiced)

    def played(self) -> list[tuple[float, Samples]]:
        return self.loudspeaker.pieces if self._keep else []

    def gaps(self) -> list[float]:
        return []


async def _hang_up(http: httpx.AsyncClient, call_id: str) -> None:
    with anyio.CancelScope(shield=True), suppress(httpx.HTTPError):
        await http.post(f"/v1/realtime/calls/{call_id}/hangup")


@asynccontextmanager
async def open_call(
    url: str,
    *,
    key: str = "",
    model: str = "",
    keep: bool = False,
    seconds: float = 20.0,
    coding: Coding = "stock",
    network: Impairment | None = None,
    seed: int = 1,
) -> AsyncIterator[RtcClient]:
    """A call that is on, through a bad ``network`` if there is one.

    Raises ClientError when it is not on within ``seconds``.
    """
    _stay_on_loopback()
    headers = {"Content-Type": "application/sdp"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    client: RtcClient | None = None
    try:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, headers=headers, timeout=seconds, trust_env=False)
            )
            client = RtcClient(now(), coding, keep)
            offer = await client.offer()
            client.opened = now()
            relay = None
            if network is not None and not network.clean:
                relay = await stack.enter_async_context(open_relay(network, seed))
                offer = without_candidates(offer)
            query = {"model": model} if model else {}
            response = await http.post("/v1/realtime/calls", content=offer, params=query)
            if response.status_code != 201:
                raise ClientError(f"refused: {response.text}")
            client.call_id = response.headers["Location"].rsplit("/", 1)[1]
            answer = response.text if relay is None else relay.into(response.text)
            # A bad network may lose the end of a call, and its place would be taken for long.
            stack.push_async_callback(_hang_up, http, client.call_id)
            async with anyio.create_task_group() as tasks:
                with anyio.move_on_after(seconds):
                    await client.answer(answer)
                tasks.start_soon(client.listen)
                created = client
                await client.until(lambda: created.created is not None, seconds, "session.created")
                yield client
                tasks.cancel_scope.cancel()
    except httpx.HTTPError as error:
        raise ClientError(f"can't call: {error!r}") from None
    except BaseExceptionGroup as group:
        raise cause(group) from None
    finally:
        if client is not None:
            with anyio.CancelScope(shield=True):
                await client.close()


def _stay_on_loopback() -> None:
    """aiortc never calls from a loopback address, and the server may have no other."""
    logging.getLogger("aiortc").setLevel(logging.ERROR)
    aioice.ice.get_host_addresses = lambda use_ipv4, use_ipv6: ["127.0.0.1"]
