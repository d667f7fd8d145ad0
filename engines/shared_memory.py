"""Memory that two processes share without a name: what is large needn't pass through a socket.

The sender makes a memfd (memfd_create(2)) and hands its descriptor over the socket. It is in no
file system, so there is nothing to clean up: the kernel frees it when both processes have let go
of it, however they ended. It is sealed against a change of its size, so that no mapping of it can
be cut off (SIGBUS).

The memory is a ring of blocks that are given back in the order in which they were put. A block
that finds no room is not waited for: the message then goes through the socket.
"""

import fcntl
import mmap
import os
from collections import deque

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_ALIGNMENT = 64
"""Blocks begin at a cache line, in bytes."""


class OutgoingMemory:
    """The sender's end: the only one that writes."""

    def __init__(self, size: int) -> None:
        """Raises OSError when there is no memory, address space or descriptor to be had."""
        self.size = size
        self.descriptor = os.memfd_create("duologue", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.descriptor, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)
            self._map = mmap.mmap(self.descriptor, size)
        except (OSError, ValueError) as error:
            os.close(self.descriptor)
            raise OSError(f"no shared memory of {size} bytes: {error}") from error
        self._backed = 0
        self._head = 0
        self._blocks: deque[tuple[int, int]] = deque()

    @property
    def blocks(self) -> int:
        """Blocks that have not been given back."""
        return len(self._blocks)

    def put(self, data: bytes | bytearray | memoryview) -> int | None:
        """Copy `data` into the ring; its offset, or ``None`` when there is no room now."""
        size = len(data)
        start = self._room(size)
        if start is None or not self._back(start + size):
            return None
        self._map[start : start + size] = data
        self._blocks.append((start, start + size))
        self._head = -(-(start + size) // _ALIGNMENT) * _ALIGNMENT
        return start

    def take_back(self, count: int) -> None:
        """The oldest `count` blocks have been read. Raises ValueError when there are fewer."""
        if not 0 <= count <= len(self._blocks):
            raise ValueError(f"{count} blocks given back of {len(self._blocks)}")
        for _ in range(count):
            self._blocks.popleft()

    def close(self) -> None:
        """Let go of it. Idempotent."""
        if not self._map.closed:
            self._map.close()
            os.close(self.descriptor)

    def _room(self, size: int) -> int | None:
        if not self._blocks:
            # From the beginning again: pages that were used once are there already.
            return 0 if size <= self.size else None
        tail = self._blocks[0][0]
        newest = self._blocks[-1][0]
        if newest >= tail:
            if self._head + size <= self.size:
                return self._head
            return 0 if size <= tail else None
        return self._head if self._head + size <= tail else None

    def _back(self, end: int) -> bool:
        """See to it that there are pages up to `end`: writing to one that can't be had kills."""
        if end > self._backed:
            try:
                os.posix_fallocate(self.descriptor, self._backed, end - self._backed)
            except OSError:
                return False
            self._backed = end
        return True


class IncomingMemory:
    """The receiver's end: it only reads."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Takes the descriptor over. Raises OSError when it can't be mapped, or may shrink."""
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            if seals & _SEALS != _SEALS or os.fstat(descriptor).st_size != size:
                raise OSError("shared memory that may change its size")
            self._map = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        except ValueError as error:
            raise OSError(f"no shared memory of {size} bytes: {error}") from error
        finally:
            os.close(descriptor)

    def view(self, offset: int, size: int) -> memoryview:
        """A block, without a copy: to be released before it is given back.

        Raises ValueError for one that is not inside.
        """
        if not 0 <= offset <= offset + size <= len(self._map):
            raise ValueError(f"a block at {offset} of {size} bytes, outside of the memory")
        with memoryview(self._map) as whole:
            return whole[offset : offset + size]

    def close(self) -> None:
        """Let go of it. Idempotent."""
        self._map.close()
