"""Settings: what goes together, and what they can't be."""

from pathlib import Path
from typing import Any

import pytest

from duologue.web.settings import Settings, SettingsError


def test_as_they_are_the_server_is_for_this_machine_alone() -> None:
    assert Settings().loopback
    assert not Settings().tls


@pytest.mark.parametrize(
    "given",
    [
        {"tls_cert": Path("c.pem")},
        {"tls_key": Path("k.pem")},
        {"tls_cert": Path("c.pem"), "tls_key": Path("k.pem"), "tls_self_signed": True},
        {"llm": "a.gguf", "chat_url": "http://x", "chat_model": "m"},
        {"chat_url": "http://127.0.0.1:1/v1"},
        {"chat_model": "m"},
        {"chat_key": "k"},
        {"chat_url": "localhost:11434", "chat_model": "m"},
        {"gateways": 2, "cluster": "auto"},
        {"engine": "moshi"},
        {"api_keys": ("short",)},
        {"api_keys": ("the-first-key", "")},
    ],
)
def test_settings_that_do_not_go_together_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Settings(**given)


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
    assert Settings(host=host).loopback is loopback


def test_secrets_are_not_shown() -> None:
    settings = Settings(
        api_keys=("secret-of-mine",), chat_url="http://x/v1", chat_model="m", chat_key="sesame"
    )
    assert "secret-of-mine" not in repr(settings)
    assert "sesame" not in repr(settings)
    assert settings.chat_key == "sesame"


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("schlüssel-des-hauses", "ASCII"),
        ("two words", "ASCII"),
        ("key-of-the-house\n", "ASCII"),
        ("key-of-the-house\udcff", "ASCII"),
        ("ek_key-of-the-house", "ek_"),
    ],
)
def test_a_key_that_nobody_could_present_is_refused_and_not_shown(key: str, word: str) -> None:
    with pytest.raises(SettingsError, match=word) as refused:
        Settings(api_keys=("key-of-the-house", key))
    assert key not in str(refused.value)


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
