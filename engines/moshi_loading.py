"""A Moshi-family checkpoint's networks, on one device or on several ranks, and their stepper."""

import atexit
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import torch

from duologue.engines.moshi_crew import FollowerCrew, end_worker
from duologue.engines.moshi_impl import MoshiStepper
from duologue.engines.moshi_options import MoshiOptions
from duologue.engines.moshi_orders import Follow
from duologue.engines.rank_group import RankGroup, open_meeting
from duologue.models.moshi.checkpoint import (
    Checkpoint,
    load_language_model,
    load_mimi,
    shared_out,
)
from duologue.models.moshi.duplex_network import DuplexNetwork
from duologue.models.moshi.kyutai_layout import UnsupportedCheckpoint
from duologue.models.moshi.moshi_config import MoshiConfig
from duologue.models.moshi.paged_kv import ring_pages
from duologue.models.moshi.tensor_shards import Shard

_DTYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8": torch.float8_e4m3fn,
}
_TORCH_NAMES: Final = {"float8": "float8_e4m3fn"}


def load_stepper(
    options: MoshiOptions, checkpoint: Checkpoint, lost: Callable[[str], None] = end_worker
) -> tuple[DuplexNetwork, MoshiStepper]:
    """Load what is in a checkpoint; blocks, for minutes where it is large. ``lost``: see
    :class:`duologue.engines.moshi_crew.FollowerCrew`.

    Raises UnsupportedCheckpoint, RuntimeError for a device that is not there or a rank that fails.
    """
    devices = _devices(options)
    device = devices[0]
    if checkpoint.language is None:
        raise UnsupportedCheckpoint(f"{options.folder} has a codec and no language model")
    number = options.dtype or ("bfloat16" if device.startswith("cuda") else "float32")
    crew = _start_crew(options, checkpoint.language, devices, number, lost)
    language = load_language_model(
        checkpoint,
        device,
        _DTYPES[number],
        shard=Shard(0, len(devices)),
        narrow=options.weights or None,
    )
    network = DuplexNetwork(language, load_mimi(checkpoint, device))
    if crew is not None:
        _meet(crew, network, device)
    kv_dtype = _DTYPES[options.kv_dtype] if options.kv_dtype else None
    return network, MoshiStepper(network, options.limits.slots, kv_dtype, crew=crew)


def _devices(options: MoshiOptions) -> list[str]:
    """One for each rank. Raises RuntimeError where they are not there."""
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    name, ranks = options.device or ("cuda" if there else "cpu"), options.tensor_parallel
    if name.startswith("cuda") and not there:
        raise RuntimeError(f"device {name}: torch sees no CUDA device")
    if ranks == 1:
        return [name]
    if name == "cpu":
        return [name] * ranks
    if name != "cuda":
        raise RuntimeError(f"moshi_device: {name} is no {ranks} devices; cuda or cpu would be")
    if ranks > there:
        raise RuntimeError(f"moshi_tensor_parallel is {ranks}, but torch sees {there} devices")
    return [f"cuda:{rank}" for rank in range(ranks)]


def _start_crew(
    options: MoshiOptions,
    config: MoshiConfig,
    devices: Sequence[str],
    number: str,
    lost: Callable[[str], None],
) -> FollowerCrew | None:
    """Let the other ranks load. Raises UnsupportedCheckpoint where it does not split so."""
    ranks = len(devices)
    if ranks == 1:
        return None
    try:
        shared_out(config, ranks)
    except UnsupportedCheckpoint as error:
        raise UnsupportedCheckpoint(f"moshi_tensor_parallel: {error}") from error
    kv_number = _TORCH_NAMES.get(options.kv_dtype, options.kv_dtype)
    orders = [
        Follow(
            folder=options.folder,
            rank=rank,
            ranks=ranks,
            device=devices[rank],
            dtype=number,
            kv_dtype=kv_number,
            weights=options.weights,
            slots=options.limits.slots,
            pages=options.limits.slots * ring_pages(config.temporal.context)[0],
        )
        for rank in range(1, ranks)
    ]
    crew = FollowerCrew(orders, lost)
    atexit.register(crew.close)
    return crew


def _meet(crew: FollowerCrew, network: DuplexNetwork, device: str) -> None:
    """Join the other ranks, once they have loaded. Raises CrewLost where one could not."""
    crew.wait_ready()
    graphs = device.startswith("cuda")
    if graphs:
        # Triton is not there without a CUDA device.
        from duologue.models.moshi.fused_language import can_fuse

        graphs = can_fuse(network.language.config)
    meeting = open_meeting()
    crew.meet(meeting.port, graphs)
    group = RankGroup(meeting, 0, 1 + len(crew.followers), device)
    network.language.transformer.join(group)
