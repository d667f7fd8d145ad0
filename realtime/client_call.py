"""How a client reaches a server: over WebRTC. The server plays out, and truncates by itself."""

import fractions
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import av
import httpx
import msgspec
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCIceServer,
    RTCPeerConnection,
    RTCSessionDescription,
)
from aiortc.exceptions import InvalidAccessError, InvalidStateError
from aiortc.mediastreams import MediaStreamError

from duologue.codecs.pcm import int16_from_bytes
from duologue.realtime.client_events import Event
from duologue.realtime.client_link import (
    CONNECT_S,
    ConnectError,
    Disconnected,
    address,
    headers,
    one_line,
    plain_group,
    read_message,
    refusal,
)
from duologue.realtime.client_playout import RATE, TICK_BYTES
from duologue.realtime.client_sound import Sink

QUEUED = 50
"""Pieces of sound that wait for the network: a second; what is more is dropped."""

EVENTS = 1024
"""Events that wait to be read; one more, and the call ends."""

_UNREADABLE = (ValueError, LookupError, AttributeError, TypeError, AssertionError)
"""What aiortc raises for SDP that is none."""

_TIME_BASE = fractions.Fraction(1, RATE)


class _Track(MediaStreamTrack):
    """What the user says, as aiortc wants it."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._give, self._take = anyio.create_memory_object_stream[bytes](QUEUED)
        self._samples = 0

    def give(self, pcm: bytes) -> None:
        try:
            self._give.send_nowait(pcm)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # nobody takes them yet, or any more

    def close(self) -> None:
        self._give.close()
        self._take.close()

    async def recv(self) -> av.AudioFrame:
        try:
            pcm = await self._take.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise MediaStreamError from None
        samples = int16_from_bytes(pcm)
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE, self._samples, _TIME_BASE
        self._samples += len(samples)
        return frame


class CallLink:
    """A call. See :class:`duologue.realtime.client_link.Link`."""

    transport = "webrtc"

    def __init__(
        self, group: anyio.abc.TaskGroup, sink: Sink, ice_servers: tuple[str, ...] = ()
    ) -> None:
        self._group = group
        self._sink = sink
        self._track = _Track()
        self._events, self._received = anyio.create_memory_object_stream[Event](EVENTS)
        self._reason = ""
        servers = [RTCIceServer(urls=url) for url in ice_servers]
        self._peer = RTCPeerConnection(RTCConfiguration(iceServers=servers))
        self._channel: Any = None
        self._open = anyio.Event()

    async def offer(self) -> str:
        self._peer.addTrack(self._track)
        self._peer.on("track", lambda track: self._group.start_soon(self._listen, track))
        self._peer.on("connectionstatechange", self._changed)
        self._channel = self._peer.createDataChannel("oai-events")
        self._channel.on("open", self._open.set)
        self._channel.on("message", self._take)
        self._channel.on("close", lambda: self._end("the server hung up"))
        await self._peer.setLocalDescription(await self._peer.createOffer())
        return str(self._peer.localDescription.sdp)

    async def answer(self, sdp: str) -> None:
        """Returns when events can be sent. Raises ConnectError."""
        try:
            await self._peer.setRemoteDescription(RTCSessionDescription(sdp, "answer"))
        except (*_UNREADABLE, InvalidAccessError, InvalidStateError):
            raise ConnectError("the server's answer to the call can't be read") from None
        try:
            with anyio.fail_after(CONNECT_S):
                await self._open.wait()
        except TimeoutError:
            raise ConnectError(
                f"no media path to the server within {CONNECT_S:g} s (is UDP let through?)"
            ) from None
        if self._reason:
            raise ConnectError(self._reason)

    async def send(self, event: Event) -> None:
        if self._reason or self._channel.readyState != "open":
            raise Disconnected(self._reason or "the call is over")
        self._channel.send(msgspec.json.encode(event).decode())

    async def receive(self) -> Event:
        try:
            return await self._received.receive()
        except anyio.EndOfStream:
            raise Disconnected(self._reason) from None

    async def hear(self, pcm: bytes) -> None:
        if self._reason:
            raise Disconnected(self._reason)
        self._track.give(pcm)

    async def cut(self) -> None:
        self._sink.flush()
        await self.send({"type": "output_audio_buffer.clear"})

    async def aclose(self) -> None:
        self._end("the client hung up")
        self._track.close()
        # Closing joins a thread of aiortc's for a moment, which is its own to answer for.
        with anyio.CancelScope(shield=True), anyio.move_on_after(CONNECT_S):
            async with anyio.create_task_group() as closing:
                closing.start_soon(self._peer.close)
        self._received.close()

    def _take(self, text: str | bytes) -> None:
        try:
            self._events.send_nowait(read_message(text))
        except anyio.WouldBlock:
            self._end("nobody read the server's events")
        except Disconnected as error:
            self._end(str(error))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return

    def _changed(self) -> None:
        if self._peer.connectionState in ("failed", "closed"):
            self._end("the connection broke")

    def _end(self, reason: str) -> None:
        if not self._reason:
            self._reason = reason
            self._events.close()
            self._open.set()

    async def _listen(self, track: MediaStreamTrack) -> None:
        resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
        waiting = bytearray()
        while True:
            try:
                frame = await track.recv()
            except MediaStreamError:
                return
            if not isinstance(frame, av.AudioFrame):
                continue
            for piece in resampler.resample(frame):
                waiting += piece.to_ndarray().tobytes()
            while len(waiting) >= TICK_BYTES:
                self._sink.write(bytes(waiting[:TICK_BYTES]))
                del waiting[:TICK_BYTES]


@asynccontextmanager
async def open_call_link(
    url: str, sink: Sink, *, key: str, model: str, ice_servers: tuple[str, ...] = ()
) -> AsyncIterator[CallLink]:
    """Raises ConnectError."""
    base = address(url)
    async with plain_group() as group:
        link = CallLink(group, sink, ice_servers)
        location = ""
        try:
            sdp = await link.offer()
            response = await _dial(base, sdp, key, model)
            if response.status_code != httpx.codes.CREATED:
                raise ConnectError(refusal(response.status_code, response.content))
            location = response.headers.get("Location", "")
            await link.answer(response.text)
            yield link
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CONNECT_S):
                await link.aclose()
                await _hang_up(base, location, key)
        group.cancel_scope.cancel()


async def _dial(base: str, sdp: str, key: str, model: str) -> httpx.Response:
    """What the server answers to an offer. Raises ConnectError."""
    try:
        # Within the bound as a whole: an answer may come byte by byte.
        with anyio.fail_after(CONNECT_S):
            async with httpx.AsyncClient(timeout=None) as http:
                return await http.post(
                    f"{base}/v1/realtime/calls",
                    content=sdp,
                    params={"model": model} if model else {},
                    headers={"Content-Type": "application/sdp", **headers(key)},
                )
    except TimeoutError:
        raise ConnectError(f"{base} did not answer within {CONNECT_S:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConnectError(f"{base}: {one_line(str(error)) or type(error).__name__}") from None


async def _hang_up(base: str, location: str, key: str) -> None:
    """Tell the server at once; it would notice by itself after some seconds."""
    if not location:
        return
    try:
        async with httpx.AsyncClient(timeout=2.0) as http:
            await http.post(f"{base}{location}/hangup", headers=headers(key))
    except httpx.HTTPError:
        return
