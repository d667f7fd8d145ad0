"""A graph and a deployment, resolved once against a machine: what runs where, checked.

Nothing after this decides where anything runs. Errors name the field of the deployment.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from duologue.engines.cores import usable_cores
from duologue.engines.pipeline.deployment import (
    Deployment,
    DeploymentError,
    StageDeployment,
    StageLimits,
    StageSampling,
)
from duologue.engines.pipeline.stage_graph import GRAPHS, Edge, Graph, Stage

MAIN = "main"
"""The process that takes sessions and runs the pipeline."""

MOST_REPLICAS = 64

ANSWER_S = 20.0
"""How long a stage in another process may be silent over a chunk if nothing is said, in seconds."""

ConnectorKind = Literal["in process", "lanes", "cluster"]


@dataclass(frozen=True, slots=True)
class Machine:
    """What there is to run on: cores, and GPUs by the numbers that CUDA gives them."""

    cpus: int
    gpus: tuple[int, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        return ("cpu", *(f"cuda:{number}" for number in self.gpus))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlan:
    """One worker process. ``environment``: what it gets besides the server's variables."""

    number: int
    devices: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """Workers that are alike. ``cpus`` and ``gpus`` are what one counts for in a cluster."""

    name: str
    stages: tuple[str, ...]
    replicas: tuple[ReplicaPlan, ...]
    sessions: int
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """``process``: the name of the one that it runs in; ``limits`` and ``sampling`` hold there."""

    stage: Stage
    process: str
    limits: StageLimits
    sampling: StageSampling


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePlan:
    """``connector``: what carries it. The pipeline is always on one side of one."""

    edge: Edge
    connector: ConnectorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A validated deployment of a graph. ``processes[0]`` is the one of the pipeline."""

    name: str
    graph: Graph
    stages: Mapping[str, StagePlan]
    processes: tuple[ProcessPlan, ...]
    edges: tuple[EdgePlan, ...]

    @property
    def main(self) -> ProcessPlan:
        return self.processes[0]

    @property
    def answer_s(self) -> dict[str, float]:
        """The stages that may only be silent for so long over a chunk, in seconds."""
        limits = {
            name: stage.limits.answer_s or (ANSWER_S if stage.process != self.main.name else None)
            for name, stage in self.stages.items()
        }
        return {name: limit for name, limit in limits.items() if limit is not None}

    @property
    def placed(self) -> tuple[ProcessPlan, ...]:
        """The processes besides the pipeline's."""
        return self.processes[1:]


def find_machine(environ: Mapping[str, str], device_folder: Path = Path("/dev")) -> Machine:
    """This machine, without loading a library: its GPUs by their device files, or by what
    ``CUDA_VISIBLE_DEVICES`` leaves of them. Reads a folder."""
    try:
        names = [path.name for path in device_folder.iterdir()]
    except OSError:
        names = []
    count = sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names)
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        count = min(count, len([part for part in visible.split(",") if part.strip()]))
    return Machine(usable_cores(), tuple(range(count)))


def this_machine() -> Machine:
    """See :func:`find_machine`."""
    return find_machine(os.environ)


def resolve(
    deployment: Deployment,
    machine: Machine,
    *,
    graphs: Mapping[str, Graph] = GRAPHS,
    pipeline: str = "cascade",
    cluster: bool = False,
) -> Plan:
    """The plan of a deployment, of the graph `pipeline` if it names none. `cluster`: the workers
    may be on other machines, whose devices are the cluster's to check.

    Raises DeploymentError.
    """
    named = deployment.pipeline or pipeline
    graph = graphs.get(named)
    if graph is None:
        raise DeploymentError(f"pipeline: there is no {named!r}; there are {', '.join(graphs)}")
    for name in deployment.stages:
        if name not in graph.by_name:
            known = ", ".join(graph.by_name)
            raise DeploymentError(f"stages.{name}: {graph.name} has no such stage; it has {known}")
    wanted = {name: deployment.stages.get(name, StageDeployment()) for name in graph.by_name}
    members: dict[str, list[str]] = {MAIN: []}
    for name, asked in wanted.items():
        process = asked.process or MAIN
        _check_name(f"stages.{name}.process", process)
        if process != MAIN and not graph.by_name[name].movable:
            raise DeploymentError(
                f"stages.{name}.process: {name} runs in {MAIN!r}, where the pipeline is"
            )
        _check_sampling(graph.by_name[name], asked)
        members.setdefault(process, []).append(name)
    if not members[MAIN]:
        raise DeploymentError(f"stages: none is left in {MAIN!r}")
    processes = tuple(
        _process(name, stages, wanted, machine, cluster) for name, stages in members.items()
    )
    if not cluster:
        _check_devices(processes, wanted, machine)
    home = {stage: process.name for process in processes for stage in process.stages}
    across: ConnectorKind = "cluster" if cluster else "lanes"
    edges = tuple(
        EdgePlan(
            edge=edge,
            connector="in process" if home[edge.source] == home[edge.target] else across,
        )
        for edge in graph.edges
    )
    stages = {
        name: StagePlan(
            stage=graph.by_name[name],
            process=home[name],
            limits=asked.limits,
            sampling=asked.sampling,
        )
        for name, asked in wanted.items()
    }
    return Plan(name=deployment.name, graph=graph, stages=stages, processes=processes, edges=edges)


def _check_name(field: str, name: str) -> None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,31}", name):
        raise DeploymentError(f"{field}: {name!r} is not 1 to 32 small letters, digits, - and _")


def _check_sampling(stage: Stage, asked: StageDeployment) -> None:
    for name in asked.sampling.given:
        if name not in stage.sampling:
            raise DeploymentError(f"stages.{stage.name}.sampling.{name}: {stage.name} takes none")


def _process(
    name: str,
    stages: list[str],
    wanted: Mapping[str, StageDeployment],
    machine: Machine,
    cluster: bool,
) -> ProcessPlan:
    replicas, owner = 1, ""
    devices: tuple[str, ...] = ("cpu",)
    device_owner = ""
    environment: dict[str, str] = {}
    for stage in stages:
        asked = wanted[stage]
        if asked.replicas is not None:
            if owner and asked.replicas != replicas:
                raise DeploymentError(
                    f"stages.{stage}.replicas: {asked.replicas}, but {owner} of the same process "
                    f"{name!r} has {replicas}"
                )
            replicas, owner = asked.replicas, stage
        if asked.devices is not None:
            _check_device_names(stage, asked.devices, machine, cluster)
            if device_owner and asked.devices != devices:
                raise DeploymentError(
                    f"stages.{stage}.devices: {', '.join(asked.devices)}, but {device_owner} of "
                    f"the same process {name!r} has {', '.join(devices)}"
                )
            devices, device_owner = asked.devices, stage
        for variable, value in (asked.environment or {}).items():
            if environment.get(variable, value) != value:
                raise DeploymentError(
                    f"stages.{stage}.environment.{variable}: another value than in the same "
                    f"process {name!r}"
                )
            environment[variable] = value
    if replicas > MOST_REPLICAS:
        raise DeploymentError(f"stages.{owner}.replicas: {replicas} is not at most {MOST_REPLICAS}")
    dealt = _deal(devices, replicas, device_owner)
    limits = [wanted[stage].limits for stage in stages]
    gpus = sum(device != "cpu" for device in dealt[0])
    memory = (
        min(1.0, sum(limit.memory for limit in limits)) if len(limits) > 1 else limits[0].memory
    )
    return ProcessPlan(
        name=name,
        stages=tuple(stages),
        replicas=tuple(
            ReplicaPlan(
                number=number,
                devices=own,
                environment=_environment(environment, own, device_owner, cluster),
            )
            for number, own in enumerate(dealt)
        ),
        sessions=min((limit.sessions for limit in limits if limit.sessions), default=0),
        cpus=sum(limit.cpus for limit in limits) or 1.0,
        gpus=gpus * (memory if gpus == 1 else 1.0),
    )


def _environment(
    given: Mapping[str, str], devices: tuple[str, ...], asked_by: str, cluster: bool
) -> Mapping[str, str]:
    """A worker that was given devices sees no others. In a cluster the cluster sees to it."""
    if not asked_by or cluster or "CUDA_VISIBLE_DEVICES" in given:
        return dict(given)
    numbers = [device.partition(":")[2] for device in devices if device != "cpu"]
    return {**given, "CUDA_VISIBLE_DEVICES": ",".join(numbers)}


def _check_device_names(
    stage: str, devices: tuple[str, ...], machine: Machine, cluster: bool
) -> None:
    field = f"stages.{stage}.devices"
    if not devices:
        raise DeploymentError(f"{field}: there is none")
    for device in devices:
        if device != "cpu" and not re.fullmatch(r"cuda:\d+", device):
            raise DeploymentError(f"{field}: {device!r} is neither cpu nor cuda:N")
        if not cluster and device not in machine.devices:
            raise DeploymentError(
                f"{field}: there is no {device}; this machine has {', '.join(machine.devices)}"
            )
    if len(set(devices)) != len(devices):
        twice = next(device for device in devices if devices.count(device) > 1)
        raise DeploymentError(f"{field}: {twice} is there twice")
    if "cpu" in devices and len(devices) > 1:
        raise DeploymentError(f"{field}: cpu beside {devices[1 - devices.index('cpu')]}")


def _deal(devices: tuple[str, ...], replicas: int, stage: str) -> list[tuple[str, ...]]:
    """The devices of each replica: all of a single one, else equal shares."""
    if len(devices) == 1:
        return [devices] * replicas
    each, rest = divmod(len(devices), replicas)
    if rest or not each:
        raise DeploymentError(
            f"stages.{stage}.devices: {len(devices)} can't be dealt to {replicas} replicas"
        )
    return [devices[at * each : (at + 1) * each] for at in range(replicas)]


def _check_devices(
    processes: tuple[ProcessPlan, ...],
    wanted: Mapping[str, StageDeployment],
    machine: Machine,
) -> None:
    """No GPU is taken more than once, counting the shares of its memory."""
    for device in machine.devices[1:]:
        takers: list[tuple[str, float]] = []
        for process in processes:
            count = sum(device in replica.devices for replica in process.replicas)
            asking = [stage for stage in process.stages if wanted[stage].devices is not None]
            if count:
                share = max(wanted[stage].limits.memory for stage in asking)
                takers.append((asking[0], count * share))
        total = sum(share for _, share in takers)
        if total > 1 + 1e-9:
            shown = ", ".join(f"{stage} {share:g}" for stage, share in takers)
            raise DeploymentError(
                f"stages.{takers[-1][0]}.devices: {device} is taken {total:g} times ({shown}); "
                f"limits.memory gives shares"
            )
