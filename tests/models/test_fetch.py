import errno
import fcntl
import functools
import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from duologue.models import fetch
from duologue.models.download import Patience
from duologue.models.fetch import Outcome, State, disk_complaint, sync
from duologue.models.lockfile import Lock, LockError, Model, Origin, Part, Source, WeightFile
from duologue.models.weights import CacheUnusable, locate, model_folder

if TYPE_CHECKING:
    from tests.models.conftest import PackageIndex

AT_ONCE = Patience(attempts=1, first_wait=0.0)
GRAPH = b"graph" * 1000
WORDS = b"one\ntwo\n"


class Notes:
    """Keeps what a synchronisation says, and counts its bytes."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.expected = 0
        self.arrived = 0

    @property
    def text(self) -> str:
        return "\n".join(self.sentences)

    def say(self, text: str) -> None:
        self.sentences.append(text)

    def expect(self, size: int) -> None:
        self.expected += size

    def advance(self, size: int) -> None:
        self.arrived += size


def made_up(
    name: str,
    contents: Mapping[str, bytes],
    *origins: Mapping[str, Origin],
    fallback: str | None = None,
) -> Model:
    files = tuple(
        WeightFile(file, len(content), hashlib.sha256(content).hexdigest())
        for file, content in contents.items()
    )
    sources = tuple(Source(table) for table in origins)
    return Model(name, "1", "MIT", "https://example.org", files, sources, fallback)


def packaged(index: "PackageIndex", name: str, *, fallback: str | None = None) -> Model:
    """A model of two files whose graph comes in two wheels."""
    first = index.add_wheel(f"{name}-one", {"part.bin": GRAPH[:1234], "words.txt": WORDS})
    second = index.add_wheel(f"{name}-two", {"part.bin": GRAPH[1234:]})
    return made_up(
        name,
        {"graph.onnx": GRAPH, "words.txt": WORDS},
        {
            "graph.onnx": (Part(first, "part.bin"), Part(second, "part.bin")),
            "words.txt": (Part(first, "words.txt"),),
        },
        fallback=fallback,
    )


def hosted(index: "PackageIndex", name: str, *, fallback: str | None = None) -> Model:
    """A model of two files that come from a file host."""
    contents = {"graph.onnx": GRAPH, "words.txt": WORDS}
    origins = {file: index.add(f"/{name}/{file}", content) for file, content in contents.items()}
    return made_up(name, contents, origins, fallback=fallback)


class Cache:
    """Synchronises models into a folder."""

    def __init__(self, folder: Path, index: "PackageIndex", *models: Model) -> None:
        self.folder = folder
        self.index = index
        self.lock = Lock({model.name: model for model in models}, {})
        self.notes = Notes()
        self.environ = index.environ

    def sync(self, *names: str) -> list[Outcome]:
        return anyio.run(
            functools.partial(
                sync,
                names,
                progress=self.notes,
                lock=self.lock,
                cache=self.folder,
                patience=AT_ONCE,
                environ=self.environ,
            )
        )

    def states(self, *names: str) -> list[State]:
        return [outcome.state for outcome in self.sync(*names)]

    def file(self, name: str, file: str) -> Path:
        return model_folder(self.folder, name) / file

    def holds(self, name: str) -> bool:
        return locate(name, cache=self.folder, lock=self.lock).is_dir()


def test_parts_in_several_packages_become_one_file_and_are_thrown_away(
    index: "PackageIndex", tmp_path: Path
) -> None:
    cache = Cache(tmp_path / "cache", index, packaged(index, "ear"))
    assert cache.states("ear") == [State.FETCHED]
    assert cache.file("ear", "graph.onnx").read_bytes() == GRAPH
    assert cache.file("ear", "words.txt").read_bytes() == WORDS
    assert cache.holds("ear")
    assert cache.notes.arrived == cache.notes.expected > 0
    assert sorted(path.name for path in cache.folder.iterdir()) == ["models", "sync.lock"]


def test_what_is_there_is_not_fetched_again(index: "PackageIndex", tmp_path: Path) -> None:
    cache = Cache(tmp_path, index, hosted(index, "ear"))
    cache.sync("ear")
    index.requests.clear()
    assert cache.states("ear", "ear") == [State.PRESENT]
    assert index.requests == []


def test_an_altered_file_is_fetched_again_and_its_neighbour_is_not(
    index: "PackageIndex", tmp_path: Path
) -> None:
    cache = Cache(tmp_path, index, hosted(index, "ear"))
    cache.sync("ear")
    cache.file("ear", "words.txt").write_bytes(b"one\nsix\n")
    index.requests.clear()
    assert cache.states("ear") == [State.FETCHED]
    assert cache.file("ear", "words.txt").read_bytes() == WORDS
    assert [path for path, _ in index.requests] == ["/ear/words.txt"]


def test_the_first_source_is_preferred(index: "PackageIndex", tmp_path: Path) -> None:
    wheel = index.add_wheel("ear", {"graph.onnx": GRAPH})
    url = index.add("/graph.onnx", GRAPH)
    model = made_up(
        "ear",
        {"graph.onnx": GRAPH},
        {"graph.onnx": url},
        {"graph.onnx": (Part(wheel, "graph.onnx"),)},
    )
    assert Cache(tmp_path, index, model).states("ear") == [State.FETCHED]
    assert [path for path, _ in index.requests] == ["/graph.onnx"]


def test_a_source_that_vanished_gives_way_to_the_next(
    index: "PackageIndex", tmp_path: Path
) -> None:
    wheel = index.add_wheel("ear", {"graph.onnx": GRAPH})
    url = index.add("/graph.onnx", GRAPH)
    model = made_up(
        "ear",
        {"graph.onnx": GRAPH},
        {"graph.onnx": (Part(wheel, "graph.onnx"),)},
        {"graph.onnx": url},
    )
    index.withdraw(wheel)
    cache = Cache(tmp_path, index, model)
    assert cache.states("ear") == [State.FETCHED]
    assert "ear: not from ear==1.0: the package index has no ear==1.0" in cache.notes.sentences
    assert cache.notes.arrived == cache.notes.expected == len(GRAPH)


def test_a_source_with_another_content_gives_way_to_the_next(
    index: "PackageIndex", tmp_path: Path
) -> None:
    wheel = index.add_wheel("ear", {"graph.onnx": GRAPH})
    url = index.add("/graph.onnx", GRAPH[::-1])
    model = made_up(
        "ear",
        {"graph.onnx": GRAPH},
        {"graph.onnx": url},
        {"graph.onnx": (Part(wheel, "graph.onnx"),)},
    )
    cache = Cache(tmp_path, index, model)
    assert cache.states("ear") == [State.FETCHED]
    assert "another SHA-256" in cache.notes.text
    assert cache.file("ear", "graph.onnx").read_bytes() == GRAPH


def test_a_host_that_is_down_is_asked_once(index: "PackageIndex", tmp_path: Path) -> None:
    models = []
    for name in ("ear", "eye"):
        url = index.add(f"/{name}.onnx", GRAPH)
        models.append(
            made_up(
                name,
                {"graph.onnx": GRAPH},
                {"graph.onnx": "http://127.0.0.1:1/graph.onnx"},
                {"graph.onnx": url},
            )
        )
    cache = Cache(tmp_path, index, *models)
    assert cache.states("ear", "eye") == [State.FETCHED, State.FETCHED]
    assert cache.notes.text.count("127.0.0.1:1 can't be reached") == 1


def test_the_hub_is_asked_at_the_mirror_the_user_names(
    index: "PackageIndex", tmp_path: Path
) -> None:
    index.add("/mirror/org/model/graph.onnx", GRAPH)
    url = "https://huggingface.co/org/model/graph.onnx"
    cache = Cache(tmp_path, index, made_up("ear", {"graph.onnx": GRAPH}, {"graph.onnx": url}))
    cache.environ = index.environ | {"HF_ENDPOINT": f"{index.url}/mirror/"}
    assert cache.states("ear") == [State.FETCHED]


def test_a_user_who_wants_no_hub_gets_none(index: "PackageIndex", tmp_path: Path) -> None:
    index.add("/org/model/graph.onnx", GRAPH)
    url = "https://huggingface.co/org/model/graph.onnx"
    cache = Cache(tmp_path, index, made_up("ear", {"graph.onnx": GRAPH}, {"graph.onnx": url}))
    cache.environ = index.environ | {"HF_ENDPOINT": index.url, "HF_HUB_OFFLINE": "1"}
    assert cache.states("ear") == [State.FAILED]
    assert index.requests == []


def test_a_model_whose_packages_vanished_is_replaced_by_its_fallback(
    index: "PackageIndex", tmp_path: Path
) -> None:
    ear = packaged(index, "ear", fallback="tin")
    cache = Cache(tmp_path, index, ear, hosted(index, "tin"))
    index.withdraw(ear.sources[0].wheels[1])
    (outcome, stand_in) = cache.sync("ear")
    assert outcome.state is State.REPLACED
    assert "tin takes its place" in outcome.detail
    assert "has no ear-two==1.0" in outcome.detail
    assert stand_in == Outcome("tin", State.FETCHED)
    assert cache.holds("tin")


def test_a_fallback_that_is_there_already_is_not_fetched(
    index: "PackageIndex", tmp_path: Path
) -> None:
    ear = hosted(index, "ear", fallback="tin")
    cache = Cache(tmp_path, index, ear, hosted(index, "tin"))
    del index.files["/ear/graph.onnx"]
    cache.sync("tin")
    assert cache.states("tin", "ear") == [State.PRESENT, State.REPLACED]


def test_a_model_without_a_fallback_fails_and_the_others_arrive(
    index: "PackageIndex", tmp_path: Path
) -> None:
    ear, eye = hosted(index, "ear"), hosted(index, "eye")
    del index.files["/ear/graph.onnx"]
    cache = Cache(tmp_path, index, ear, eye)
    assert cache.states("ear", "eye") == [State.FAILED, State.FETCHED]
    assert cache.holds("eye")
    assert not cache.file("ear", "words.txt").exists()


def test_a_failed_run_keeps_the_wheels_it_has(index: "PackageIndex", tmp_path: Path) -> None:
    ear = packaged(index, "ear")
    first, second = ear.sources[0].wheels
    cache = Cache(tmp_path, index, ear)
    page = index.files.pop(f"/simple/{second.package}/")
    wheel = tmp_path / "partial" / first.file
    wheel.parent.mkdir(parents=True)
    wheel.write_bytes(index.files[f"/files/{first.file}"])
    assert cache.states("ear") == [State.FAILED]
    assert wheel.exists()
    index.files[f"/simple/{second.package}/"] = page
    assert cache.states("ear") == [State.FETCHED]
    assert index.asked(f"/files/{first.file}") == []


def test_an_index_that_is_down_is_tried_for_one_wheel_only(
    index: "PackageIndex", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "AT_ONCE", 1)
    cache = Cache(tmp_path, index, packaged(index, "ear"), packaged(index, "eye"))
    cache.environ = index.environ | {"PIP_INDEX_URL": "http://127.0.0.1:1/simple/"}
    ear, eye = cache.sync("ear", "eye")
    assert ear.state is eye.state is State.FAILED
    assert "the package index can't be reached" in ear.detail
    assert eye.detail.endswith(ear.detail.partition(": ")[2])


def test_a_second_process_waits_for_the_first_and_finds_its_work_done(
    index: "PackageIndex", tmp_path: Path
) -> None:
    cache = Cache(tmp_path, index, hosted(index, "ear"))
    done = Cache(tmp_path / "elsewhere", index, hosted(index, "ear"))
    done.sync("ear")
    index.requests.clear()
    with (tmp_path / "sync.lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)

        def finish(text: str) -> None:
            cache.notes.sentences.append(text)
            shutil.copytree(done.folder / "models", tmp_path / "models")
            fcntl.flock(handle, fcntl.LOCK_UN)

        cache.notes.say = finish  # type: ignore[method-assign]
        assert cache.states("ear") == [State.PRESENT]
    assert "Another process" in cache.notes.text
    assert index.requests == []


def test_a_file_system_without_locks_is_used_without(
    index: "PackageIndex", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*args: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert Cache(tmp_path, index, hosted(index, "ear")).states("ear") == [State.FETCHED]


def test_a_disk_with_too_little_room_is_refused_before_anything_is_fetched(
    index: "PackageIndex", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CacheUnusable, match=r"1 MB free and the models need 67 MB"):
        Cache(tmp_path, index, hosted(index, "ear")).sync("ear")
    assert index.requests == []


def test_a_disk_that_fills_up_on_the_way_is_reported(
    index: "PackageIndex", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(CacheUnusable, match="no room left"):
        Cache(tmp_path, index, hosted(index, "ear")).sync("ear")


def test_a_cache_that_is_not_a_folder_is_reported(index: "PackageIndex", tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(CacheUnusable, match="can't be used"):
        Cache(tmp_path / "cache", index, hosted(index, "ear")).sync("ear")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EROFS, "Set DUOLOGUE_CACHE"),
        (errno.EACCES, "Set DUOLOGUE_CACHE"),
        (errno.ENOSPC, "Make room"),
        (errno.EIO, "can't be used"),
    ],
)
def test_an_error_of_the_disk_comes_with_advice(number: int, advice: str) -> None:
    complaint = disk_complaint(OSError(number, "text"), Path("/cache"))
    assert advice in complaint
    assert "/cache" in complaint


def test_an_unknown_model_is_refused(index: "PackageIndex", tmp_path: Path) -> None:
    with pytest.raises(LockError, match="nose"):
        Cache(tmp_path, index, hosted(index, "ear")).sync("nose")
