"""The rules about structure, as tests: layers, packaging, file names, sizes."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LAYERS = ["web", "realtime", "sessions", "engines", "models", "codecs"]
SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
PURE = ["sessions/core.py", "sessions/turns.py", "sessions/endpointing.py", "sessions/playback.py"]


def imported_modules(path: Path) -> list[str]:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.append(node.module or "")
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_layer_imports_only_itself_and_layers_below(path: Path) -> None:
    layer = path.relative_to(ROOT).parts[0]
    below = LAYERS[LAYERS.index(layer) :]
    for name in imported_modules(path):
        if name.startswith("duologue."):
            assert name.split(".")[1] in below, f"{layer} imports {name}"


@pytest.mark.parametrize("name", PURE)
def test_the_pure_core_knows_no_event_loop_clock_or_json(name: str) -> None:
    for module in imported_modules(ROOT / name):
        assert module.split(".")[0] not in {"asyncio", "anyio", "time", "json", "msgspec", "socket"}


def test_no_folder_has_an_init_file() -> None:
    assert [p for layer in LAYERS for p in (ROOT / layer).rglob("__init__.py")] == []


def test_every_folder_with_code_is_packaged() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = set(config["tool"]["setuptools"]["packages"])
    folders = {path.parent for path in SOURCES}
    needed = {"duologue." + ".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert needed <= packages


def test_file_names_are_unique() -> None:
    names = [path.name for path in SOURCES if path.name != "__main__.py"]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_enough_to_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 600
