from pathlib import Path

import pytest

from duologue.engines.pipeline.deployment import (
    Deployment,
    DeploymentError,
    load_deployment,
    read_deployment,
)

WHOLE = """
name = "home"
pipeline = "cascade"

[stages.asr]
limits = { threads = 2 }

[stages.llm.sampling]
temperature = 0.3
max_output_tokens = 200

[stages.tts]
process = "voices"
replicas = 2
devices = ["cpu"]
environment = { OMP_NUM_THREADS = "1" }
limits = { sessions = 8, answer_s = 5 }
"""


def test_a_deployment_says_what_its_file_says() -> None:
    deployment = read_deployment(WHOLE)
    assert deployment.name == "home"
    tts = deployment.stages["tts"]
    assert (tts.process, tts.replicas, tts.devices) == ("voices", 2, ("cpu",))
    assert tts.environment == {"OMP_NUM_THREADS": "1"}
    assert (tts.limits.sessions, tts.limits.answer_s) == (8, 5.0)
    assert deployment.stages["llm"].sampling.given == ("temperature", "max_output_tokens")


def test_an_empty_file_is_the_default() -> None:
    assert read_deployment("") == Deployment()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[stages.tts]\nreplicas = 0", "stages.tts.replicas: 0 is not at least 1"),
        ("[stages.tts]\ncopies = 2", "stages.tts.copies: there is no such field"),
        ("stage = 1", "stage: there is no such field"),
        (
            "[stages.tts]\nreplicas = 'two'",
            "stages.tts.replicas: expected `int | null`, got `str`",
        ),
        (
            "[stages.tts.limits]\nmemory = 2.5",
            "stages.tts.limits.memory: 2.5 is not at most 1",
        ),
        (
            "[stages.tts.limits]\nanswer_s = 0.0",
            "stages.tts.limits.answer_s: 0.0 is not more than 0",
        ),
        (
            "[stages.llm.sampling]\ntemperature = 3.0",
            "stages.llm.sampling.temperature: 3.0 is not at most 2",
        ),
        (
            "[stages.asr]\n[stages.tts.environment]\nA = 1",
            "stages.tts.environment.A: expected `str`, got `int`",
        ),
        ("stages = 3", "stages: expected `object`, got `int`"),
        ("[stages", "not TOML: "),
        (
            "[[deployment]]\nname = 'a'\n[[deployment]]\nname = 'a'",
            "deployment[1].name: a second deployment is called 'a'",
        ),
        (
            "[[deployment]]\nname = 'a'\n[[deployment]]\nname = 'b'",
            "deployment: name one of them: there are a, b",
        ),
        (
            "[[deployment]]\nname = 'a'\n[[deployment]]\n[deployment.stages.x]\nreplicas = 0",
            "deployment[1].stages.x.replicas: 0 is not at least 1",
        ),
        ("port = 1\n[deployment]\nname = 'a'", "port: does not belong beside deployment"),
    ],
)
def test_what_is_wrong_is_told_with_its_field(text: str, words: str) -> None:
    with pytest.raises(DeploymentError) as caught:
        read_deployment(text)
    assert str(caught.value).startswith(words)


def test_one_of_several_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "deployments.toml"
    path.write_text("[[deployment]]\nname = 'a'\n[[deployment]]\nname = 'b'\npipeline = 'moshi'")
    assert load_deployment(f"{path}:b").pipeline == "moshi"
    with pytest.raises(DeploymentError, match="none is called 'c': there are a, b"):
        load_deployment(f"{path}:c")


def test_a_table_among_settings_is_found(tmp_path: Path) -> None:
    path = tmp_path / "duologue.toml"
    path.write_text("port = 1\n[deployment.stages.tts]\nreplicas = 2")
    assert load_deployment(str(path), beside={"port"}).stages["tts"].replicas == 2


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeploymentError, match=r"nothing\.toml: No such file"):
        load_deployment(str(tmp_path / "nothing.toml"))


def test_errors_in_a_file_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "d.toml"
    path.write_text("[stages.tts]\nreplicas = 0")
    with pytest.raises(DeploymentError, match=r"d\.toml: stages\.tts\.replicas: 0 is not at least"):
        load_deployment(str(path))
