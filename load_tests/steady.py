"""What a bad network leaves of speech for a model that hears 20 ms every 20 ms.

No server and no clock: packets of recorded speech go over a link into the adaptive buffer.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from duologue.codecs.audio_packet import AudioPacket
from duologue.codecs.audio_playout import AudioPlayout
from duologue.codecs.opus import OpusEncoder, packet_ticks
from duologue.codecs.voice_decoder import VoiceDecoder
from load_tests.impairment import Impairment, Link
from load_tests.recordings import Samples
from load_tests.rtc_client import BROWSER, RATE

HEARD_RATE = 16_000
FRAME_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Steady:
    """Percent of all samples; the mean delay of what was played, above the fastest packet."""

    concealed: float
    recovered: float
    delay_ms: float


def packets_of(samples: Samples) -> list[AudioPacket]:
    """Speech at 48 kHz as a browser sends it."""
    encoder = OpusEncoder(RATE, BROWSER)
    size = RATE // 50
    payloads = [
        encoder.encode(samples[at : at + size]) for at in range(0, len(samples) - size + 1, size)
    ]
    return [
        AudioPacket(number, number * size, payload, packet_ticks(payload))
        for number, payload in enumerate(payloads)
    ]


def steady(packets: list[AudioPacket], impairment: Impairment, seed: int) -> Steady:
    """Play them out after the link. Half a period lies between a packet and the next beat."""
    link = Link(impairment, seed)
    decoder = VoiceDecoder("opus", HEARD_RATE)
    playout = AudioPlayout(decoder)
    arrivals: list[tuple[float, int]] = []
    for number, packet in enumerate(packets):
        delay = link.admit(len(packet.payload), number * FRAME_SECONDS)
        if delay is not None:
            heapq.heappush(arrivals, (number * FRAME_SECONDS + delay, number))
    delays: list[float] = []
    for beat in range(len(packets)):
        now = (beat + 0.5) * FRAME_SECONDS
        while arrivals and arrivals[0][0] <= now:
            arrival, number = heapq.heappop(arrivals)
            playout.push(packets[number], arrival)
        playout.pull(now)
        delays.append(playout.delay)
    return Steady(
        concealed=100 * decoder.concealed / max(1, decoder.decoded),
        recovered=100 * decoder.recovered / max(1, decoder.decoded),
        delay_ms=1000 * float(np.mean(delays)),
    )
