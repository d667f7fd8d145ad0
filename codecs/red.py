"""Redundant audio (RFC 2198): a packet that carries its predecessors again."""

from typing import NamedTuple

from duologue.codecs.media import MalformedDataError

MAX_BLOCKS = 16
"""More than anybody sends; bounds the work that one packet can ask for."""


class Block(NamedTuple):
    payload_type: int
    timestamp_offset: int
    """Ticks before the packet's own timestamp; 0 for the primary."""
    payload: bytes


def split_red(payload: bytes) -> list[Block]:
    """Its blocks, oldest first; the last is the primary. Empty redundant ones are left out.

    MalformedDataError if the headers or the lengths in them reach beyond the payload.
    """
    headers: list[tuple[int, int, int]] = []
    at = 0
    while True:
        if at >= len(payload):
            raise MalformedDataError("redundant audio without a primary")
        if payload[at] < 0x80:
            primary = payload[at]
            at += 1
            break
        if at + 4 > len(payload) or len(headers) == MAX_BLOCKS:
            raise MalformedDataError("redundant audio with headers cut off, or too many")
        word = int.from_bytes(payload[at : at + 4], "big")
        headers.append((word >> 24 & 0x7F, word >> 10 & 0x3FFF, word & 0x3FF))
        at += 4
    blocks: list[Block] = []
    for payload_type, offset, length in headers:
        if at + length > len(payload):
            raise MalformedDataError("a block of redundant audio is cut off")
        if length:
            blocks.append(Block(payload_type, offset, payload[at : at + length]))
        at += length
    blocks.append(Block(primary, 0, payload[at:]))
    return blocks


def build_red(blocks: list[Block]) -> bytes:
    """The inverse: oldest first, the last is the primary. MalformedDataError if one is too old or
    too long for its header."""
    headers = bytearray()
    for block in blocks[:-1]:
        if not 0 <= block.timestamp_offset < 1 << 14 or len(block.payload) >= 1 << 10:
            raise MalformedDataError("a redundant block does not fit its header")
        word = 1 << 31 | block.payload_type << 24 | block.timestamp_offset << 10
        headers += (word | len(block.payload)).to_bytes(4, "big")
    headers.append(blocks[-1].payload_type)
    return bytes(headers) + b"".join(block.payload for block in blocks)
