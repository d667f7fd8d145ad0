"""Ranks that add up tensors with each other: NCCL between GPUs, gloo between processes on a CPU."""

import os
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

HOST: Final = "127.0.0.1"
LOOPBACK: Final = "lo"
PATIENCE: Final = timedelta(minutes=5)
"""For another rank in one call: kernels are compiled in the first of a kind."""


def open_meeting() -> dist.TCPStore:
    """Where ranks meet; its ``port`` is for the others. The first rank's."""
    return dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False, timeout=PATIENCE)


def find_meeting(port: int) -> dist.TCPStore:
    """Where ranks meet, for those that are not the first."""
    return dist.TCPStore(HOST, port, is_master=False, timeout=PATIENCE)


class RankGroup:
    """See :class:`duologue.models.moshi.ranks.Peers`. One in a process at a time."""

    def __init__(self, meeting: dist.TCPStore, rank: int, ranks: int, device: str) -> None:
        """Waits for all ranks. Raises RuntimeError when one doesn't come."""
        where = torch.device(device)
        if where.type == "cuda":
            torch.cuda.set_device(where)
            dist.init_process_group(
                "nccl",
                store=meeting,
                rank=rank,
                world_size=ranks,
                timeout=PATIENCE,
                device_id=where,
            )
            return
        # Without it, gloo asks for the machine's own name, which not every network knows.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK)
        dist.init_process_group(
            "gloo", store=meeting, rank=rank, world_size=ranks, timeout=PATIENCE
        )

    def share(self, x: Tensor) -> None:
        dist.broadcast(x, src=0)

    def add(self, x: Tensor) -> None:
        dist.all_reduce(x)

    def close(self) -> None:
        """Leave; others can't go on. Idempotent."""
        if dist.is_initialized():
            dist.destroy_process_group()
