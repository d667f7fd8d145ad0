"""Every setting of the server: its name, its default, what it does, and what goes together."""

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from duologue.sessions.session_config import SessionLimits
from duologue.web.addresses import is_base_url, is_host, is_origin
from duologue.web.auth import SECRET_PREFIX
from duologue.web.duplex_settings import DuplexSettings
from duologue.web.language_settings import LanguageSettings
from duologue.web.setting import declare

INSTRUCTIONS: Final = (
    "You are a friendly voice assistant. Answer in one to three short spoken sentences. "
    "Use plain words, no lists, no markup."
)


class SettingsError(Exception):
    """A setting is unknown or wrong; the message names it and where it came from."""


_MODEL: Final = "Model"
_ACCESS: Final = "Access"
_RTC: Final = "WebRTC"
LIMITS_GROUP: Final = "Limits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings, each checked. Secrets do not show in the representation."""

    host: str = declare("127.0.0.1", "address to listen on")
    port: int = declare(8765, "port to listen on; 0 for any that is free", low=0, high=65535)
    tls_cert: Path | None = declare(None, "file with the TLS certificate chain (PEM)")
    tls_key: Path | None = declare(None, "file with the private key of the certificate (PEM)")
    tls_self_signed: bool = declare(
        False,
        "serve HTTPS with a certificate made at the start: a browser on another device gives its "
        "microphone to HTTPS pages only, after a warning about the certificate",
    )
    gateways: int = declare(
        1,
        "processes that serve clients, on one port; with more than one, the first process only "
        "looks after them and the workers",
        low=1,
        high=64,
    )
    drain_seconds: float = declare(
        10.0, "time that conversations have to end when the server is stopped", low=0
    )
    log_level: Literal["debug", "info", "warning", "error"] = declare(
        "info", "the least serious messages that are logged"
    )
    log_format: Literal["text", "json"] = declare("text", "one line of text or of JSON a message")

    api_keys: tuple[str, ...] = declare(
        (),
        "keys that clients must present; without any, none is needed on a loopback address, and "
        "one is made up and printed on any other",
        _ACCESS,
        secret=True,
    )
    allowed_origins: tuple[str, ...] = declare(
        (),
        "origins of other web pages that may connect, as https://example.org; * for all",
        _ACCESS,
    )
    allowed_hosts: tuple[str, ...] = declare(
        (),
        "host names, besides those of loopback, under which a server on a loopback address is "
        "reached (through a proxy)",
        _ACCESS,
    )

    engine: Literal["default", "moshi", "scripted", "scripted-duplex"] = declare(
        "default",
        "what answers: models that take turns, a model that listens while it speaks (--moshi), or, "
        "for tests, a script of timed answers or an echo that keeps to frames",
        _MODEL,
    )
    script: Path | None = declare(
        None, "JSON file with what a scripted engine does, in place of its own", _MODEL
    )
    lite: bool = declare(
        False, "the small set of models: half the download, half the memory", _MODEL
    )
    llm: str | None = declare(
        None,
        "language model in place of the embedded one: a .gguf file, a folder with a config.json, "
        "or the id of a GGUF repository on a model hub, as owner/name or owner/name:file.gguf",
        _MODEL,
    )
    chat_url: str | None = declare(
        None,
        "base URL of an OpenAI-compatible chat endpoint to use as the language model, "
        "as http://127.0.0.1:11434/v1",
        _MODEL,
    )
    chat_model: str | None = declare(None, "name of the model at the chat endpoint", _MODEL)
    chat_key: str | None = declare(None, "key of the chat endpoint", _MODEL, secret=True)
    chat_sees: bool = declare(False, "the chat endpoint's model takes images", _MODEL)
    voice: str | None = declare(None, "voice of sessions that ask for none", _MODEL)
    instructions: str = declare(INSTRUCTIONS, "instructions of sessions that bring none", _MODEL)
    context_tokens: int | None = declare(
        None,
        "tokens of a conversation that the language model sees; 2048 if not set, 32768 with a "
        "chat endpoint",
        _MODEL,
        low=512,
    )
    slots: int | None = declare(
        None,
        "conversations that one worker holds at once; by the number of cores if not set",
        _MODEL,
        low=1,
    )
    workers: int = declare(
        1,
        "worker processes with the model; a session stays with the one that took it",
        _MODEL,
        low=1,
        high=64,
    )
    deployment: str | None = declare(
        None,
        "TOML file that says in which processes and on which devices the model's stages run, as "
        "FILE or FILE:NAME; or a table of the settings' own file",
        _MODEL,
    )
    cluster: str | None = declare(
        None,
        "place the workers on the machines of a Ray cluster, as 10.0.0.1:6379; the flag alone, or "
        "auto, is the one that this machine is part of",
        _MODEL,
        alone="auto",
    )
    batch_limit: int = declare(
        32,
        "requests for chat completions that one worker holds, running or waiting; one more is told "
        "to come again",
        _MODEL,
        low=1,
    )
    cache: Path | None = declare(
        None, "folder of the models; else $XDG_CACHE_HOME/duologue or ~/.cache/duologue", _MODEL
    )

    camera_rate: float = declare(
        1.0,
        "pictures a second of a caller's camera that the model is shown; 0: no cameras",
        _RTC,
        low=0,
        high=10,
    )
    rtc_ports: str | None = declare(
        None,
        "UDP ports for calls, as 40000-40100, one for each call, or one for all; any if not set",
        _RTC,
    )
    rtc_address: str | None = declare(
        None,
        "IP address at which a NAT in front of this machine (or of its container) is reached from "
        "outside; it must keep the numbers of rtc_ports",
        _RTC,
    )
    stun_server: str | None = declare(
        None, "where to ask for our outside address, as stun:stun.example.org:3478", _RTC
    )
    turn_server: str | None = declare(
        None,
        "relay for callers that can't be reached, as turn:turn.example.org:3478?transport=udp",
        _RTC,
    )
    turn_username: str | None = declare(None, "user name at the relay", _RTC)
    turn_password: str | None = declare(None, "password at the relay", _RTC, secret=True)

    max_sessions: int = declare(
        64, "sessions at a time, whatever the engine would take", LIMITS_GROUP, low=1
    )
    live_recording: int = declare(
        0,
        "seconds of sound that are kept in memory of a Live session which its client stores; 0 for "
        "no recordings",
        LIMITS_GROUP,
        low=0,
        high=7200,
    )
    language: LanguageSettings = LanguageSettings()
    duplex: DuplexSettings = DuplexSettings()
    limits: SessionLimits = SessionLimits()

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingsError("tls_cert and tls_key belong together: one of them is missing")
        if self.tls_self_signed and self.tls_cert is not None:
            raise SettingsError("tls_self_signed and tls_cert exclude each other")
        if self.llm is not None and self.chat_url is not None:
            raise SettingsError("llm and chat_url exclude each other")
        if (self.chat_url is None) != (self.chat_model is None):
            raise SettingsError("chat_url and chat_model belong together: one of them is missing")
        if self.chat_url is None and self.chat_key is not None:
            raise SettingsError("chat_key has no meaning without chat_url")
        if self.chat_url is not None and not is_base_url(self.chat_url):
            raise SettingsError(
                f"chat_url must be as http://127.0.0.1:11434/v1, not {self.chat_url!r}"
            )
        if self.gateways > 1 and self.cluster is not None:
            raise SettingsError("gateways and cluster exclude each other")
        if (self.engine == "moshi") != (self.duplex.moshi is not None):
            raise SettingsError("engine moshi and moshi belong together: one of them is missing")
        for key in self.api_keys:
            if len(key) < 8:
                raise SettingsError("api_keys: a key needs at least 8 characters")
            if not all("!" <= character <= "~" for character in key):
                raise SettingsError(
                    "api_keys: a key is of ASCII letters, digits and signs: nothing else arrives "
                    "in a header as it was sent"
                )
            if key.startswith(SECRET_PREFIX):
                raise SettingsError(
                    f"api_keys: a key must not begin with {SECRET_PREFIX}, as client secrets do"
                )
        for origin in self.allowed_origins:
            if not is_origin(origin):
                raise SettingsError(f"allowed_origins: {origin!r} is not as https://example.org")
        for host in self.allowed_hosts:
            if not is_host(host):
                raise SettingsError(
                    f"allowed_hosts: {host!r} is not a host's name, as example.org without a port"
                )

    @property
    def tls(self) -> bool:
        return self.tls_cert is not None or self.tls_self_signed

    @property
    def loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
