"""What goes through a stream of bytes: messages, many in one piece."""

import msgspec
import pytest
from hypothesis import given, strategies as st

from duologue.engines.engine import (
    Hear,
)
from duologue.engines.frames import (
    FrameReader,
    FrameWriter,
    LaneBroken,
    MessageTooLarge,
)
from duologue.engines.lanes import (
    Hello,
)
from tests.engines.wire import framed


@given(st.lists(st.binary(max_size=40)), st.lists(st.integers(1, 17), min_size=1))
def test_frames_survive_being_cut_anywhere(payloads: list[bytes], cuts: list[int]) -> None:
    data = b"".join(framed(payload) for payload in payloads)
    reader = FrameReader(64)
    found, at, turn = [], 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        found += reader.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert found == payloads


def test_a_frame_over_the_limit_is_refused_before_it_has_come() -> None:
    with pytest.raises(LaneBroken, match="65 bytes"):
        FrameReader(64).feed((65).to_bytes(4, "big"))


def test_messages_that_are_queued_together_leave_in_one_frame() -> None:
    writer = FrameWriter(1000)
    messages = [Hello("a"), Hello("b"), Hello("c")]
    for message in messages:
        writer.put(message)
    (payload,) = FrameReader(1000).feed(bytes(writer.take()))
    assert msgspec.msgpack.decode(payload, type=list[Hello]) == messages
    assert writer.take() == b""
    assert writer.queued_bytes == 0


def test_a_message_that_no_frame_can_hold_leaves_the_others_alone() -> None:
    writer = FrameWriter(1000)
    writer.put(Hello("a"))
    with pytest.raises(MessageTooLarge, match="Hello of"):
        writer.put(Hello("b" * 1000))
    writer.put(Hello("c"))
    (payload,) = FrameReader(1000).feed(bytes(writer.take()))
    assert msgspec.msgpack.decode(payload, type=list[Hello]) == [Hello("a"), Hello("c")]


def test_a_long_queue_is_cut_into_frames_that_keep_its_order() -> None:
    writer = FrameWriter(2**20)
    heard = [Hear("u", n, bytes(50_000), session="s") for n in range(20)]
    for hear in heard:
        writer.put(hear)
    assert writer.queued_bytes > 20 * 50_000
    reader = FrameReader(2**20)
    frames = []
    while frame := writer.take():
        frames += reader.feed(bytes(frame))
    assert len(frames) > 1
    decoded = [
        hear for payload in frames for hear in msgspec.msgpack.decode(payload, type=list[Hear])
    ]
    assert decoded == heard
