"""Encoded sound between the network and the decoder: packets, and what to do with them."""

from dataclasses import dataclass
from typing import NamedTuple


class AudioPacket(NamedTuple):
    """Numbers don't wrap; `timestamp` and `ticks`, its length, count the stream's RTP clock."""

    sequence: int
    timestamp: int
    payload: bytes
    ticks: int


@dataclass(frozen=True, slots=True)
class Play:
    """Decode this packet."""

    packet: AudioPacket


@dataclass(frozen=True, slots=True)
class Recover:
    """The packet of `ticks` before this one was lost: decode what this one says of it."""

    packet: AudioPacket
    ticks: int


@dataclass(frozen=True, slots=True)
class Conceal:
    """A packet of `ticks` was lost: guess."""

    ticks: int


@dataclass(frozen=True, slots=True)
class Quiet:
    """The sender sent nothing for `ticks`, and meant it."""

    ticks: int


Step = Play | Recover | Conceal | Quiet
