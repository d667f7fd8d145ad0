"""Encoded sound between the network and the decoder: packets, and what to do with them."""

from typing import NamedTuple


class AudioPacket(NamedTuple):
    """Numbers don't wrap; `timestamp` and `ticks`, its length, count the stream's RTP clock."""

    sequence: int
    timestamp: int
    payload: bytes
    ticks: int


class Play(NamedTuple):
    """Decode this packet."""

    packet: AudioPacket


class Recover(NamedTuple):
    """The packet of `ticks` before this one was lost: decode what this one says of it."""

    packet: AudioPacket
    ticks: int


class Conceal(NamedTuple):
    """A packet of `ticks` was lost: guess."""

    ticks: int


class Quiet(NamedTuple):
    """The sender sent nothing for `ticks`, and meant it."""

    ticks: int


Step = Play | Recover | Conceal | Quiet
