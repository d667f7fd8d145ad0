"""Where settings come from, and what is said about wrong ones."""

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest

from duologue.sessions.session_config import SessionLimits, TurnPolicy
from duologue.web.setting_flags import add_flags
from duologue.web.setting_sources import load_settings
from duologue.web.settings import Settings, SettingsError


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="duologue serve", allow_abbrev=False)
    add_flags(made)
    return made


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(
    *flags: str, environ: Mapping[str, str] | None = None, toml: str | None = None
) -> Settings:
    if toml is not None:
        Path("duologue.toml").write_text(toml)
    return load_settings(parser().parse_args(flags), environ or {})


def complaint(
    *flags: str, environ: Mapping[str, str] | None = None, toml: str | None = None
) -> str:
    with pytest.raises(SettingsError) as caught:
        load(*flags, environ=environ, toml=toml)
    return str(caught.value)


def test_without_a_word_the_server_is_for_this_machine_alone() -> None:
    settings = load()
    assert settings == Settings()
    assert settings.loopback
    assert not settings.tls


def test_flags_win_over_the_environment_and_that_over_the_file() -> None:
    toml = "port = 1\nvoice = 'file'\nlog_level = 'debug'"
    environ = {"DUOLOGUE_PORT": "2", "DUOLOGUE_VOICE": "environment"}
    settings = load("--port", "3", environ=environ, toml=toml)
    assert (settings.port, settings.voice, settings.log_level) == (3, "environment", "debug")


def test_what_containers_are_told_of_a_service_of_this_name_is_no_setting() -> None:
    environ = {
        "DUOLOGUE_SERVICE_HOST": "10.0.0.7",
        "DUOLOGUE_SERVICE_PORT": "8765",
        "DUOLOGUE_SERVICE_PORT_HTTP": "8765",
        "DUOLOGUE_PORT": "tcp://10.0.0.7:8765",
        "DUOLOGUE_PORT_8765_TCP": "tcp://10.0.0.7:8765",
        "DUOLOGUE_PORT_8765_TCP_ADDR": "10.0.0.7",
    }
    assert load(environ=environ) == load()


def test_a_file_can_be_named(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("port = 5")
    assert load("--config", str(other), toml="port = 1").port == 5
    assert load(environ={"DUOLOGUE_CONFIG": str(other)}).port == 5
    assert "none.toml" in complaint("--config", "none.toml")


def test_every_kind_of_value_can_be_given_everywhere() -> None:
    expected = Settings(
        api_keys=("key-number-one", "key-number-two"),
        lite=True,
        cache=Path("/tmp/models"),
        drain_seconds=2.5,
        slots=3,
        limits=SessionLimits(audio_lead=1.5, max_items=7, turn_policy=TurnPolicy.BACKCHANNEL_AWARE),
    )
    toml = """
        api_keys = ["key-number-one", "key-number-two"]
        lite = true
        cache = "/tmp/models"
        drain_seconds = 2.5
        slots = 3
        audio_lead = 1.5
        max_items = 7
        turn_policy = "backchannel_aware"
    """
    environ = {
        "DUOLOGUE_API_KEYS": "key-number-one, key-number-two",
        "DUOLOGUE_LITE": "yes",
        "DUOLOGUE_CACHE": "/tmp/models",
        "DUOLOGUE_DRAIN_SECONDS": "2.5",
        "DUOLOGUE_SLOTS": "3",
        "DUOLOGUE_AUDIO_LEAD": "1.5",
        "DUOLOGUE_MAX_ITEMS": "7",
        "DUOLOGUE_TURN_POLICY": "backchannel_aware",
        "PATH": "/bin",
    }
    flags = "--api-keys key-number-one --api-keys key-number-two --lite --cache /tmp/models "
    flags += "--drain-seconds 2.5 --slots 3 --audio-lead 1.5 --max-items 7 "
    flags += "--turn-policy backchannel_aware"
    assert load(toml=toml) == expected
    Path("duologue.toml").unlink()
    assert load(environ=environ) == expected
    assert load(*flags.split()) == expected


def test_a_switch_can_be_turned_off_again() -> None:
    assert load("--no-lite", environ={"DUOLOGUE_LITE": "1"}).lite is False


def test_audio_may_run_ahead_without_end() -> None:
    assert load("--audio-lead", "inf").limits.audio_lead == float("inf")


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("prot = 1", ["prot", "did you mean port"]),
        ("xyzzy = 1", ["xyzzy"]),
        ("[limits]\nmax_items = 1", ["limits"]),
        ("port = 'eight'", ["port", "whole number"]),
        ("port = true", ["port"]),
        ("port = 70000", ["port", "65535"]),
        ("lite = 1", ["lite", "true or false"]),
        ("api_keys = 'one'", ["api_keys", "list"]),
        ("api_keys = [1]", ["api_keys", "list"]),
        ("engine = 'other'", ["engine", "default, moshi"]),
        ("audio_lead = 0", ["audio_lead", "at least 0.1"]),
        ("audio_lead = nan", ["audio_lead"]),
        ("port = ", ["duologue.toml"]),
    ],
)
def test_a_wrong_file_is_told_where(toml: str, words: list[str]) -> None:
    said = complaint(toml=toml)
    for word in [*words, "duologue.toml"]:
        assert word in said


def test_a_wrong_variable_is_named() -> None:
    assert "DUOLOGUE_PORT" in complaint(environ={"DUOLOGUE_PORT": "x"})
    said = complaint(environ={"DUOLOGUE_PROT": "1"})
    assert "DUOLOGUE_PROT" in said
    assert "DUOLOGUE_PORT" in said


def test_a_wrong_flag_is_named() -> None:
    assert "--port" in complaint("--port", "x")
    assert "--log-level" in complaint("--log-level", "loud")
    assert "--turn-threshold" in complaint("--turn-threshold", "5")


def test_flags_that_do_not_go_together_are_refused() -> None:
    assert "exclude" in complaint("--tls-self-signed", "--tls-cert", "c.pem", "--tls-key", "k.pem")


def test_a_secret_that_is_wrong_is_not_shown() -> None:
    assert "hunter2" not in complaint("--api-keys", "hunter2")


def test_a_file_may_begin_with_a_byte_order_mark() -> None:
    assert load(toml="\ufeffport = 7\r\n").port == 7


def test_a_file_in_another_encoding_is_told_so(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes("port = 7".encode("utf-16"))
    assert "mine.toml: " in complaint("--config", str(file))


def test_a_home_that_nobody_has_is_told_with_where_it_is_named() -> None:
    path = "~nobody-of-that-name/models"
    assert complaint("--cache", path).startswith("--cache: there is no home folder")
    assert "duologue.toml: cache" in complaint(toml=f"cache = '{path}'")
