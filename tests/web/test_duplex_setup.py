"""What the settings say of a frame-locked model."""

import argparse
import dataclasses
import importlib.util
from pathlib import Path

import msgspec
import pytest

from duologue.engines.recognizer_backend import RecognizerConfig
from duologue.engines.script import ScriptedOptions
from duologue.web.duplex_settings import DuplexSettings
from duologue.web.duplex_setup import (
    RECOGNIZER,
    duplex_script,
    frame_locked,
    moshi_options,
    recognizers,
)
from duologue.web.setting_sources import load_settings
from duologue.web.settings import Settings, SettingsError


def moshi(**given: object) -> Settings:
    return Settings(engine="moshi", duplex=DuplexSettings(**given), slots=8)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint, as far as one looks without loading it."""
    monkeypatch.setattr("duologue.web.duplex_setup.EXTRA", ())
    (tmp_path / "model.safetensors").write_bytes(b"")
    return tmp_path


def test_a_folder_and_its_options_reach_the_worker(folder: Path) -> None:
    settings = moshi(moshi=str(folder), moshi_device="cuda:1", moshi_kv_dtype="float8")
    options = moshi_options(settings)
    assert options.folder == str(folder)
    assert options.name == folder.name
    assert (options.device, options.dtype, options.kv_dtype) == ("cuda:1", "", "float8")
    assert options.limits.slots == 8
    assert frame_locked(settings)
    assert not frame_locked(Settings())


def test_devices_and_narrow_weights_reach_the_worker(folder: Path) -> None:
    settings = moshi(moshi=str(folder), moshi_tensor_parallel=2, moshi_weights="fp8")
    options = moshi_options(settings)
    assert (options.tensor_parallel, options.weights, options.device) == (2, "fp8", "")
    assert moshi_options(moshi(moshi=str(folder))).tensor_parallel == 1
    assert moshi_options(moshi(moshi=str(folder))).weights == ""


def test_one_device_can_not_be_shared(folder: Path) -> None:
    settings = moshi(moshi=str(folder), moshi_tensor_parallel=2, moshi_device="cuda:1")
    with pytest.raises(SettingsError, match="moshi_device: cuda:1 is one device, and moshi_tensor"):
        moshi_options(settings)


def test_a_folder_without_weights_is_told(tmp_path: Path, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(SettingsError, match="no .safetensors file"):
        moshi_options(moshi(moshi=str(folder)))


def test_a_folder_that_is_not_there_is_told(folder: Path) -> None:
    with pytest.raises(SettingsError, match="there is no such folder"):
        moshi_options(moshi(moshi=str(folder / "none")))


def test_a_package_that_is_missing_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duologue.web.duplex_setup.EXTRA", ("torch", "no_such_package"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "torch" or None)
    with pytest.raises(SettingsError, match=r"needs no_such_package: pip install 'duologue\[moshi"):
        moshi_options(moshi(moshi=str(folder)))


@pytest.mark.parametrize("settings", [{"engine": "moshi"}, {"duplex": DuplexSettings(moshi="x")}])
def test_engine_and_checkpoint_belong_together(settings: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="belong together"):
        Settings(**settings)  # type: ignore[arg-type]


def test_the_settings_come_from_where_all_do() -> None:
    environ = {"DUOLOGUE_ENGINE": "moshi", "DUOLOGUE_MOSHI": "/m", "DUOLOGUE_DUPLEX_IDLE": "7"}
    settings = load_settings(argparse.Namespace(config=None), environ)
    assert (settings.duplex.moshi, settings.duplex.duplex_idle) == ("/m", 7.0)


def test_a_script_is_read_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_bytes(msgspec.json.encode({"text": "well", "tick_ms": 3.0}))
    settings = Settings(engine="scripted-duplex", script=path, slots=5)
    script = duplex_script(settings)
    assert (script.text, script.tick_ms, script.limits.slots) == ("well", 3.0, 5)
    path.write_text("{")
    with pytest.raises(SettingsError, match="script"):
        duplex_script(settings)
    path.unlink()
    with pytest.raises(SettingsError, match="No such file"):
        duplex_script(settings)


def test_a_recogniser_that_is_not_there_is_told_only_where_it_is_wanted(tmp_path: Path) -> None:
    assert recognizers(Settings(engine="default")) == ()
    for wanted in ("auto", "off"):
        settings = moshi(moshi="m", duplex_transcripts=wanted)
        assert recognizers(dataclasses.replace(settings, cache=tmp_path)) == ()
    settings = dataclasses.replace(moshi(moshi="m", duplex_transcripts="on"), cache=tmp_path)
    with pytest.raises(SettingsError, match="duplex_transcripts: .*whisper"):
        recognizers(settings)


@pytest.mark.weights
def test_the_embedded_recogniser_is_beside_a_model_where_its_files_are() -> None:
    (config,) = recognizers(dataclasses.replace(moshi(moshi="m"), max_sessions=7))
    assert (config.name, config.backend) == ("recognizer", "recognizer")
    options = msgspec.msgpack.decode(config.options, type=RecognizerConfig)
    assert (Path(options.recognizer).name, options.capacity) == (RECOGNIZER, 7)
    assert recognizers(Settings(engine="scripted-duplex")) == ()


def test_a_script_may_have_a_recogniser(tmp_path: Path) -> None:
    path = tmp_path / "script.json"
    path.write_bytes(msgspec.json.encode({"recognizer": {"transcripts": ["Well."]}}))
    (config,) = recognizers(Settings(engine="scripted-duplex", script=path))
    options = msgspec.msgpack.decode(config.options, type=ScriptedOptions)
    assert (config.backend, options.transcripts) == ("scripted", ("Well.",))
