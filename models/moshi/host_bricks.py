"""Page-locked host memory for the pages of sessions that rest.

A device copies to and from page-locked memory at the bus' full speed, an H200 some 50 GB/s, and to
fresh memory at a thirtieth of that; but locking it in one piece holds the device up for as long as
that takes. So it is made in bricks, on a thread of its own, bit by bit, before it is needed.
"""

import logging
import mmap
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from time import sleep
from typing import Final
from weakref import finalize

import torch
from torch import Tensor

BRICK_PAGES: Final = 8
LOCKED_BYTES: Final = 2**20
"""Smaller tensors are as quick without."""
REST_S: Final = 0.001
"""Between two locks, each of which may hold the device up for half a millisecond."""

log = logging.getLogger("duologue.engines.worker")

Shapes = tuple[tuple[torch.Size, torch.dtype], ...]
Pin = Callable[[Tensor], None]


class PageLock:
    """Locks tensors' memory, for copies to and from a CUDA device, for as long as the process
    lives. Where memory can't be locked, copies are slower."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._locks = True

    def __call__(self, tensor: Tensor) -> None:
        if not self._locks or tensor.nbytes < LOCKED_BYTES:
            return
        with torch.cuda.device(self._device):
            runtime = torch.cuda.cudart()
            error = runtime.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0)
            if error != runtime.cudaError.success:
                self._locks = False
                log.warning("memory of sessions that rest can't be locked: %s", error)
                # The error waits for whoever asks next, and is not theirs.
                with suppress(RuntimeError):
                    torch.zeros(1, device=self._device)


class Brick:
    """Host tensors ``[BRICK_PAGES, ...]``, one for each of what pages consist of."""

    def __init__(self, shapes: Shapes, pin: Pin, rest_s: float = 0.0) -> None:
        self.tensors: list[Tensor] = []
        for size, dtype in shapes:
            # Mapped, as locks are of whole pages, which nothing else may be in.
            memory = mmap.mmap(-1, BRICK_PAGES * prod(size) * dtype.itemsize)
            made = torch.frombuffer(memory, dtype=dtype).view(BRICK_PAGES, *size)
            made.view(torch.uint8).zero_()  # or it would not be there yet
            pin(made)
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
    """Bricks for pages that consist of ``shapes``, see :func:`shapes_of`.

    ``spare``: pages for which there are always bricks ahead, if memory is made fast enough; where
    it is not, who asks waits while they are made. Bricks are never fewer again: as many as were
    held at once, and the spare ones.
    """

    def __init__(self, shapes: Shapes, spare: int, pin: Pin) -> None:
        self._shapes = shapes
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
        """Make no more ahead. Idempotent."""
        self._closing = True
        self._wanted.set()
        self._thread.join()

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


def shapes_of(paged: Sequence[Tensor]) -> Shapes:
    """Of tensors whose first dimension is the page."""
    return tuple((tensor.shape[1:], tensor.dtype) for tensor in paged)


_shared: dict[tuple[torch.device, Shapes], HostBricks] = {}


def locked_bricks(paged: Sequence[Tensor], spare: int) -> HostBricks:
    """The process' bricks for pages on a CUDA device. They stay: an address that was locked and is
    free again may be one that the device's driver wants for itself."""
    device, shapes = paged[0].device, shapes_of(paged)
    if (device, shapes) not in _shared:
        _shared[device, shapes] = HostBricks(shapes, spare, PageLock(device))
    return _shared[device, shapes]
