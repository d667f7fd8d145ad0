"""Servers that can't start: one line that names what is wrong, and nothing is left of them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

pytestmark = pytest.mark.weights

Start = Callable[..., str]


@pytest.fixture
def refusal(tmp_path: Path) -> Start:
    """Try to start a server; what it says instead."""

    def refusal(*options: str) -> str:
        runtime = tmp_path / "t"
        runtime.mkdir()
        ended = subprocess.run(
            [sys.executable, "-m", "duologue.web", "serve", "--port", "0", *options],
            capture_output=True,
            text=True,
            timeout=240,
            cwd=tmp_path,
            env={**_environ(), "TMPDIR": str(runtime)},
        )
        assert ended.returncode == 1
        assert list(runtime.glob("duologue*")) == []
        said = ended.stderr.rpartition("duologue serve: ")[2]
        assert "Traceback" not in said
        return said

    return refusal


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}


def test_a_device_that_is_not_there_is_named(refusal: Start, tmp_path: Path) -> None:
    file = tmp_path / "deployment.toml"
    file.write_text('pipeline = "scripted"\n[stages.model]\ndevices = ["cuda:77"]\n')
    said = refusal("--engine", "scripted", "--deployment", str(file))
    assert "stages.model.devices: there is no cuda:77; this machine has cpu" in said


def test_two_deployments_of_one_name_are_refused(refusal: Start, tmp_path: Path) -> None:
    file = tmp_path / "deployment.toml"
    one = '[[deployment]]\nname = "voice"\npipeline = "scripted"\n'
    file.write_text(one + one)
    said = refusal("--engine", "scripted", "--deployment", str(file))
    assert "deployment[1].name: a second deployment is called 'voice'" in said


def test_a_deployment_that_is_not_there_is_named(refusal: Start) -> None:
    assert "none.toml" in refusal("--engine", "scripted", "--deployment", "none.toml")


def test_a_model_folder_that_lacks_files_is_named(refusal: Start, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = tmp_path / "model"
    folder.mkdir()
    said = refusal("--lite", "--llm", str(folder))
    assert said.startswith("llm: ")
    assert "has no config.json" in said


def test_a_model_of_an_unknown_architecture_is_named(refusal: Start, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folder = tmp_path / "model"
    folder.mkdir()
    config = {"architectures": ["NobodyForCausalLM"], "model_type": "nobody"}
    (folder / "config.json").write_text(json.dumps(config))
    Tokenizer(WordLevel({"a": 0, "?": 1}, "?")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    (folder / "model.safetensors").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    said = refusal("--lite", "--llm", str(folder))
    assert "the model did not start" in said
    assert "nobody" in said.lower()
