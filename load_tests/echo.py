"""Mouth to ear: what stock aiortc says to an echo until its loudspeaker gives it back.

A microphone's packet has the sound of the 20 ms before it, and the loudspeaker's buffer counts as
20 ms. The delay is that at which what was heard is most like what was said, second by second.
"""

import os
from collections.abc import Sequence
from contextlib import AsyncExitStack

import anyio
import numpy as np
from aiortc import RTCCertificate, RTCRtpReceiver, RTCRtpSender
from aiortc.mediastreams import MediaStreamError
from aiortc.rtcdtlstransport import RTCDtlsTransport
from aiortc.rtcrtpparameters import (
    RTCRtcpParameters,
    RTCRtpCodecParameters,
    RTCRtpReceiveParameters,
    RTCRtpSendParameters,
)
from aiortc.rtcrtpreceiver import RemoteStreamTrack

from load_tests.clock import now
from load_tests.compare_aiortc import EchoProcess, echoing
from load_tests.impairment import Impairment
from load_tests.loudspeaker import RATE, Loudspeaker, stretch
from load_tests.media_peer import PAYLOAD_TYPE, MediaPeer, stay_on_loopback
from load_tests.microphone import FRAME_SECONDS, Clip, Microphone
from load_tests.recordings import Recording, Samples
from load_tests.relay import open_relay
from load_tests.report import Json, spread
from load_tests.rtc_client import Coding, Track

WARM_UP = 2.0
WINDOW_SECONDS = 1.0
LONGEST_SECONDS = 1.0
"""Delays are looked for up to here."""
ALIKE = 0.3
"""Correlation from which a delay counts: below, there was no voice in the window."""
_STEP = 6
"""Every sixth of averaged samples is compared: 8 kHz, 0.125 ms."""
_EMPHASIS = 0.9
"""What is taken off each sample of the one before. A voice's lowest tones are nearly as much like
themselves a period later, 4 to 10 ms, and would be taken for the delay."""


def delay_seconds(said: Samples, heard: Samples) -> float | None:
    """By how much ``heard`` comes after ``said``; both begin at the same time, and ``heard`` goes
    on for longer. ``None`` when they are not alike at any delay."""
    one, other = _coarse(said), _coarse(heard)
    size = len(one) + len(other)
    product = np.fft.irfft(np.fft.rfft(other, size) * np.conj(np.fft.rfft(one, size)), size)
    lags = len(other) - len(one) + 1
    energy = np.cumsum(np.concatenate(([0.0], np.square(other))))
    under = energy[len(one) : len(one) + lags] - energy[:lags]
    norm = np.sqrt(under * np.square(one).sum())
    alike = np.divide(product[:lags], norm, out=np.zeros(lags), where=norm > 1.0)
    best = int(alike.argmax())
    return best * _STEP / RATE if alike[best] >= ALIKE else None


def _coarse(samples: Samples) -> np.ndarray:
    count = len(samples) // _STEP * _STEP
    coarse = samples[:count].astype(np.float64).reshape(-1, _STEP).mean(axis=1)
    emphasised: np.ndarray = coarse[1:] - _EMPHASIS * coarse[:-1]
    return emphasised


async def run_echo(
    recordings: Sequence[Recording],
    way: str,
    seconds: float,
    coding: Coding,
    network: Impairment,
    seed: int,
) -> tuple[dict[str, Json], list[str]]:
    """``mouth_to_ear_ms``, and ``server_ms`` from a packet in to its echo out."""
    stay_on_loopback()
    core = sorted(os.sched_getaffinity(0))[-1]
    with echoing(way, core) as server:
        async with AsyncExitStack() as stack:
            microphone = Microphone(RATE)
            for _ in range(1 + int(seconds / sum(one.seconds for one in recordings))):
                for recording in recordings:
                    microphone.say(Clip.of(recording, RATE))
            peer = MediaPeer(RTCDtlsTransport, RTCCertificate.generateCertificate(), leads=True)
            ours = await peer.gather()
            if network.clean:
                theirs = await server.ask(ours)
            else:
                relay = await stack.enter_async_context(open_relay(network, seed))
                theirs = await server.ask({**ours, "candidates": []})
                candidates = theirs["candidates"]
                assert isinstance(candidates, list)
                theirs["candidates"] = [relay.candidate(str(candidates[0]))]
            await peer.connect(theirs)
            said, loudspeaker = await _talk(peer, server, microphone, coding, seconds)
            shares = (await server.ask({"usage": 1})).get("shares_ms", [])
            await peer.close()
    begin = said[0][0]
    delays = [
        delay
        for second in range(int(said[-1][0] - begin - LONGEST_SECONDS))
        if (
            delay := delay_seconds(
                stretch(said, begin + second, begin + second + WINDOW_SECONDS),
                loudspeaker.between(
                    begin + second, begin + second + WINDOW_SECONDS + LONGEST_SECONDS
                ),
            )
        )
        is not None
    ]
    assert isinstance(shares, list)
    figures: dict[str, Json] = {
        "way": way,
        "seconds_compared": len(delays),
        "mouth_to_ear_ms": spread([1000 * delay for delay in delays]),
        "server_ms": spread([float(str(share)) for share in shares]),
        "client_late_ms": spread([1000 * late for late in microphone.late]),
    }
    return figures, [] if delays else ["nothing came back that is like what was said"]


async def _talk(
    peer: MediaPeer, server: EchoProcess, microphone: Microphone, coding: Coding, seconds: float
) -> tuple[list[tuple[float, Samples]], Loudspeaker]:
    """Speak and listen, for as long; the first seconds are not kept."""
    codec = RTCRtpCodecParameters("audio/opus", 48_000, 2, PAYLOAD_TYPE)
    track = Track(coding)
    receiver = RTCRtpReceiver("audio", peer.dtls)
    receiver._track = RemoteStreamTrack("audio")
    sender = RTCRtpSender(track, peer.dtls)
    receiver._set_rtcp_ssrc(sender._ssrc)
    await receiver.receive(RTCRtpReceiveParameters(codecs=[codec]))
    await sender.send(RTCRtpSendParameters(codecs=[codec], rtcp=RTCRtcpParameters(cname="mouth")))
    loudspeaker = Loudspeaker()
    said: list[tuple[float, Samples]] = []

    async def speak(samples: Samples) -> None:
        due = now() - microphone.late[-1]
        said.append((due - FRAME_SECONDS, samples))
        track.give(samples)

    async def hear() -> None:
        try:
            while True:
                frame = await receiver.track.recv()
                loudspeaker.play(frame.to_ndarray().reshape(-1, 2)[:, 0].copy(), now())
        except MediaStreamError:
            return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hear)
        tasks.start_soon(microphone.run, speak)
        await anyio.sleep(WARM_UP)
        said.clear()
        await server.ask({"usage": 1})
        await anyio.sleep(seconds)
        tasks.cancel_scope.cancel()
    track.close()
    with anyio.move_on_after(2):
        await sender.stop()
        await receiver.stop()
    return said, loudspeaker
