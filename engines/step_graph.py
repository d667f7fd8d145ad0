"""A step as a CUDA graph."""

from collections.abc import Callable
from typing import cast

import torch

Run = Callable[[], None]

WARM_RUNS = 2
"""Before the capture: kernels are compiled and libraries set up outside of it."""


def capture(run: Run, *, with_peers: bool) -> Run:
    """What runs the work again, on a CUDA device. ``run`` is called :data:`WARM_RUNS` times and
    once for the capture, so its tensors must say meanwhile that nobody moves.

    ``with_peers``: it has calls to other ranks, which have to capture theirs at the same time. A
    thread of NCCL's asks the device after such calls, which must not spoil the capture.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    mode = "thread_local" if with_peers else "global"
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=True):
        with torch.cuda.stream(side):
            for _ in range(WARM_RUNS):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode=mode):
            run()
    return cast(Run, graph.replay)
