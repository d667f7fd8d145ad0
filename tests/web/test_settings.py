"""Settings: where they come from, and what is said about wrong ones."""

import argparse
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from duologue.sessions.session_config import SessionLimits, TurnPolicy
from duologue.web.settings import SETTINGS, Settings, SettingsError, add_flags, load_settings


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


def test_a_wrong_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--port" in complaint("--port", "x")
    assert "--log-level" in complaint("--log-level", "loud")
    with pytest.raises(SystemExit):
        parser().parse_args(["--prot", "1"])
    assert "--prot" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        "--tls-cert c.pem",
        "--tls-key k.pem",
        "--tls-cert c.pem --tls-key k.pem --tls-self-signed",
        "--llm a.gguf --chat-url http://x --chat-model m",
        "--chat-url http://127.0.0.1:1/v1",
        "--chat-model m",
        "--chat-key k",
        "--chat-url localhost:11434 --chat-model m",
        "--api-keys short",
        "--turn-threshold 5",
    ],
)
def test_settings_that_do_not_go_together_are_refused(flags: str) -> None:
    assert complaint(*flags.split())


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.4", False),
        ("example.org", False),
    ],
)
def test_a_loopback_address_is_known(host: str, loopback: bool) -> None:
    assert load("--host", host).loopback is loopback


def test_secrets_are_not_shown() -> None:
    settings = load(
        *"--api-keys secret-of-mine --chat-url http://x/v1 --chat-model m --chat-key sesame".split()
    )
    assert "secret-of-mine" not in repr(settings)
    assert "sesame" not in repr(settings)
    assert settings.chat_key == "sesame"
    for name in ("api_keys", "chat_key"):
        assert SETTINGS[name].secret
    assert "hunter2" not in complaint("--api-keys", "hunter2")


def test_every_setting_is_explained_with_its_variable() -> None:
    text = " ".join(parser().format_help().split())
    for setting in SETTINGS.values():
        assert setting.flag in text
        assert setting.variable in text
        assert len(setting.about.help) > 10


def test_every_limit_is_a_setting() -> None:
    # Nobody can resume a session yet: there is no grace to be set.
    assert {entry.name for entry in fields(SessionLimits)} - {"grace"} <= set(SETTINGS)
    assert Settings().limits == SessionLimits()


@pytest.mark.parametrize("origin", ["http://[", "example.org", "", "https://"])
def test_an_origin_that_is_none_is_refused(origin: str) -> None:
    with pytest.raises(SettingsError, match="allowed_origins"):
        Settings(allowed_origins=(origin,))


def test_origins_of_pages_and_of_extensions_are_taken() -> None:
    Settings(allowed_origins=("*", "https://example.org", "chrome-extension://abc"))


@pytest.mark.parametrize("url", ["http://[", "http://a:xx", "http://a:99999", "http://", "ftp://a"])
def test_a_chat_endpoint_that_can_not_be_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="chat_url"):
        Settings(chat_url=url, chat_model="m")


@pytest.mark.parametrize("host", ["[", "example.org:443", "https://example.org", "*", "", "a b"])
def test_a_host_that_no_request_can_name_is_refused(host: str) -> None:
    with pytest.raises(SettingsError, match="allowed_hosts"):
        Settings(allowed_hosts=(host,))


def test_names_and_addresses_of_hosts_are_taken() -> None:
    Settings(allowed_hosts=("example.org", "Voice", "192.0.2.7", "2001:db8::1"))
    Settings(chat_url="http://[::1]:11434/v1", chat_model="m")
