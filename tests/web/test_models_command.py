import argparse
import hashlib
import io
from collections.abc import Iterable
from pathlib import Path

import anyio
import pytest

from duologue.models.fetch import Outcome, Progress, State
from duologue.models.lockfile import Lock, Model, Source, WeightFile
from duologue.web import models_command
from duologue.web.models_command import Bar, Lines

CONTENT = b"graph"


def made_up(name: str) -> Model:
    file = WeightFile("graph.onnx", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
    source = Source({"graph.onnx": "https://example.org/graph.onnx"})
    return Model(name, "1.5", "MIT", "https://example.org", (file,), (source,), None)


LOCK = Lock(
    {name: made_up(name) for name in ("ear", "eye", "tin")},
    {"default": ("ear", "eye"), "lite": ("tin",)},
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DUOLOGUE_CACHE", str(tmp_path))
    monkeypatch.setattr(models_command, "read_lock", lambda: LOCK)
    return tmp_path


def place(cache: Path, name: str, content: bytes = CONTENT) -> None:
    folder = cache / "models" / name
    folder.mkdir(parents=True)
    (folder / "graph.onnx").write_bytes(content)


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    models_command.add_parser(parser.add_subparsers())
    return models_command.run(parser.parse_args(["models", *words]))


@pytest.fixture
def asked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has `sync` fetch nothing, call itself done, and note the names it was asked for."""
    names: list[str] = []

    async def note(wanted: Iterable[str], *, progress: Progress, cache: Path) -> list[Outcome]:
        names.extend(wanted)
        progress.say("At work.")
        return [Outcome(name, State.FETCHED) for name in names]

    monkeypatch.setattr(models_command, "sync", note)
    return names


def answer(monkeypatch: pytest.MonkeyPatch, *outcomes: Outcome) -> None:
    async def reply(names: Iterable[str], *, progress: Progress, cache: Path) -> list[Outcome]:
        return list(outcomes)

    monkeypatch.setattr(models_command, "sync", reply)


def test_the_models_are_where_the_servers_settings_say(
    cache: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    place(elsewhere, "tin")
    monkeypatch.setenv("DUOLOGUE_LITE", "1")
    assert command("verify") == 1
    assert command("verify", "--cache", str(elsewhere)) == 0
    monkeypatch.delenv("DUOLOGUE_CACHE")
    file = tmp_path_factory.mktemp("settings") / "duologue.toml"
    file.write_text(f"cache = '{elsewhere}'\n")
    assert command("verify", "--config", str(file)) == 0


def test_a_wrong_setting_is_an_error_without_a_traceback(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DUOLOGUE_LIGHT", "1")
    assert command("verify") == 1
    assert "DUOLOGUE_LIGHT" in capsys.readouterr().err


def test_list_shows_name_version_size_licence_sets_and_state(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place(cache, "ear")
    place(cache, "eye", b"grape")
    assert command("list") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["NAME", "VERSION", "SIZE", "LICENCE", "SETS", "STATE"]
    assert lines[1] == ["ear", "1.5", "0.0", "MB", "MIT", "default", "present"]
    assert lines[2] == ["eye", "1.5", "0.0", "MB", "MIT", "default", "altered"]
    assert lines[3] == ["tin", "1.5", "0.0", "MB", "MIT", "lite", "missing"]
    assert lines[-1][-1] == f"{cache / 'models'}."


def test_verify_passes_when_every_file_is_right(cache: Path) -> None:
    place(cache, "ear")
    place(cache, "eye")
    assert command("verify") == 0


@pytest.mark.parametrize(
    ("content", "complaint"), [(b"grape", "was altered"), (None, "is missing")]
)
def test_verify_names_the_wrong_file_and_goes_on(
    cache: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, complaint: str
) -> None:
    if content is not None:
        place(cache, "ear", content)
    place(cache, "eye")
    assert command("verify") == 1
    first, second = capsys.readouterr().out.splitlines()
    assert f"{cache / 'models' / 'ear' / 'graph.onnx'} {complaint}" in first
    assert "duologue models sync ear" in first
    assert second == "eye: verified"


def test_verify_can_be_asked_about_one_model(cache: Path) -> None:
    place(cache, "ear")
    assert command("verify", "ear") == 0
    assert command("verify", "eye") == 1
    assert command("verify", "--lite") == 1


@pytest.mark.parametrize(
    ("words", "names"),
    [([], ["ear", "eye"]), (["--lite"], ["tin"]), (["eye"], ["eye"]), (["--lite", "ear"], ["ear"])],
)
def test_sync_brings_a_set_or_the_models_named(
    asked: list[str], words: list[str], names: list[str]
) -> None:
    assert command("sync", *words) == 0
    assert asked == names


def test_sync_says_in_one_line_that_nothing_is_to_do(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, Outcome("ear", State.PRESENT), Outcome("eye", State.PRESENT))
    assert command("sync") == 0
    assert capsys.readouterr().out == "All 2 models are there.\n"


def test_a_replaced_model_is_told_and_is_no_failure(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, Outcome("ear", State.REPLACED, "tin takes its place (gone)"))
    assert command("sync", "ear") == 0
    assert "ear could not be fetched: tin takes its place (gone)." in capsys.readouterr().out


def test_a_failed_model_is_told_with_the_command_to_try_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, Outcome("ear", State.FAILED, "gone"), Outcome("eye", State.FETCHED))
    assert command("sync") == 1
    assert "ear could not be fetched: gone. To try again: duologue models sync ear\n" in (
        capsys.readouterr().out
    )


def test_an_unknown_model_is_an_error_without_a_traceback(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("sync", "nose") == 1
    assert "no model 'nose'" in capsys.readouterr().err


def test_an_interrupted_sync_says_that_it_can_go_on(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(models_command, "sync_models", interrupt)
    assert command("sync") == 130
    assert "goes on from here" in capsys.readouterr().err


def test_lines_tell_each_tenth_once() -> None:
    out = io.StringIO()
    lines = Lines(out)
    lines.say("ear: 1 MB")
    lines.expect(10_000_000)
    for _ in range(100):
        lines.advance(100_000)
    lines.close()
    told = out.getvalue().splitlines()
    assert told[:2] == ["ear: 1 MB", "10 % of 10 MB"]
    assert told[-1] == "100 % of 10 MB"
    assert len(told) == 11


def drawn(out: io.StringIO) -> str:
    return out.getvalue().rpartition("\x1b[K")[2]


def test_the_bar_shows_how_much_is_there() -> None:
    out = io.StringIO()

    async def half() -> None:
        bar = Bar(out)
        bar.draw()
        assert out.getvalue() == ""
        bar.expect(10_000_000)
        bar.advance(5_000_000)
        assert drawn(out) == "[############............] 5 of 10 MB"
        bar.say("ear: verified")
        assert "\r\x1b[Kear: verified\n" in out.getvalue()
        bar.close()
        assert drawn(out) == ""

    anyio.run(half)


def test_the_bar_stays_within_its_ends_when_bytes_come_again() -> None:
    out = io.StringIO()

    async def again() -> None:
        bar = Bar(out)
        bar.expect(10)
        bar.done = -5
        bar.draw()
        assert drawn(out).startswith("[........................]")
        bar.done = 15
        bar.draw()
        assert drawn(out).startswith("[########################]")

    anyio.run(again)
