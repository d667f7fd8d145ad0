"""A caller: stock aiortc, as any client of WebRTC would use it."""

import fractions
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aioice.ice
import anyio
import anyio.abc
import av
import httpx
import numpy as np
import pytest
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCDataChannel,
    RTCPeerConnection,
    RTCRtpSender,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError

from tests.patience import PATIENCE_S

Event = dict[str, Any]

FRAME = 960
"""Samples of 20 ms at 48 kHz."""
AUDIBLE = 500
"""Loudness from which a frame is sound rather than comfort noise."""


class Loud:
    """Stands in for the voice detector: what is loud is speech."""

    def stream(self) -> "Loud":
        return self

    def push(self, frame: Any) -> float:
        return 0.95 if float(np.abs(frame).max()) > 0.02 else 0.01


class Microphone(MediaStreamTrack):  # type: ignore[misc]
    """Silence, or a hum while ``loud``, in real time."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self.loud = False
        self._frames = 0
        self._began = anyio.current_time()

    async def hum(self, seconds: float) -> None:
        """Be loud for so much of what is sent, however late that is."""
        self.loud, end = True, self._frames + round(seconds / 0.02)
        while self._frames < end:  # noqa: ASYNC110 - others take the frames
            await anyio.sleep(0.02)
        self.loud = False

    async def recv(self) -> av.AudioFrame:
        if self.readyState != "live":
            raise MediaStreamError
        self._frames += 1
        await anyio.sleep_until(self._began + self._frames * 0.02)
        at = np.arange(FRAME) + self._frames * FRAME
        wave = np.sin(at * 2 * np.pi * 300 / 48_000) * (8000 if self.loud else 0)
        frame = av.AudioFrame.from_ndarray(
            wave.astype(np.int16).reshape(1, -1), format="s16", layout="mono"
        )
        frame.sample_rate, frame.pts = 48_000, self._frames * FRAME
        frame.time_base = fractions.Fraction(1, 48_000)
        return frame


class Camera(MediaStreamTrack):  # type: ignore[misc]
    """Pictures of one colour, ``rate`` a second, with some movement in them."""

    kind = "video"

    def __init__(self, colour: tuple[int, int, int], size: tuple[int, int] = (320, 240)) -> None:
        super().__init__()
        self.colour = colour
        self.size = size
        self.rate = 15
        self.still = False
        """Whether it has stopped giving pictures."""
        self._moves = anyio.Event()
        self._frames = 0
        self._began = anyio.current_time()

    def stop(self) -> None:
        super().stop()
        self._moves.set()

    def move(self) -> None:
        """Give pictures again."""
        self.still = False
        self._moves.set()

    async def recv(self) -> av.VideoFrame:
        self._frames += 1
        await anyio.sleep_until(self._began + self._frames / self.rate)
        if self.still:
            self._moves = anyio.Event()
            await self._moves.wait()
        if self.readyState != "live":
            raise MediaStreamError
        width, height = self.size
        pixels = np.full((height, width, 3), self.colour, np.uint8)
        pixels[:32, self._frames * 4 % (width - 32) :][:, :32] = 255
        frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
        frame.pts = self._frames * 90_000 // self.rate
        frame.time_base = fractions.Fraction(1, 90_000)
        return frame


@dataclass
class Caller:
    """A connection and everything that came over it."""

    connection: RTCPeerConnection
    microphone: Microphone
    channel: RTCDataChannel
    events: list[Event] = field(default_factory=list)
    levels: list[float] = field(default_factory=list)
    """The loudness of each frame that was played."""
    pictures: list[tuple[float, av.VideoFrame]] = field(default_factory=list)
    """Each with when it came."""
    loud_at: list[float] = field(default_factory=list)
    """When each audible frame came."""
    changed: anyio.Event = field(default_factory=anyio.Event)
    call_id: str = ""

    async def offer(self) -> str:
        await self.connection.setLocalDescription(await self.connection.createOffer())
        sdp: str = self.connection.localDescription.sdp
        return sdp

    async def dial(self, http: httpx.AsyncClient, sdp: str | None = None) -> httpx.Response:
        """Call, and wait for the first event."""
        response = await http.post(
            "/v1/realtime/calls",
            content=sdp or await self.offer(),
            headers={"Content-Type": "application/sdp"},
        )
        await self.take(response)
        return response

    async def take(self, response: httpx.Response) -> None:
        assert response.status_code == 201, response.text
        self.call_id = response.headers["Location"].rsplit("/", 1)[1]
        await self.connection.setRemoteDescription(RTCSessionDescription(response.text, "answer"))
        await self.until(lambda: bool(self.events))

    def send(self, kind: str, **fields: Any) -> None:
        self.channel.send(json.dumps({"type": kind, **fields}))

    def ask(self, text: str) -> None:
        """Type something and have it answered."""
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        self.send("conversation.item.create", item=item)
        self.send("response.create")

    async def until(self, condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        with anyio.fail_after(seconds):
            while not condition():
                self.changed = anyio.Event()
                await self.changed.wait()

    async def event(self, kind: str, count: int = 1) -> Event:
        """The ``count``-th event of this type, once it has come."""
        await self.until(lambda: len(self.all(kind)) >= count)
        return self.all(kind)[count - 1]

    def all(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    def heard(self, frames: int = 5) -> bool:
        return sum(level > AUDIBLE for level in self.levels) >= frames

    @property
    def gone(self) -> bool:
        return self.connection.connectionState in ("closed", "failed")

    # -- what comes in ----------------------------------------------------------------------

    def _said(self, text: str) -> None:
        self.events.append(json.loads(text))
        self.changed.set()

    def _stir(self, *_: object) -> None:
        self.changed.set()

    async def _play(self, track: MediaStreamTrack) -> None:
        try:
            while True:
                frame = await track.recv()
                if isinstance(frame, av.VideoFrame):
                    self.pictures.append((anyio.current_time(), frame))
                    self.changed.set()
                    continue
                self.levels.append(float(np.abs(frame.to_ndarray().astype(float)).max()))
                if self.levels[-1] > AUDIBLE:
                    self.loud_at.append(anyio.current_time())
                self.changed.set()
        except MediaStreamError:
            self.changed.set()


@asynccontextmanager
async def calling(
    *,
    audio: bool = True,
    camera: Camera | None = None,
    screen: bool = False,
    codec: str | None = None,
    check: Callable[[str], Event] | None = None,
    configuration: RTCConfiguration | None = None,
) -> AsyncIterator[Caller]:
    """A caller that has not dialled yet. ``check`` is given the text of every event.

    ``screen``: it would like to see something. ``codec``: the one that it offers for that and for
    its camera, as ``video/H264``.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aioice.ice, "get_host_addresses", lambda use_ipv4, use_ipv6: ["127.0.0.1"])
        async with anyio.create_task_group() as tasks:
            connection = RTCPeerConnection(configuration or RTCConfiguration(iceServers=[]))
            caller = Caller(connection, Microphone(), connection.createDataChannel("oai-events"))
            if audio:
                connection.addTrack(caller.microphone)
            if camera is not None or screen:
                if camera is not None:
                    connection.addTrack(camera)
                else:
                    connection.addTransceiver("video", direction="recvonly")
                if codec is not None:
                    known = RTCRtpSender.getCapabilities("video").codecs
                    connection.getTransceivers()[-1].setCodecPreferences(
                        [entry for entry in known if entry.mimeType in (codec, "video/rtx")]
                    )
            if check is not None:
                caller.channel.on("message", check)
            caller.channel.on("message", caller._said)
            caller.channel.on("close", caller._stir)
            connection.on("connectionstatechange", caller._stir)
            connection.on("track", lambda track: tasks.start_soon(caller._play, track))
            try:
                yield caller
            finally:
                with anyio.CancelScope(shield=True):
                    await connection.close()
                tasks.cancel_scope.cancel()


def without_candidates(sdp: str) -> str:
    """As browsers send it that do not wait for their candidates."""
    lines = [line for line in sdp.splitlines() if not line.startswith("a=candidate")]
    return "\r\n".join(line for line in lines if line != "a=end-of-candidates") + "\r\n"
