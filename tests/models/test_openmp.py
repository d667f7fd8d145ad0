import ctypes
import sys
from pathlib import Path

import pytest

from duologue.models.openmp import NAME, bundled_openmp, system_has_openmp, with_openmp

ENVIRON = {"HOME": "/home/someone"}


def test_a_system_with_the_library_is_left_alone(tmp_path: Path) -> None:
    assert with_openmp(ENVIRON, tmp_path, present=lambda: True) == ENVIRON
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("before", "after"), [({}, "{}"), ({"LD_LIBRARY_PATH": "/opt/cuda"}, "{}:/opt/cuda")]
)
def test_a_system_without_it_is_led_to_the_one_in_a_wheel(
    tmp_path: Path, before: dict[str, str], after: str
) -> None:
    library = tmp_path / "libgomp-e985bcbb.so.1.0.0"
    folder = tmp_path / "run"
    folder.mkdir()
    for _ in range(2):  # a restart finds the link of the last start
        environ = with_openmp(
            ENVIRON | before, folder, present=lambda: False, bundled=lambda: library
        )
    assert environ == ENVIRON | {"LD_LIBRARY_PATH": after.format(folder)}
    assert (folder / NAME).readlink() == library


def test_without_any_library_nothing_is_promised(tmp_path: Path) -> None:
    environ = with_openmp(ENVIRON, tmp_path, present=lambda: False, bundled=lambda: None)
    assert environ == ENVIRON


@pytest.mark.skipif(sys.platform != "linux", reason="the wheels for Linux carry the library")
def test_the_library_in_the_wheel_loads() -> None:
    library = bundled_openmp()
    assert library is not None
    ctypes.CDLL(str(library))


def test_a_library_the_linker_cannot_find_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duologue.models.openmp.NAME", "libnowhere.so.1")
    assert not system_has_openmp()
