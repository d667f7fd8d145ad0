"""Scripted speech that can be recognised: a stamp in its first samples, a tone in the rest.

A stamp survives wherever samples do; the tone also survives G.711 and Opus.
"""

import math
import struct
from array import array
from functools import lru_cache

import msgspec

from duologue.engines.engine import SPOKEN_RATE

MAGIC = b"DUOSTAMP"

_LAYOUT = struct.Struct("<8sIqHHI")
STAMP_BYTES = _LAYOUT.size
"""Length of a stamp: 28 bytes, 14 samples."""

TONE_AMPLITUDE = 3000
TONE_LOWEST_HZ = 200
TONE_STEP_HZ = 25
TONES = 64


class Stamp(msgspec.Struct, frozen=True):
    """``sequence`` counts the chunks of an answer from 0. ``due_ns`` is when the chunk was due
    (CLOCK_MONOTONIC, nanoseconds). ``reply`` and ``clause`` are places in the script."""

    sequence: int
    due_ns: int
    reply: int
    clause: int
    generation: int


def stamp(value: Stamp) -> bytes:
    """The samples of a stamp."""
    return _LAYOUT.pack(
        MAGIC,
        value.sequence,
        value.due_ns,
        value.reply,
        value.clause,
        value.generation & 0xFFFFFFFF,
    )


def read_stamp(pcm: bytes) -> Stamp | None:
    """The stamp that `pcm` starts with, if it starts with one."""
    if len(pcm) < STAMP_BYTES or not pcm.startswith(MAGIC):
        return None
    return Stamp(*_LAYOUT.unpack_from(pcm)[1:])


def find_stamps(pcm: bytes) -> list[tuple[int, Stamp]]:
    """Every whole stamp in 16-bit samples, with the position of its first sample."""
    found = []
    at = pcm.find(MAGIC)
    while at >= 0:
        value = read_stamp(pcm[at : at + STAMP_BYTES]) if at % 2 == 0 else None
        if value is not None:
            found.append((at // 2, value))
        at = pcm.find(MAGIC, at + 1)
    return found


def tone_hz(reply: int, clause: int, voice: int = 0) -> int:
    """The frequency that a clause is said at: 200 to 1,800 Hz.

    Different for the first eight clauses of eight replies in each of five voices; then they
    repeat.
    """
    return TONE_LOWEST_HZ + TONE_STEP_HZ * ((reply * 8 + clause) % TONES) + 5 * (voice % 5)


def tone(hz: int, start: int, samples: int) -> bytes:
    """A soft sine at 24 kHz, in 16-bit samples, from sample `start` of an endless one."""
    period = _period(hz)
    begin = start * 2 % len(period)
    size = samples * 2
    return (period * (2 + size // len(period)))[begin : begin + size]


@lru_cache(maxsize=1024)
def _period(hz: int) -> bytes:
    """The shortest piece that repeats: a whole number of waves in a whole number of samples."""
    length = SPOKEN_RATE // math.gcd(hz, SPOKEN_RATE)
    turn = 2 * math.pi * hz / SPOKEN_RATE
    return array("h", (round(TONE_AMPLITUDE * math.sin(turn * n)) for n in range(length))).tobytes()
