import hashlib
import os
from pathlib import Path

import pytest

from duologue.models.lockfile import Lock, Model, Source, WeightFile, read_lock
from duologue.models.weights import (
    STAMP,
    CacheUnusable,
    Located,
    WeightsAltered,
    WeightsMissing,
    cache_folder,
    check_model,
    faulty_files,
    locate,
    locate_or_fallback,
    model_folder,
)

CONTENT = {"graph.onnx": b"graph", "words.txt": b"one\ntwo\n"}


def made_up(name: str, fallback: str | None = None) -> Model:
    files = tuple(
        WeightFile(file, len(content), hashlib.sha256(content).hexdigest())
        for file, content in CONTENT.items()
    )
    source = Source({file: f"https://example.org/{file}" for file in CONTENT})
    return Model(name, "1", "MIT", "https://example.org", files, (source,), fallback)


LOCK = Lock({"ear": made_up("ear", "tin"), "tin": made_up("tin", "can"), "can": made_up("can")}, {})


def place(cache: Path, name: str) -> Path:
    folder = model_folder(cache, name)
    folder.mkdir(parents=True)
    for file, content in CONTENT.items():
        (folder / file).write_bytes(content)
    return folder


def alter_unnoticed(path: Path, content: bytes) -> None:
    """Change a file and put its time of change back."""
    before = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"DUOLOGUE_CACHE": "/own", "XDG_CACHE_HOME": "/shared"}, "/own"),
        ({"XDG_CACHE_HOME": "/shared"}, "/shared/duologue"),
        ({"XDG_CACHE_HOME": "relative"}, str(Path.home() / ".cache" / "duologue")),
        ({"DUOLOGUE_CACHE": "~/own"}, str(Path.home() / "own")),
        ({}, str(Path.home() / ".cache" / "duologue")),
    ],
)
def test_the_cache_is_where_the_environment_says(environ: dict[str, str], folder: str) -> None:
    assert cache_folder(environ) == Path(folder)


def test_a_user_without_a_home_is_told_to_name_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(CacheUnusable, match="DUOLOGUE_CACHE"):
        cache_folder({})


def test_a_model_that_is_whole_is_located(tmp_path: Path) -> None:
    folder = place(tmp_path, "ear")
    assert locate("ear", cache=tmp_path, lock=LOCK) == folder


def test_a_missing_file_is_named_with_the_command_that_mends_it(tmp_path: Path) -> None:
    folder = place(tmp_path, "ear")
    (folder / "words.txt").unlink()
    with pytest.raises(WeightsMissing, match=r"words\.txt is missing.*duologue models sync ear"):
        locate("ear", cache=tmp_path, lock=LOCK)


@pytest.mark.parametrize("content", [b"graphs", b"grape", b""])
def test_an_altered_file_is_named_with_the_command_that_mends_it(
    tmp_path: Path, content: bytes
) -> None:
    folder = place(tmp_path, "ear")
    locate("ear", cache=tmp_path, lock=LOCK)
    (folder / "graph.onnx").write_bytes(content)
    with pytest.raises(WeightsAltered, match=r"graph\.onnx was altered.*duologue models sync ear"):
        locate("ear", cache=tmp_path, lock=LOCK)


def test_a_verified_file_is_not_read_again(tmp_path: Path) -> None:
    folder = place(tmp_path, "ear")
    locate("ear", cache=tmp_path, lock=LOCK)
    alter_unnoticed(folder / "graph.onnx", b"grape")
    assert locate("ear", cache=tmp_path, lock=LOCK) == folder


def test_a_full_check_finds_what_size_and_time_hide_and_so_do_later_ones(tmp_path: Path) -> None:
    folder = place(tmp_path, "ear")
    locate("ear", cache=tmp_path, lock=LOCK)
    alter_unnoticed(folder / "graph.onnx", b"grape")
    with pytest.raises(WeightsAltered):
        check_model(LOCK.model("ear"), folder, full=True)
    with pytest.raises(WeightsAltered):
        locate("ear", cache=tmp_path, lock=LOCK)


def test_a_copied_cache_is_verified_by_hash_and_then_known(tmp_path: Path) -> None:
    folder = place(tmp_path, "ear")
    locate("ear", cache=tmp_path, lock=LOCK)
    os.utime(folder / "graph.onnx", ns=(1, 1))
    assert locate("ear", cache=tmp_path, lock=LOCK) == folder
    assert " 5 1 graph.onnx\n" in (folder / STAMP).read_text()


def test_a_stamp_for_another_hash_is_not_believed(tmp_path: Path) -> None:
    folder = place(tmp_path, "ear")
    locate("ear", cache=tmp_path, lock=LOCK)
    newer = WeightFile("graph.onnx", 5, "b" * 64)
    source = Source({"graph.onnx": "https://example.org/graph.onnx"})
    model = Model("ear", "2", "MIT", "https://example.org", (newer,), (source,), None)
    assert faulty_files(model, folder) == (newer,)


@pytest.mark.parametrize("stamp", [b"\xff\xfe", b"", b"nonsense\n"])
def test_a_damaged_stamp_counts_as_none(tmp_path: Path, stamp: bytes) -> None:
    folder = place(tmp_path, "ear")
    (folder / STAMP).write_bytes(stamp)
    assert locate("ear", cache=tmp_path, lock=LOCK) == folder


def test_a_cache_that_cannot_be_written_can_still_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = place(tmp_path, "ear")

    def refuse(*args: object, **kwargs: object) -> int:
        raise PermissionError("read-only")

    monkeypatch.setattr(Path, "write_text", refuse)
    assert locate("ear", cache=tmp_path, lock=LOCK) == folder
    assert not (folder / STAMP).exists()


def test_faulty_files_are_those_missing_and_those_altered(tmp_path: Path) -> None:
    folder = place(tmp_path, "ear")
    assert faulty_files(LOCK.model("ear"), folder) == ()
    (folder / "graph.onnx").write_bytes(b"grape")
    (folder / "words.txt").unlink()
    assert faulty_files(LOCK.model("ear"), folder) == LOCK.model("ear").files


def test_a_fallback_serves_in_the_place_of_a_missing_model(tmp_path: Path) -> None:
    folder = place(tmp_path, "can")
    assert locate_or_fallback("ear", cache=tmp_path, lock=LOCK) == Located("can", folder)


def test_without_any_fallback_the_model_asked_for_is_named(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing, match="sync ear"):
        locate_or_fallback("ear", cache=tmp_path, lock=LOCK)


def test_a_fallback_never_hides_an_altered_file(tmp_path: Path) -> None:
    place(tmp_path, "tin")
    (place(tmp_path, "ear") / "graph.onnx").write_bytes(b"grape")
    with pytest.raises(WeightsAltered, match="sync ear"):
        locate_or_fallback("ear", cache=tmp_path, lock=LOCK)


@pytest.mark.weights
@pytest.mark.parametrize("model", read_lock().models.values(), ids=lambda model: model.name)
def test_the_models_that_are_present_verify(model: Model) -> None:
    folder = model_folder(cache_folder(), model.name)
    if not folder.exists():
        pytest.skip(f"{model.name} was not fetched")
    check_model(model, folder, full=True)
