"""Redundant audio: taken apart as it was put together, and cut off anywhere."""

import pytest
from hypothesis import given, strategies as st

from duologue.codecs.media import MalformedDataError
from duologue.codecs.red import MAX_BLOCKS, Block, build_red, split_red

blocks = st.builds(
    Block, st.integers(0, 127), st.integers(1, (1 << 14) - 1), st.binary(min_size=1, max_size=200)
)


@given(st.lists(blocks, max_size=5), st.binary(max_size=200))
def test_what_was_put_together_is_taken_apart(older: list[Block], newest: bytes) -> None:
    packet = [*older, Block(111, 0, newest)]
    assert split_red(build_red(packet)) == packet


@given(st.binary(max_size=60))
def test_any_bytes_are_split_or_refused(payload: bytes) -> None:
    try:
        parts = split_red(payload)
    except MalformedDataError:
        return
    assert sum(len(part.payload) for part in parts) < len(payload)


def test_an_empty_redundant_block_is_left_out() -> None:
    packet = build_red([Block(111, 960, b""), Block(111, 0, b"now")])
    assert split_red(packet) == [Block(111, 0, b"now")]


def test_a_packet_of_nothing_but_headers_is_refused() -> None:
    whole = build_red([Block(111, 960, b"before"), Block(111, 0, b"now")])
    for end in (0, 1, 3, 4, 8):
        with pytest.raises(MalformedDataError):
            split_red(whole[:end])
    with pytest.raises(MalformedDataError):
        split_red(bytes([0xEF, 0, 0, 0]) * (MAX_BLOCKS + 1) + b"\x6f")


def test_blocks_that_do_not_fit_are_not_built() -> None:
    with pytest.raises(MalformedDataError):
        build_red([Block(111, 1 << 14, b"old"), Block(111, 0, b"")])
    with pytest.raises(MalformedDataError):
        build_red([Block(111, 960, bytes(1 << 10)), Block(111, 0, b"")])
