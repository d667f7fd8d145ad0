"""The wire of Moshi's own clients: binary messages whose first byte says what they are.

Kyutai's ``rust/protocol.md``: 0 is the handshake, 1 sound as a stream of Ogg pages with Opus (both
ways), 2 text (from the server), 3 a control byte (from the client), 6 a ping. What else there is
has no meaning here, and is left alone.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

from duologue.codecs.media import Int16Samples, MalformedDataError
from duologue.codecs.ogg_opus import OggOpusReader, OggOpusWriter
from duologue.codecs.opus import CLOCK_RATE, OpusDecoder, OpusEncoder, OpusSettings, packet_ticks
from duologue.codecs.pcm import bytes_from_int16, int16_from_bytes
from duologue.engines.duplex import DuplexChoice, DuplexSpec

HANDSHAKE: Final = b"\x00"
SOUND: Final = 1
TEXT: Final = 2
CONTROL: Final = 3
PAUSE: Final = 2
RESTART: Final = 3

PACKET_MS: Final = 40
SETTINGS: Final = OpusSettings(bit_rate=48_000, complexity=0, loss_percent=0, fec=False, dtx=False)
"""By CELT: a frame of speech took 0.13 ms, 0.3 with complexity 5 for a decibel less noise, and 0.58
by libopus' choice for voices, with 13 dB more of it (libopus 1.6)."""
MOST_SECONDS: Final = 10.0
"""Sound in one message; a client that sends more at once is not talking."""
LONGEST_SOUND: Final = 256 * 1024
"""Bytes in one message; as much sound takes a quarter of that."""
MOST_AHEAD: Final = 20.0
"""Seconds that a client's sound may be ahead of real time."""

Control = Literal["pause", "restart"]


class Lead:
    """How far a client's sound is ahead of real time; pure."""

    def __init__(self, now: float) -> None:
        self._ahead = 0.0
        self._then = now

    def add(self, seconds: float, now: float) -> float:
        """Seconds that it is ahead with so much more."""
        self._ahead = max(0.0, self._ahead - (now - self._then)) + seconds
        self._then = now
        return self._ahead


class MoshiReader:
    """A client's messages, as frames of the model's length."""

    def __init__(self, spec: DuplexSpec) -> None:
        self._spec = spec
        self._pages = OggOpusReader()
        self._decoder = OpusDecoder(spec.sample_rate)
        self._waiting = bytearray()
        self._skipped = 0

    def feed(self, message: bytes) -> Iterator[bytes | Control]:
        """Frames of PCM, and what the client wants besides.

        Raises MalformedDataError for sound that is no Opus in Ogg.
        """
        kind, rest = message[:1], message[1:]
        if kind == bytes([SOUND]):
            yield from self._frames(rest)
        elif message[:2] == bytes([CONTROL, PAUSE]):
            yield "pause"
        elif message[:2] == bytes([CONTROL, RESTART]):
            yield "restart"

    def _frames(self, pages: bytes) -> Iterator[bytes]:
        if len(pages) > LONGEST_SOUND:
            raise MalformedDataError(f"more than {LONGEST_SOUND} bytes in one message")
        packets = self._pages.feed(pages)
        # Before any is decoded: a packet of one byte may be a long one.
        if sum(map(packet_ticks, packets)) > MOST_SECONDS * CLOCK_RATE:
            raise MalformedDataError(f"more than {MOST_SECONDS:g} seconds in one message")
        waiting, size = self._waiting, self._spec.frame_bytes
        for packet in packets:
            waiting += bytes_from_int16(self._heard(packet))
        whole = len(waiting) - len(waiting) % size
        frames = [bytes(waiting[start : start + size]) for start in range(0, whole, size)]
        del waiting[:whole]
        yield from frames

    def _heard(self, packet: bytes) -> Int16Samples:
        """A packet's sound, without the samples at the beginning that are not to be heard."""
        samples = self._decoder.decode(packet)
        skip = self._pages.skip * self._spec.sample_rate // CLOCK_RATE - self._skipped
        if skip <= 0:
            return samples
        skip = min(skip, len(samples))
        self._skipped += skip
        return samples[skip:]


class MoshiWriter:
    """What the model says, as messages."""

    def __init__(self, spec: DuplexSpec, serial: int) -> None:
        """``serial``: of the Ogg stream, any 32 bits."""
        self._spec = spec
        self._encoder = OpusEncoder(spec.sample_rate, SETTINGS, low_delay=True)
        self._pages = OggOpusWriter(spec.sample_rate, serial)
        self._begun = False

    def sound(self, pcm: bytes) -> bytes:
        """A frame's message."""
        message = bytearray([SOUND])
        if not self._begun:
            self._begun = True
            message += self._pages.begin()
        samples = int16_from_bytes(pcm)
        size = self._spec.sample_rate * PACKET_MS // 1000
        for start in range(0, len(samples), size):
            packet = self._encoder.encode(samples[start : start + size])
            message += self._pages.packet(packet)
        return bytes(message)

    def text(self, text: str) -> bytes:
        return bytes([TEXT]) + text.encode()


def read_choice(query: Mapping[str, str]) -> DuplexChoice:
    """How tokens are to be chosen, by the names that Moshi's web client uses.

    Raises ValueError, in words for the client.
    """

    def number(name: str) -> float | None:
        text = query.get(name)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{name} must be a number") from None
        if not 0 <= value < 2**63:
            raise ValueError(f"{name} must not be negative")
        return value

    def whole(name: str) -> int | None:
        value = number(name)
        return None if value is None else int(value)

    seeds = (query.get(name, "") for name in ("seed", "audio_seed", "text_seed"))
    # -1 is how clients say that they have none.
    seed = next((text for text in seeds if text and not text.startswith("-")), "")
    if seed and not seed.isdecimal():
        raise ValueError("a seed must be a whole number")
    return DuplexChoice(
        text_temperature=number("text_temperature"),
        text_top_k=whole("text_topk"),
        audio_temperature=number("audio_temperature"),
        audio_top_k=whole("audio_topk"),
        seed=int(seed) % 2**63 if seed else None,
    )
