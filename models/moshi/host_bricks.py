"""Page-locked host memory for the pages of sessions that rest.

A device copies to and from page-locked memory at the bus' full speed, an H200 some 50 GB/s, and to
fresh memory at a thirtieth of that; but locking it in one piece holds the device up for as long as
that takes. So it is made in bricks, on a thread of its own, bit by bit, before it is needed.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import sleep
from typing import Final
from weakref import finalize

import torch
from torch import Tensor

BRICK_PAGES: Final = 8
LOCKED_BYTES: Final = 2**20
"""Smaller tensors share memory pages with others, and are as quick without."""
REST_S: Final = 0.001
"""Between two locks, each of which may hold the device up for a millisecond."""

_Shape = tuple[torch.Size, torch.dtype]
Release = Callable[[], None]
Pin = Callable[[Tensor], Release]


def page_lock(tensor: Tensor) -> Release:
    """Lock a tensor's memory, until what is returned is called. What can't be locked is slower."""
    begin, size = tensor.data_ptr(), tensor.nbytes
    if size < LOCKED_BYTES or torch.cuda.cudart().cudaHostRegister(begin, size, 0):
        return lambda: None
    return lambda: torch.cuda.cudart().cudaHostUnregister(begin)


class Brick:
    """Host tensors ``[BRICK_PAGES, ...]``, one for each of what pages consist of."""

    def __init__(self, shapes: Sequence[_Shape], pin: Pin, rest_s: float = 0.0) -> None:
        self.tensors: list[Tensor] = []
        for size, dtype in shapes:
            # Written to, or its memory would not be there yet.
            made = torch.zeros(BRICK_PAGES, *size, dtype=dtype)
            finalize(self, pin(made)).atexit = False
            self.tensors.append(made)
            if rest_s and made.nbytes >= LOCKED_BYTES:
                sleep(rest_s)


class KeptPages:
    """Some pages' content in host memory. ``contents``: for each of what pages consist of, tensors
    ``[some pages, ...]`` that have all pages together."""

    def __init__(self, contents: Sequence[Sequence[Tensor]]) -> None:
        self.contents = contents


def fresh_pages(like: Sequence[Tensor], pages: int) -> KeptPages:
    """Room for so many pages, of its own."""
    return KeptPages([[torch.empty(pages, *one.shape[1:], dtype=one.dtype)] for one in like])


class HostBricks:
    """Bricks for pages of ``like``, tensors whose first dimension is the page.

    ``spare``: pages for which there are always bricks ahead, if memory is made fast enough; where
    it is not, who asks waits while they are made. Bricks are never fewer again: as many as were
    held at once, and the spare ones.
    """

    def __init__(self, like: Sequence[Tensor], spare: int, pin: Pin = page_lock) -> None:
        # Of the tensors themselves nothing is kept: they are much of a device's memory.
        self._shapes = [(tensor.shape[1:], tensor.dtype) for tensor in like]
        self._pin = pin
        self._spare = bricks_for(spare)
        # Given back by whoever drops a reference, in the middle of anything: no lock is taken.
        self._free: deque[Brick] = deque()
        self._wanted = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._make_ahead, name="bricks", daemon=True)
        self._wanted.set()
        self._thread.start()

    def hold(self, pages: int) -> KeptPages:
        """Room for so many pages. Its bricks are free again when nobody refers to it any more."""
        bricks = [self._taken() for _ in range(bricks_for(pages))]
        left = [pages - BRICK_PAGES * number for number in range(len(bricks))]
        kept = KeptPages(
            [
                [brick.tensors[index][:some] for brick, some in zip(bricks, left, strict=True)]
                for index in range(len(self._shapes))
            ]
        )
        finalize(kept, self._free.extend, bricks).atexit = False
        self._wanted.set()
        return kept

    def close(self) -> None:
        """Make no more ahead. Idempotent; may be called from anywhere."""
        self._closing = True
        self._wanted.set()

    @property
    def free(self) -> int:
        """Bricks that nobody holds."""
        return len(self._free)

    def _taken(self) -> Brick:
        try:
            return self._free.popleft()
        except IndexError:
            return Brick(self._shapes, self._pin)

    def _make_ahead(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            while not self._closing and len(self._free) < self._spare:
                self._free.append(Brick(self._shapes, self._pin, REST_S))
            if self._closing:
                return


def bricks_for(pages: int) -> int:
    return -(-pages // BRICK_PAGES)
