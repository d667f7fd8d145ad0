"""What a bad network leaves of speech, computed: no server, no sockets, and no clock.

Packets of recorded speech go over a link and into the receiving side's buffers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from duologue.codecs.arrival_order import ArrivalOrder
from duologue.codecs.audio_packet import AudioPacket
from duologue.codecs.audio_playout import AudioPlayout
from duologue.codecs.opus import CLOCK_RATE, OpusEncoder, packet_ticks
from duologue.codecs.voice_decoder import VoiceDecoder
from duologue.models.whisper import Whisper
from load_tests.impairment import Impairment, Link
from load_tests.microphone import Clip
from load_tests.recordings import Recording, Samples
from load_tests.report import Json
from load_tests.rtc_client import BROWSER, RATE
from load_tests.words import WordErrors, word_errors

HEARD_RATE = 16_000
FRAME_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class LossySpeech:
    """At 16 kHz. Percent of all samples; the mean delay above the fastest packet."""

    samples: Samples
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


def hear_steadily(packets: list[AudioPacket], impairment: Impairment, seed: int) -> LossySpeech:
    """Through the adaptive buffer: 20 ms every 20 ms, half a period after a packet was sent."""
    decoder = VoiceDecoder("opus", HEARD_RATE)
    playout = AudioPlayout(decoder)
    heard: list[Samples] = []
    delays: list[float] = []
    for now, arrived in _beats(packets, impairment, seed):
        if now > len(packets) * FRAME_SECONDS:
            break  # the speaker has ended: what follows would count as lost
        for arrival, packet in arrived:
            playout.push(packet, arrival)
        heard.append(playout.pull(now))
        delays.append(playout.delay)
    return _result(heard, decoder, 1000 * float(np.mean(delays)))


def hear_at_once(packets: list[AudioPacket], impairment: Impairment, seed: int) -> LossySpeech:
    """In order at arrival, as the voice detector and the recogniser have it."""
    decoder = VoiceDecoder("opus", HEARD_RATE)
    order = ArrivalOrder(CLOCK_RATE)
    heard: list[Samples] = []
    for now, arrived in _beats(packets, impairment, seed):
        for arrival, packet in arrived:
            heard += [decoder.perform(step) for step in order.push(packet, arrival)]
        heard += [decoder.perform(step) for step in order.handle_timer(now + FRAME_SECONDS)]
    return _result(heard, decoder, 1000 * order.waited / max(1, len(packets)))


def understood(
    recordings: Sequence[Recording], networks: Sequence[Impairment], seed: int, recognizer: Whisper
) -> dict[str, Json]:
    """What the embedded recogniser makes of recordings with known words, through each network."""
    figures: dict[str, Json] = {}
    spoken = [
        (one.text, packets_of(np.concatenate(Clip.of(one, RATE).frames))) for one in recordings
    ]
    for network in networks:
        errors = WordErrors(0, 0)
        heard: list[LossySpeech] = []
        for number, (text, packets) in enumerate(spoken):
            heard.append(hear_at_once(packets, network, seed + number))
            samples = heard[-1].samples.astype(np.float32) / 32_768
            errors += word_errors(text, recognizer.transcribe(samples).text)
        steady = [
            hear_steadily(packets, network, seed + number)
            for number, (_, packets) in enumerate(spoken)
        ]
        figures[network.name] = {
            "words": errors.words,
            "word errors %": round(100 * errors.rate, 1),
            "concealed %": _mean(heard, "concealed"),
            "recovered %": _mean(heard, "recovered"),
            "steady: concealed %": _mean(steady, "concealed"),
            "delay ms": _mean(steady, "delay_ms"),
        }
    return figures


def _mean(heard: Sequence[LossySpeech], name: str) -> float:
    """Of a figure, by how long each lasts."""
    seconds = [len(one.samples) for one in heard]
    return round(float(np.average([getattr(one, name) for one in heard], weights=seconds)), 2)


def _beats(
    packets: list[AudioPacket], impairment: Impairment, seed: int
) -> Iterator[tuple[float, list[tuple[float, AudioPacket]]]]:
    """Each beat's time and what has arrived since the one before, until all has."""
    link = Link(impairment, seed)
    sent = ((number * FRAME_SECONDS, packet) for number, packet in enumerate(packets))
    delays = ((at, packet, link.admit(len(packet.payload), at)) for at, packet in sent)
    arrivals = sorted(
        ((at + delay, packet) for at, packet, delay in delays if delay is not None),
        key=lambda arrival: arrival[0],
    )
    last = max([len(packets) * FRAME_SECONDS, *(arrival for arrival, _ in arrivals[-1:])])
    at, now = 0, 0.5 * FRAME_SECONDS
    while now < last + 3 * FRAME_SECONDS:
        first = at
        while at < len(arrivals) and arrivals[at][0] <= now:
            at += 1
        yield now, arrivals[first:at]
        now += FRAME_SECONDS


def _result(heard: list[Samples], decoder: VoiceDecoder, delay_ms: float) -> LossySpeech:
    share = 100 / max(1, decoder.decoded)
    samples = np.concatenate(heard)
    return LossySpeech(samples, share * decoder.concealed, share * decoder.recovered, delay_ms)
