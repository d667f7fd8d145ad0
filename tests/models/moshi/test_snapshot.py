"""Folders of checkpoints, here or in the hub's cache."""

from pathlib import Path

import httpx
import pytest

from duologue.models.hub import HubError
from duologue.models.moshi import snapshot
from duologue.models.moshi.snapshot import checkpoint_folder

REPOSITORY = "kyutai/moshika"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no hub can be reached."""

    def unreachable(*args: object, **kwargs: object) -> None:
        raise httpx.ConnectError("no route")

    monkeypatch.setattr(httpx.Client, "send", unreachable)


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert checkpoint_folder(str(tmp_path), tmp_path / "cache") == tmp_path


def test_what_the_cache_has_is_found_without_a_network(tmp_path: Path, no_network: None) -> None:
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--kyutai--moshika"
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "snapshots" / commit / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    assert checkpoint_folder(REPOSITORY, tmp_path) == repository / "snapshots" / commit


def test_what_is_nowhere_is_an_error_that_names_it(tmp_path: Path, no_network: None) -> None:
    with pytest.raises(HubError, match=REPOSITORY):
        checkpoint_folder(REPOSITORY, tmp_path)
    with pytest.raises(HubError, match="no such folder"):
        checkpoint_folder(str(tmp_path / "missing"), tmp_path)


def test_nothing_that_runs_code_is_fetched() -> None:
    assert not any(pattern.endswith((".bin", ".pt", ".pth", "*")) for pattern in snapshot.FILES)
