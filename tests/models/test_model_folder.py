import json
from pathlib import Path

import pytest

from duologue.models.model_folder import ModelFolderError, read_model_folder

CONFIG = {"architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 2048}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    return tmp_path


def test_a_folder_tells_its_architecture_and_its_context(folder: Path) -> None:
    found = read_model_folder(folder)
    assert (found.architectures, found.context) == (("Qwen2ForCausalLM",), 2048)


def test_a_model_that_sees_has_its_context_with_its_text(folder: Path) -> None:
    config = {"architectures": ["X"], "text_config": {"max_position_embeddings": 99}}
    (folder / "config.json").write_text(json.dumps(config))
    assert read_model_folder(folder).context == 99


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("config.json", "has no config.json"),
        ("tokenizer.json", "has no tokenizer"),
        ("model.safetensors", "has no weights"),
    ],
)
def test_a_file_that_is_missing_is_named(folder: Path, name: str, says: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ModelFolderError, match=says):
        read_model_folder(folder)


def test_a_shard_that_is_missing_is_named(folder: Path) -> None:
    shards = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(shards))
    (folder / "model-1.safetensors").write_bytes(b"")
    with pytest.raises(ModelFolderError, match="lacks model-2.safetensors"):
        read_model_folder(folder)


def test_weights_that_can_run_code_need_the_operators_word(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelFolderError, match="trust_remote_code"):
        read_model_folder(folder)
    assert read_model_folder(folder, pickled=True).context == 2048


def test_weights_that_are_made_up_need_no_file(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert read_model_folder(folder, weights=False).context == 2048


@pytest.mark.parametrize("text", ["{", "[]", '{"architectures": []}'])
def test_a_config_that_can_not_be_used_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ModelFolderError, match="config.json"):
        read_model_folder(folder)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="no folder"):
        read_model_folder(tmp_path / "none")
