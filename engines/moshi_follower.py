"""A rank of a Moshi that is not the first: its heads of every layer, and nothing else.

Started as ``python -m duologue.engines.moshi_follower`` by :mod:`duologue.engines.moshi_crew`. It
ends when standard input does; when it can't end in order, as it waits for another rank, it exits
without, so it never outlives its parent.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import torch

from duologue.engines.frames import FrameReader, FrameWriter
from duologue.engines.moshi_orders import (
    ORDER_BYTES,
    Change,
    ClearSlot,
    CopySlot,
    Failed,
    Follow,
    FollowerReport,
    Forget,
    KeepSlot,
    Meet,
    Order,
    Ready,
    RestoreSlot,
    StepSlots,
)
from duologue.engines.rank_group import RankGroup, find_meeting
from duologue.engines.settled_heap import settle_heap
from duologue.engines.step_graph import Run, capture
from duologue.models.moshi.checkpoint import load_temporal_part, read_checkpoint
from duologue.models.moshi.host_bricks import locked_bricks
from duologue.models.moshi.streaming_state import SavedPart
from duologue.models.moshi.tensor_shards import Shard
from duologue.models.moshi.transformer import TemporalTransformer

END_S = 2.0
"""From the end of the orders to an end without order."""

FORCED_EXIT = 70
_READ_BYTES = 65536


class Follower:
    """One rank's slots. ``part`` has joined the others; ``graphs``: steps are captured."""

    def __init__(
        self,
        part: TemporalTransformer,
        told: Follow,
        kv_dtype: torch.dtype | None,
        graphs: bool,
    ) -> None:
        self._part = part
        self._slots = told.slots
        self._graphs = graphs
        self.state = part.new_state(told.slots, kv_dtype, told.pages)
        if self.state.offset.is_cuda:
            each, _ = part.ring_pages
            self.state.bricks = locked_bricks(self.state.paged(), spare=each)
        norm = next(part.layers[0].norm1.parameters())
        self._device = norm.device
        self._x = torch.zeros(
            told.slots, part.config.d_model, dtype=norm.dtype, device=self._device
        )
        pinned = self._device.type == "cuda"
        self._host = torch.zeros(told.slots, 3, dtype=torch.int64, pin_memory=pinned)
        self._sent = torch.zeros_like(self._host, device=self._device)
        self._runs: dict[int, Run] = {}
        self._kept: dict[int, list[SavedPart]] = {}

    def obey(self, change: Change) -> None:
        match change:
            case StepSlots(size, told):
                self._step(size, told)
            case ClearSlot(slot):
                slots = torch.zeros(self._slots, dtype=torch.bool, device=self._device)
                slots[slot] = True
                self.state.reset(slots)
            case CopySlot(source, target, pages):
                self._hold(target, pages)
                self.state.copy_slot(source, target)
            case KeepSlot(slot, number):
                self._kept[number] = self.state.save(slot)
            case RestoreSlot(slot, number, pages):
                self._hold(slot, pages)
                self.state.restore(slot, self._kept[number])
            case Forget(numbers):
                for number in numbers:
                    del self._kept[number]

    def _hold(self, slot: int, pages: tuple[int, ...]) -> None:
        held = torch.tensor(pages, dtype=torch.int64)
        self.state.table[slot, : len(pages)].copy_(held)

    def _step(self, size: int, told: bytes) -> None:
        self._host[:size].numpy()[:] = np.frombuffer(told, np.int64).reshape(size, 3)
        self._sent[:size].copy_(self._host[:size], non_blocking=True)
        if size not in self._runs:
            self._runs[size] = self._captured(size)
        self._runs[size]()
        if self._device.type == "cuda":
            # What is on its way is not written over by the next order.
            torch.cuda.current_stream().synchronize()

    def _captured(self, size: int) -> Run:
        state = self.state.first(size)

        def run() -> None:
            active, pages, rings = self._sent[:size].unbind(1)
            state.ring.copy_(rings)
            state.give(pages)
            self._part(self._x[:size], state, active > 0)

        if not self._graphs:
            return run
        kept = self._sent[:size].clone()
        self._sent[:size] = torch.tensor([0, -1, self.state.places], device=self._device)
        captured = capture(run, with_peers=True)
        self._sent[:size] = kept
        return captured


class Orders:
    """The orders on a descriptor, and what is said on another one."""

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink
        self._ended = threading.Event()

    def read(self) -> Iterator[Order]:
        """Until the parent is gone, or has no more."""
        reader = FrameReader(ORDER_BYTES)
        decoder = msgspec.msgpack.Decoder(list[Order])
        while data := os.read(self._source, _READ_BYTES):
            for payload in reader.feed(data):
                yield from decoder.decode(payload)

    def report(self, report: FollowerReport) -> None:
        """Raises BrokenPipeError when the parent is gone."""
        writer = FrameWriter(ORDER_BYTES)
        writer.put(report)
        os.write(self._sink, writer.take())

    def guard(self) -> None:
        """Exit some time after the orders' end, even when another rank never answers."""

        def wait() -> None:
            hangup = select.poll()
            hangup.register(self._source, 0)
            hangup.poll()
            if not self._ended.wait(END_S):
                os._exit(FORCED_EXIT)

        threading.Thread(target=wait, name="orders", daemon=True).start()

    def finish(self) -> None:
        """The process is ending by itself."""
        self._ended.set()


def follow(orders: Orders) -> None:
    """Load what is told, meet the others, and do as the first rank does until it is gone."""
    incoming = orders.read()
    told = next(incoming, None)
    if told is None:
        return
    assert isinstance(told, Follow)
    part = load_temporal_part(
        read_checkpoint(Path(told.folder)),
        told.device,
        getattr(torch, told.dtype),
        shard=Shard(told.rank, told.ranks),
        narrow=told.weights or None,
    )
    orders.report(Ready())
    meet = next(incoming, None)
    if meet is None:
        return
    assert isinstance(meet, Meet)
    group = RankGroup(find_meeting(meet.port), told.rank, told.ranks, told.device)
    part.join(group)
    if meet.graphs:
        # Triton is not there without a CUDA device.
        from duologue.models.moshi.fused_language import fuse_temporal

        fuse_temporal(part)
    kv_dtype = getattr(torch, told.kv_dtype) if told.kv_dtype else None
    follower = Follower(part, told, kv_dtype, meet.graphs)
    # All ranks wait for each other: where one is held up, the whole tick is.
    settle_heap()
    for order in incoming:
        assert not isinstance(order, Follow | Meet)
        follower.obey(order)


def main() -> int:
    """Run a rank; the exit status is 0 when the first rank has ended in order."""
    # Any may be for all processes of the server; the first rank decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    source, sink = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    os.dup2(2, 1)  # what libraries print goes to the log
    orders = Orders(source, sink)
    orders.guard()
    try:
        follow(orders)
    except Exception as error:
        with suppress(BrokenPipeError):
            orders.report(Failed(f"{type(error).__name__}: {error}"))
        return 1
    finally:
        orders.finish()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # A group whose other ranks are gone would be waited for.
    os._exit(status)
