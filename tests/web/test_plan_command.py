import json
from pathlib import Path

import msgspec
import pytest

from duologue.engines.cascade import CascadeConfig
from duologue.engines.lifeline import WorkerConfig
from duologue.engines.llama_prompts import LlamaStage
from duologue.engines.voice_backend import VoicesConfig
from duologue.web.__main__ import main
from duologue.web.deployment_setup import deployment_plan, workforce
from duologue.web.settings import Settings, SettingsError

VOICES = "[stages.tts]\nprocess = 'voices'\nreplicas = 2\nlimits = { threads = 3, sessions = 9 }\n"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def config(**fields: object) -> WorkerConfig:
    cascade = CascadeConfig(
        recognizer="/r", turn_detector="/t", language=LlamaStage(path="/l.gguf"), kokoro="/k"
    )
    return WorkerConfig(
        name="default",
        backend="cascade",
        directory="",
        options=msgspec.msgpack.encode(msgspec.structs.replace(cascade, **fields)),
    )


def test_the_embedded_default_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan"]) == 0
    assert "asr, llm, tts" in capsys.readouterr().out


def test_a_deployment_is_printed_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "d.toml").write_text(VOICES)
    assert main(["plan", "--deployment", "d.toml", "--json"]) == 0
    tree = json.loads(capsys.readouterr().out)
    assert tree["processes"]["voices"]["stages"] == ["tts"]


def test_a_deployment_may_stand_in_the_settings_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "duologue.toml").write_text(
        "port = 1234\n[deployment.stages.tts]\nprocess = 'voices'"
    )
    assert main(["plan"]) == 0
    assert "voices" in capsys.readouterr().out


def test_what_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "d.toml").write_text("[stages.tts]\nreplicas = 0")
    assert main(["plan", "--deployment", "d.toml"]) == 1
    assert capsys.readouterr().err == (
        "duologue plan: deployment: d.toml: stages.tts.replicas: 0 is not at least 1\n"
    )


@pytest.mark.parametrize(
    ("text", "fields", "words"),
    [
        ("[stages.asr]\nreplicas = 2", {"workers": 3}, "workers: the deployment says how many"),
        ("pipeline = 'moshi'", {}, "pipeline: 'moshi' is not what the engine runs"),
        (
            "[stages.llm.limits]\nthreads = 2",
            {},
            "stages.llm.limits.threads: llm has no such limit",
        ),
    ],
)
def test_a_deployment_has_to_fit_the_settings(
    tmp_path: Path, text: str, fields: dict[str, int], words: str
) -> None:
    (tmp_path / "d.toml").write_text(text)
    with pytest.raises(SettingsError, match=words):
        deployment_plan(Settings(deployment="d.toml", **fields))  # type: ignore[arg-type]


def test_workers_without_a_deployment_are_replicas() -> None:
    crew = workforce(deployment_plan(Settings(workers=3)), config())
    assert [one.name for one in crew.main] == ["default-0", "default-1", "default-2"]
    assert crew.stages == ()


def test_workers_are_told_their_part(tmp_path: Path) -> None:
    (tmp_path / "d.toml").write_text(
        VOICES + "[stages.asr.limits]\nthreads = 2\nsessions = 5\n"
        "[stages.llm.sampling]\ntemperature = 0.25\n"
    )
    crew = workforce(deployment_plan(Settings(deployment="d.toml")), config(default_voice="v"))
    (main_worker,) = crew.main
    cascade = msgspec.msgpack.decode(main_worker.options, type=CascadeConfig)
    assert cascade.voice_workers == tuple(one.directory for one in crew.stages)
    assert (cascade.recognizer_threads, cascade.capacity) == (2, 5)
    assert cascade.sampling.temperature == 0.25
    assert cascade.answer_s == {"tts": 20.0}
    assert [one.name for one in crew.stages] == ["voices-0", "voices-1"]
    assert len({one.directory for one in crew.stages}) == 2
    told = msgspec.msgpack.decode(crew.stages[0].options, type=VoicesConfig)
    assert told == VoicesConfig(kokoro="/k", default_voice="v", threads=3, capacity=9)
