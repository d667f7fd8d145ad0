"""Those that keep the workers running, here or in a cluster, and the engines that reach them."""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from duologue.engines.lifeline import WorkerConfig
from duologue.engines.pipeline.plan import Plan
from duologue.engines.remote import RemoteEngine
from duologue.engines.supervisor import SupervisionRules, Supervisor
from duologue.web.deployment_setup import Workforce, workforce
from duologue.web.duplex_setup import recognizers
from duologue.web.language_setup import ready_seconds
from duologue.web.settings import Settings, SettingsError
from duologue.web.worker_figures import Watched


class Keeper(Watched, Protocol):
    """Keeps one worker running."""

    @property
    def last_fault(self) -> str:
        """Why it was started again the last time; "" when it was not."""

    async def run(self) -> None:
        """Until cancelled; then nothing is left of the worker."""


@dataclass(frozen=True, slots=True)
class Crew:
    """``remotes``: one for each worker that takes sessions. ``scribes``: the recognisers' beside
    them."""

    keepers: Sequence[Keeper]
    remotes: Sequence[RemoteEngine]
    scribes: Sequence[RemoteEngine] = ()


def join(settings: Settings) -> str:
    """Join the cluster that the settings name; its address, "" where they name none. Blocks.

    Raises SettingsError.
    """
    if settings.cluster is None:
        return ""
    if importlib.util.find_spec("ray") is None:
        raise SettingsError("cluster needs ray: pip install 'duologue[cluster]'")
    from duologue.engines.cluster.ray_impl import (
        ClusterUnreachable,
        cluster_address,
        join_cluster,
    )

    try:
        join_cluster(settings.cluster)
    except ClusterUnreachable as error:
        raise SettingsError(f"cluster: there is none at {error}") from None
    return cluster_address()


def hire(settings: Settings, plan: Plan, config: WorkerConfig) -> Callable[[], Crew]:
    """What makes the crew once the event loop runs. Joins a cluster, so it blocks.

    Raises SettingsError.
    """
    workers = workforce(plan, config, join(settings), recognizers(settings))
    rules = SupervisionRules(ready_s=ready_seconds(settings))
    return lambda: crew(settings, plan, workers, rules)


def crew(settings: Settings, plan: Plan, workforce: Workforce, rules: SupervisionRules) -> Crew:
    """One keeper for each worker; in a cluster that has been joined, if the settings name one."""
    if settings.cluster is None:
        supervisors = [Supervisor(config, rules) for config in workforce.all]
        remotes = [RemoteEngine(one.directory) for one in supervisors]
        return Crew(
            supervisors,
            remotes[: len(workforce.main)],
            remotes[len(remotes) - len(workforce.scribes) :],
        )
    from duologue.engines.cluster.ray_impl import RayWorker
    from duologue.engines.cluster.ray_stage_impl import RayStage

    stages = [
        RayStage(config, rules, cpus=process.cpus, gpus=process.gpus)
        for process, config in zip(
            [process for process in plan.placed for _ in process.replicas],
            workforce.stages,
            strict=True,
        )
    ]
    workers = [
        RayWorker(config, rules, cpus=plan.main.cpus, gpus=plan.main.gpus)
        for config in workforce.main
    ]
    scribes = [RayWorker(config, rules, cpus=1, gpus=0) for config in workforce.scribes]
    return Crew(
        [*workers, *stages, *scribes],
        [RemoteEngine(Path(one.name), dial=one.dial) for one in workers],
        [RemoteEngine(Path(one.name), dial=one.dial) for one in scribes],
    )
