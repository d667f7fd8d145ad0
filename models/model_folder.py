"""A folder with a model in the layout of Hugging Face's libraries: what is in it, what it lacks."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json")
PICKLED = (".bin", ".pt", ".pth")


class ModelFolderError(ValueError):
    """The folder can't be served; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """``context`` is the most tokens that the model takes, 0 where the folder does not say."""

    path: Path
    architectures: tuple[str, ...]
    context: int


def read_model_folder(path: Path, *, weights: bool = True, pickled: bool = False) -> ModelFolder:
    """Look at the folder without loading anything; blocks.

    `weights`: they must be there, all of them, as safetensors; `pickled`: or as the kinds that can
    run code when they are loaded. Raises ModelFolderError.
    """
    config = _json(path, CONFIG)
    if not any((path / name).is_file() for name in TOKENIZERS):
        raise ModelFolderError(f"{path} has no tokenizer ({', '.join(TOKENIZERS)})")
    if weights:
        _check_weights(path, pickled)
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ModelFolderError(f"{path}/{CONFIG} names no architecture")
    text = config.get("text_config")
    inner = text if isinstance(text, dict) else config
    context = inner.get("max_position_embeddings", config.get("max_position_embeddings"))
    return ModelFolder(
        path, tuple(map(str, architectures)), context if isinstance(context, int) else 0
    )


def _check_weights(path: Path, pickled: bool) -> None:
    if (path / INDEX).is_file():
        shards = _json(path, INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ModelFolderError(f"{path}/{INDEX} lists no files")
        missing = sorted({name for name in shards.values() if not (path / str(name)).is_file()})
        if missing:
            raise ModelFolderError(f"{path} lacks {', '.join(map(str, missing))}")
        return
    names = [entry.name for entry in path.iterdir()]
    if any(name.endswith(".safetensors") for name in names):
        return
    if any(name.endswith(PICKLED) for name in names):
        if pickled:
            return
        raise ModelFolderError(
            f"{path} has pickled weights only, which can run code: trust_remote_code allows them"
        )
    raise ModelFolderError(f"{path} has no weights ({WEIGHTS})")


def _json(path: Path, name: str) -> dict[str, Any]:
    if not path.is_dir():
        raise ModelFolderError(f"there is no folder {path}")
    try:
        read = json.loads((path / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderError(f"{path} has no {name}") from None
    except (OSError, ValueError) as error:
        raise ModelFolderError(f"{path}/{name} can't be read: {error}") from None
    if not isinstance(read, dict):
        raise ModelFolderError(f"{path}/{name} is no JSON object")
    return read
