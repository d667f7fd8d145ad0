"""Who keeps the workers, and how they are reached."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from duologue.engines.lifeline import WorkerConfig
from duologue.engines.supervisor import SupervisionRules
from duologue.web.crew import crew
from duologue.web.deployment_setup import Workforce, deployment_plan
from duologue.web.settings import Settings

WORK = Workforce(
    main=(WorkerConfig(name="model-0", backend="scripted", directory=""),),
    scribes=(WorkerConfig(name="recognizer", backend="scripted", directory=""),),
)


class Placed:
    """A worker somewhere in a cluster."""

    def __init__(self, config: WorkerConfig, rules: SupervisionRules, **needs: float) -> None:
        self.name = config.name
        self.needs = needs

    async def dial(self, lane: str) -> Any:
        raise OSError(f"{self.name} has no machine yet")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kept in (("ray_impl", "RayWorker"), ("ray_stage_impl", "RayStage")):
        module = ModuleType(name)
        setattr(module, kept, Placed)
        monkeypatch.setitem(sys.modules, f"duologue.engines.cluster.{name}", module)


def test_a_recogniser_is_beside_the_model_on_this_machine() -> None:
    settings = Settings(engine="scripted-duplex")
    made = crew(settings, deployment_plan(settings), WORK, SupervisionRules())
    assert [one.name for one in made.keepers] == ["model-0", "recognizer"]
    model, recognizer = (one.directory for one in made.keepers)  # type: ignore[attr-defined]
    assert [one.directory for one in made.remotes] == [model]
    assert [one.directory for one in made.scribes] == [recognizer]


@pytest.mark.usefixtures("cluster")
def test_a_clusters_recogniser_is_placed_and_reached_as_its_workers_are() -> None:
    settings = Settings(engine="scripted-duplex", cluster="auto")
    made = crew(settings, deployment_plan(settings), WORK, SupervisionRules())
    assert [one.name for one in made.keepers] == ["model-0", "recognizer"]
    assert made.keepers[1].needs == {"cpus": 1, "gpus": 0}  # type: ignore[attr-defined]
    (model,), (recognizer,) = made.remotes, made.scribes
    assert (model.directory, recognizer.directory) == (Path("model-0"), Path("recognizer"))
    assert recognizer._dial == made.keepers[1].dial  # type: ignore[attr-defined]
