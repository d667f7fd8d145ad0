"""THIRD_PARTY.md names everything that is fetched or installed."""

import re
import tomllib
from pathlib import Path

import pytest

from duologue.models.lockfile import Model, read_lock

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "THIRD_PARTY.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("model", read_lock().models.values(), ids=lambda model: model.name)
def test_every_model_is_named_with_its_licence(model: Model) -> None:
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{model.name}` "))
    assert model.licence.split()[0] in row


@pytest.mark.parametrize("requirement", PROJECT["dependencies"])
def test_every_library_is_named(requirement: str) -> None:
    match = re.match(r"[a-z0-9-]+", requirement)
    assert match is not None
    assert re.search(rf"\b{match[0]}\b", TEXT.partition("## Libraries")[2])


def test_every_licence_file_that_is_named_is_there() -> None:
    named = re.findall(r"`([\w/.-]*(?:LICENSE|OFL\.txt))`", TEXT)
    assert len(named) >= 4
    for path in named:
        assert (ROOT / path).is_file(), path
