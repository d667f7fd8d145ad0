"""Which worker processes the settings and the deployment ask for, and what each is told."""

import secrets
from dataclasses import dataclass
from typing import Final

import msgspec

from duologue.engines.cascade import CascadeConfig
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.pipeline.deployment import (
    Deployment,
    DeploymentError,
    StageDeployment,
    load_deployment,
)
from duologue.engines.pipeline.plan import Plan, ProcessPlan, resolve, this_machine
from duologue.engines.pipeline.stage_graph import ASR, CASCADE, LLM, MODEL, TTS
from duologue.engines.voice_backend import VoicesConfig
from duologue.engines.worker_directory import private_directory
from duologue.web.setting_table import SETTINGS
from duologue.web.settings import Settings, SettingsError

GRAPH_OF_DEFAULT: Final = CASCADE.name


@dataclass(frozen=True, slots=True)
class Workforce:
    """The workers of a plan: those that take sessions, and those that have other stages.

    ``scribes``: recognisers beside a model that hears by itself.
    """

    main: tuple[WorkerConfig, ...]
    stages: tuple[WorkerConfig, ...] = ()
    scribes: tuple[WorkerConfig, ...] = ()

    @property
    def all(self) -> tuple[WorkerConfig, ...]:
        return (*self.main, *self.stages, *self.scribes)


def deployment_plan(settings: Settings) -> Plan:
    """What runs where. Reads files, so call it before the event loop runs. Raises SettingsError."""
    pipeline = GRAPH_OF_DEFAULT if settings.engine == "default" else settings.engine
    try:
        if settings.deployment is None:
            entry = ASR if pipeline == GRAPH_OF_DEFAULT else MODEL
            deployment = Deployment(stages={entry: StageDeployment(replicas=settings.workers)})
        else:
            deployment = load_deployment(settings.deployment, SETTINGS)
            if settings.workers != 1:
                raise DeploymentError("workers: the deployment says how many: replicas")
        plan = resolve(
            deployment,
            this_machine(),
            pipeline=pipeline,
            cluster=settings.cluster is not None,
        )
        if plan.graph.name != pipeline:
            raise DeploymentError(f"pipeline: {plan.graph.name!r} is not what the engine runs")
        _check_limits(plan)
    except DeploymentError as error:
        raise SettingsError(f"deployment: {error}") from None
    return plan


def _check_limits(plan: Plan) -> None:
    """Limits that the models here can't be given."""
    threaded = {ASR, TTS}
    for name, stage in plan.stages.items():
        if stage.limits.threads and name not in threaded:
            raise DeploymentError(
                f"stages.{name}.limits.threads: {name} has no such limit; "
                f"OMP_NUM_THREADS in its environment may do"
            )


def workforce(
    plan: Plan,
    config: WorkerConfig,
    cluster: str = "",
    recognizers: tuple[WorkerConfig, ...] = (),
) -> Workforce:
    """The workers of a plan; `config` is what one that takes sessions is told without one.

    Addresses are chosen here for those that others must find: directories, or, where `cluster` is
    the address of one, names there. `recognizers` go beside.
    """
    voices = next((process for process in plan.placed if TTS in process.stages), None)
    stages: tuple[WorkerConfig, ...] = ()
    if plan.graph is CASCADE:
        cascade = msgspec.msgpack.decode(config.options, type=CascadeConfig)
        if voices is not None:
            stages = _voice_workers(plan, voices, config, cascade, cluster)
        cascade = msgspec.structs.replace(
            cascade,
            recognizer_threads=plan.stages[ASR].limits.threads or cascade.recognizer_threads,
            voice_threads=plan.stages[TTS].limits.threads or cascade.voice_threads,
            capacity=plan.main.sessions or cascade.capacity,
            sampling=plan.stages[LLM].sampling,
            answer_s=plan.answer_s,
            voice_workers=tuple(stage.directory for stage in stages),
        )
        config = msgspec.structs.replace(config, options=msgspec.msgpack.encode(cascade))
    main = _replicas(plan.main, config, config.name)
    return Workforce(main, stages, recognizers)


def _voice_workers(
    plan: Plan, process: ProcessPlan, config: WorkerConfig, cascade: CascadeConfig, cluster: str
) -> tuple[WorkerConfig, ...]:
    options = VoicesConfig(
        kokoro=cascade.kokoro,
        piper=cascade.piper,
        default_voice=cascade.default_voice,
        threads=plan.stages[TTS].limits.threads,
        capacity=process.sessions,
    )
    told = msgspec.structs.replace(
        config, backend="voices", options=msgspec.msgpack.encode(options), batch_limit=0
    )
    replicas = _replicas(process, told, process.name)
    if cluster:
        run = secrets.token_hex(8)
        return tuple(
            msgspec.structs.replace(one, directory=f"ray://{cluster}/{one.name}-{run}")
            for one in replicas
        )
    return tuple(
        msgspec.structs.replace(
            one, directory=str(private_directory(process.name)), remove_directory=True
        )
        for one in replicas
    )


def _replicas(process: ProcessPlan, config: WorkerConfig, name: str) -> tuple[WorkerConfig, ...]:
    """Each has a name of its own in logs and figures."""
    return tuple(
        msgspec.structs.replace(
            config,
            name=f"{name}-{replica.number}",
            environment={**config.environment, **replica.environment},
        )
        for replica in process.replicas
    )
