"""A process that sends calls back what it hears of them, in one of several ways.

Run by `compare_aiortc`: `python -m load_tests.echo_server WAY CORE`. It speaks JSON lines: an offer
in, an answer out; `{"usage": 1}` is answered with what it has used.
"""

import logging
import os
import resource
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
import numpy as np
from aiortc import RTCCertificate, RTCRtpReceiver, RTCRtpSender, rtp
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.rtcrtpparameters import (
    RTCRtcpParameters,
    RTCRtpCodecParameters,
    RTCRtpReceiveParameters,
    RTCRtpSendParameters,
)
from aiortc.rtcrtpreceiver import RemoteStreamTrack
from av import AudioFrame

from duologue.engines.engine import Output
from duologue.engines.scripted import ScriptedBackend
from duologue.models.silero_vad import SileroVad
from duologue.models.weights import locate
from duologue.realtime.pacer import Pacer
from duologue.realtime.rtc_media import AudioCodec, MediaTransport
from duologue.realtime.rtp_receiver import AudioReceiver
from duologue.realtime.rtp_sender import AudioSender
from duologue.sessions.clock import MonotonicClock
from duologue.sessions.ports import Incoming
from duologue.sessions.registry import SessionRegistry
from duologue.sessions.session_config import ServerVad, SessionConfig, SessionLimits
from load_tests import clock
from load_tests.media_peer import PAYLOAD_TYPE, MediaPeer, stay_on_loopback
from load_tests.report import Json

OPUS = AudioCodec("opus", PAYLOAD_TYPE, 48_000, 2, {"useinbandfec": "1"})
PLAYED_RATE = 24_000
BYTES_PER_MS = 48


class AiortcEcho:
    """Stock aiortc: its receiver's track is what its sender sends."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    def make_dtls(self, *args: object) -> RTCDtlsTransport:
        return RTCDtlsTransport(*args)  # type: ignore[arg-type]

    async def echo(self, dtls: RTCDtlsTransport) -> None:
        codec = RTCRtpCodecParameters("audio/opus", 48_000, 2, PAYLOAD_TYPE)
        receiver = RTCRtpReceiver("audio", dtls)
        receiver._track = RemoteStreamTrack("audio")
        sender = RTCRtpSender(receiver.track, dtls)
        receiver._set_rtcp_ssrc(sender._ssrc)
        await receiver.receive(RTCRtpReceiveParameters(codecs=[codec]))
        await sender.send(
            RTCRtpSendParameters(codecs=[codec], rtcp=RTCRtcpParameters(cname="echo"))
        )


class FixedAiortcEcho(AiortcEcho):
    """The same, with its loop over samples in numpy."""

    def __init__(self) -> None:
        rtp.compute_audio_level_dbov = audio_level


class DuologueEcho:
    """Our receiver and sender, on one pacer: what is heard is said at once."""

    lockstep = False
    """Whether what is heard comes from the adaptive buffer, 20 ms every 20 ms."""

    def __init__(self) -> None:
        self.pacer = Pacer()
        self.shares: deque[float] = deque(maxlen=10_000)
        """Seconds from a packet in to the packet out that has the last of its sound."""
        self._calls = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.pacer.run)
            yield
            tasks.cancel_scope.cancel()

    def make_dtls(self, *args: object) -> RTCDtlsTransport:
        return MediaTransport(*args)  # type: ignore[arg-type]

    async def echo(self, dtls: RTCDtlsTransport) -> None:
        assert isinstance(dtls, MediaTransport)
        under_way: deque[tuple[float, float]] = deque()
        given = 0.0

        def played(ms: float, now: float) -> None:
            # The tick's own time says when it was due, not when it was done.
            moment = clock.now()
            while under_way and under_way[0][0] <= ms + 0.01:
                self.shares.append(moment - under_way.popleft()[1])

        def heard(pcm: bytes, now: float) -> None:
            nonlocal given
            given += len(pcm) / BYTES_PER_MS
            waited = receiver.stats.delay_ms / 1000 if self.lockstep else 0.0
            under_way.append((given, now - waited))
            sender.play(pcm)

        receiver = AudioReceiver(
            dtls,
            [OPUS],
            heard,
            self.pacer,
            ssrc=self._calls,
            cname="echo",
            rate=PLAYED_RATE,
            lockstep=self.lockstep,
        )
        sender = self.sender(dtls, played)
        receiver.start()

    def sender(self, dtls: MediaTransport, played: Callable[[float, float], None]) -> AudioSender:
        self._calls += 1
        sender = AudioSender(
            dtls,
            OPUS,
            self.pacer,
            ssrc=self._calls,
            cname="echo",
            on_played=played,
        )
        sender.start()
        return sender


class DuologueSteady(DuologueEcho):
    """The same, as a model with a steady beat hears it."""

    lockstep = True


class DuologueFull(DuologueEcho):
    """What a conversation needs besides: every packet through the voice detector and the session
    core, and speech of the server's own on the way out. The engine never answers."""

    def __init__(self) -> None:
        super().__init__()
        vad = SileroVad(locate("silero-vad") / "silero_vad_v6.onnx")
        self._registry = SessionRegistry(
            SilentEngine(), vad, SessionLimits(), MonotonicClock(), max_sessions=10_000
        )
        self._tasks: anyio.abc.TaskGroup | None = None
        at = np.arange(PLAYED_RATE) / PLAYED_RATE
        wave = sum(np.sin(2 * np.pi * 140 * k * at) / k for k in range(1, 20))
        self._speech = (4000 * wave * (0.6 + 0.4 * np.sin(2 * np.pi * 3 * at))).astype("<i2")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with super().running(), self._registry, anyio.create_task_group() as self._tasks:
            yield
            self._tasks.cancel_scope.cancel()

    async def echo(self, dtls: RTCDtlsTransport) -> None:
        assert isinstance(dtls, MediaTransport) and self._tasks is not None
        sender = self.sender(dtls, lambda ms, now: None)
        config = SessionConfig(turn_detection=ServerVad(create_response=False))
        conversation = await self._registry.open(config, plays_out=True)
        self._tasks.start_soon(conversation.attach, QuietTransport())
        frames = self._speech.reshape(50, -1)
        heard = 0

        def hear(pcm: bytes, now: float) -> None:
            nonlocal heard
            conversation.hear(pcm)
            sender.play(frames[heard % 50].tobytes())
            heard += 1

        AudioReceiver(dtls, [OPUS], hear, self.pacer, ssrc=self._calls, cname="full").start()


class SilentEngine:
    """An engine that takes everything and says nothing."""

    spec = ScriptedBackend().spec
    ready = True

    async def open(self, session: str) -> "SilentStream":
        return SilentStream()


class SilentStream:
    def send(self, command: object) -> None:
        return

    async def receive(self) -> Output:
        await anyio.sleep_forever()
        raise AssertionError

    async def aclose(self) -> None:
        return


class QuietTransport:
    """A client that says nothing but what it speaks."""

    plays_out = True

    async def receive(self) -> Incoming:
        await anyio.sleep_forever()
        raise AssertionError

    def send(self, event: object) -> None:
        return

    def steer(self, effect: object) -> None:
        return

    async def aclose(self, code: int, reason: str) -> None:
        return


WAYS: dict[str, type[AiortcEcho] | type[DuologueEcho]] = {
    "aiortc": AiortcEcho,
    "aiortc_fixed": FixedAiortcEcho,
    "duologue": DuologueEcho,
    "duologue_steady": DuologueSteady,
    "duologue_full": DuologueFull,
}


def audio_level(frame: AudioFrame) -> int:
    """What `aiortc.rtp.compute_audio_level_dbov` computes (RFC 6465, appendix A), by numpy."""
    samples = np.frombuffer(bytes(frame.planes[0]), np.int16).astype(np.float32)
    rms = float(np.sqrt(samples @ samples / frame.samples)) / 32767
    return round(min(0.0, max(-127.0, 20 * np.log10(rms)))) if rms > 0 else -127


async def serve(way: str) -> None:
    stay_on_loopback()
    echo = WAYS[way]()
    certificate = RTCCertificate.generateCertificate()
    peers: list[MediaPeer] = []
    async with echo.running(), anyio.create_task_group() as tasks:

        async def call(peer: MediaPeer, offer: dict[str, Json]) -> None:
            await peer.connect(offer)
            await echo.echo(peer.dtls)

        while True:
            line = await anyio.to_thread.run_sync(sys.stdin.buffer.readline)
            if not line:
                break
            message: dict[str, Json] = msgspec.json.decode(line)
            if "usage" in message:
                answer: dict[str, Json] = usage()
                if isinstance(echo, DuologueEcho):
                    answer["shares_ms"] = [1000 * share for share in echo.shares]
                    echo.shares.clear()
            else:
                peer = MediaPeer(echo.make_dtls, certificate, leads=False)
                answer = await peer.gather()
                peers.append(peer)
                tasks.start_soon(call, peer, message)
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()
        tasks.cancel_scope.cancel()


def usage() -> dict[str, Json]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "resident_kib": used.ru_maxrss,
        "threads": threading.active_count(),
    }


def main() -> None:
    way, core = sys.argv[1], int(sys.argv[2])
    os.sched_setaffinity(0, {core})
    logging.basicConfig(level=logging.WARNING)
    anyio.run(serve, way, backend_options={"use_uvloop": True})
    # aiortc's threads would wait for their queues.
    os._exit(0)


if __name__ == "__main__":
    main()
