"""Where a worker and its gateways meet."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from duologue.engines.worker_directory import make_private, private_directory, socket_paths


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Nothing is taken from the modes of what is made."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_worker_has_two_sockets_in_its_directory() -> None:
    paths = socket_paths(Path("/tmp/worker"))
    assert len(set(paths)) == 2
    assert {path.parent for path in paths} == {Path("/tmp/worker")}


@pytest.mark.parametrize("letter", ["x", "é"])
def test_a_path_has_room_for_107_bytes(letter: str) -> None:
    room = 107 - len("/tmp/") - len("/control")
    name = letter * (room // len(letter.encode()))
    assert len(str(socket_paths(Path("/tmp") / name)[0]).encode()) in (106, 107)
    with pytest.raises(ValueError, match="too long"):
        socket_paths(Path("/tmp") / (name + letter))


def test_a_path_that_is_too_long_for_a_socket_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        socket_paths(Path("/tmp") / ("x" * 100))


def test_a_private_directory_has_room_for_sockets_and_is_for_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("x" * 80)))
    directory = private_directory("a-name-that-is-much-too-long")
    socket_paths(directory)
    assert not directory.exists()
    for _ in range(2):
        make_private(directory)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    directory.rmdir()


def test_a_directory_that_others_can_enter_is_not_accepted(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(shared)
    for path in (shared, link):
        with pytest.raises(PermissionError):
            make_private(path)


def test_no_two_directories_have_one_name_and_they_are_where_temporary_files_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TMPDIR", "/tmp/mine")
    found = {private_directory("worker") for _ in range(100)}
    assert len(found) == 100
    assert {path.parent for path in found} == {Path("/tmp/mine")}


def test_a_directory_is_for_its_owner_alone_whatever_the_umask(
    tmp_path: Path, open_umask: None
) -> None:
    make_private(tmp_path / "worker")
    assert stat.S_IMODE((tmp_path / "worker").stat().st_mode) == 0o700


def test_a_directory_of_somebody_else_is_not_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_private(tmp_path / "worker")
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(PermissionError, match="not a private directory"):
        make_private(tmp_path / "worker")


def test_what_is_no_directory_is_not_accepted_and_left_as_it_is(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    file.write_text("mine")
    file.chmod(0o700)
    link.symlink_to(tmp_path / "nowhere")
    for path in (file, link):
        with pytest.raises(PermissionError):
            make_private(path)
    assert file.read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_in_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        make_private(tmp_path / "nowhere" / "worker")
