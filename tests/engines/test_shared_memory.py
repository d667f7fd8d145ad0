import errno
import gc
import os
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, strategies as st

from duologue.engines.shared_memory import IncomingMemory, OutgoingMemory

SIZE = 64 * 1024


@pytest.fixture
def memory() -> Iterator[OutgoingMemory]:
    made = OutgoingMemory(SIZE)
    yield made
    made.close()


def other_end(memory: OutgoingMemory) -> IncomingMemory:
    return IncomingMemory(os.dup(memory.descriptor), memory.size)


def read(incoming: IncomingMemory, offset: int | None, size: int) -> bytes:
    assert offset is not None
    with incoming.view(offset, size) as view:
        return bytes(view)


def test_what_is_put_at_one_end_is_seen_at_the_other(memory: OutgoingMemory) -> None:
    with closing(other_end(memory)) as incoming:
        first, second = memory.put(b"first"), memory.put(b"second")
        assert read(incoming, first, 5) == b"first"
        assert read(incoming, second, 6) == b"second"


def test_a_block_without_room_is_not_put(memory: OutgoingMemory) -> None:
    assert memory.put(bytes(SIZE + 1)) is None
    assert memory.put(bytes(SIZE)) == 0
    assert memory.put(b"x") is None
    memory.take_back(1)
    assert memory.put(b"x") == 0


def test_blocks_go_round_the_ring(memory: OutgoingMemory) -> None:
    third = SIZE // 3
    offsets = [memory.put(bytes(third)) for _ in range(3)]
    assert memory.put(bytes(third)) is None
    memory.take_back(1)
    assert memory.put(bytes(third)) == offsets[0]
    assert memory.put(bytes(third)) is None


@given(st.lists(st.one_of(st.integers(1, 30_000), st.none()), max_size=60))
def test_no_block_is_overwritten_before_it_was_given_back(steps: list[int | None]) -> None:
    """A number puts so many bytes, None reads the oldest block and gives it back."""
    with closing(OutgoingMemory(SIZE)) as memory, closing(other_end(memory)) as incoming:
        waiting: list[tuple[int, bytes]] = []
        for number, step in enumerate(steps):
            if step is not None:
                data = number.to_bytes(2, "big") * (step // 2 + 1)
                offset = memory.put(data)
                if offset is not None:
                    waiting.append((offset, data))
            elif waiting:
                offset, data = waiting.pop(0)
                assert read(incoming, offset, len(data)) == data
                memory.take_back(1)
        for offset, data in waiting:
            assert read(incoming, offset, len(data)) == data
        assert memory.blocks == len(waiting)


def test_more_can_not_be_given_back_than_was_put(memory: OutgoingMemory) -> None:
    memory.put(b"x")
    with pytest.raises(ValueError, match="2 blocks"):
        memory.take_back(2)


@pytest.mark.parametrize(("offset", "size"), [(-1, 5), (0, SIZE + 1), (SIZE, 1), (5, -1)])
def test_a_block_outside_is_refused(memory: OutgoingMemory, offset: int, size: int) -> None:
    with closing(other_end(memory)) as incoming, pytest.raises(ValueError, match="outside"):
        incoming.view(offset, size)


def test_memory_that_could_shrink_under_the_reader_is_refused() -> None:
    descriptor = os.memfd_create("loose")
    os.ftruncate(descriptor, SIZE)
    with pytest.raises(OSError, match="may change its size"):
        IncomingMemory(descriptor, SIZE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_pages_that_can_not_be_had_are_no_room(
    memory: OutgoingMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert memory.put(b"x") is None
    assert memory.blocks == 0


def test_a_descriptor_that_can_not_be_had_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        OutgoingMemory(SIZE)


def test_nothing_is_left_when_both_ends_are_closed() -> None:
    before = mapped()
    memory = OutgoingMemory(SIZE)
    incoming = other_end(memory)
    assert mapped() > before
    for end in (memory, incoming, memory, incoming):
        end.close()
    gc.collect()
    assert mapped() == before


def mapped() -> int:
    """How many files of ours and mappings are shared memory."""
    with open("/proc/self/maps") as maps:
        count = sum("memfd:duologue" in line for line in maps)
    for name in os.listdir("/proc/self/fd"):
        try:
            count += "memfd:duologue" in os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return count
