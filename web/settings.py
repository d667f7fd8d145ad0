"""Every setting of the server: its name, its default, what it does, where it may come from.

A setting `audio_lead` is the key `audio_lead` of the TOML file, the variable `DUOLOGUE_AUDIO_LEAD`
and the flag `--audio-lead`. Flags win over the environment, which wins over the file. Names that
are no setting are errors.
"""

import argparse
import dataclasses
import difflib
import ipaddress
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from duologue.sessions.session_config import SessionLimits, TurnPolicy
from duologue.web.addresses import is_base_url, is_host, is_origin
from duologue.web.duplex_settings import DuplexSettings
from duologue.web.language_settings import LanguageSettings
from duologue.web.setting import About, declare

PREFIX: Final = "DUOLOGUE_"
_SERVICE_LINK: Final = re.compile(
    PREFIX + r"(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_(TCP|UDP|SCTP)\w*)"
)
FILE: Final = Path("duologue.toml")
"""Read from the current folder when no file is named."""

INSTRUCTIONS: Final = (
    "You are a friendly voice assistant. Answer in one to three short spoken sentences. "
    "Use plain words, no lists, no markup."
)


class SettingsError(Exception):
    """A setting is unknown or wrong; the message names it and where it came from."""


_MODEL: Final = "Model"
_ACCESS: Final = "Access"
_RTC: Final = "WebRTC"
_LIMITS: Final = "Limits"


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
        64, "sessions at a time, whatever the engine would take", _LIMITS, low=1
    )
    live_recording: int = declare(
        0,
        "seconds of sound that are kept in memory of a Live session which its client stores; 0 for "
        "no recordings",
        _LIMITS,
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
        if any(len(key) < 8 for key in self.api_keys):
            raise SettingsError("api_keys: a key needs at least 8 characters")
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


_LIMIT_HELP: Final[Mapping[str, About]] = {
    name: About(text, _LIMITS, low, 1 if name == "turn_threshold" else None)
    for name, text, low in [
        (
            "audio_lead",
            "seconds that sent audio may run ahead of the listener; inf for batch use",
            0.1,
        ),
        ("delta_ms", "milliseconds of audio in one delta at most", 20),
        ("idle_timeout", "seconds without any event after which a session is closed", 1),
        ("max_duration", "seconds that a session lasts at most", 1),
        ("max_items", "items in a conversation", 1),
        ("max_text", "characters in all items of a conversation", 1),
        ("max_buffer_seconds", "seconds of audio in the input buffer", 1),
        ("max_out_of_band", "responses outside the conversation at a time", 0),
        (
            "overlap_judgement",
            "seconds of overlap that are an interruption with backchannel_aware",
            0,
        ),
        ("speculation_after", "seconds of silence after which an answer is drafted", 0),
        ("release_after", "least seconds of silence before an answer with semantic_vad", 0),
        ("turn_threshold", "probability from which the turn detector is sure", 0),
        ("turn_policy", "who yields when both speak, unless a session chooses", None),
    ]
}


@dataclass(frozen=True, slots=True)
class _Setting:
    name: str
    kind: Any
    default: Any
    about: About
    secret: bool

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        if get_origin(self.kind) is Literal:
            return get_args(self.kind)
        if self.kind is TurnPolicy:
            return (TurnPolicy.BARGE_IN.value, TurnPolicy.BACKCHANNEL_AWARE.value)
        return ()


def _plain(kind: Any) -> Any:
    """A type without its `None`."""
    arguments = [argument for argument in get_args(kind) if argument is not type(None)]
    return arguments[0] if type(None) in get_args(kind) else kind


def _collect() -> dict[str, _Setting]:
    found: dict[str, _Setting] = {}
    for owner in (Settings, LanguageSettings, DuplexSettings, SessionLimits):
        hints = get_type_hints(owner)
        for entry in fields(owner):
            about = entry.metadata.get("about") or _LIMIT_HELP.get(entry.name)
            if about is None:
                continue
            found[entry.name] = _Setting(
                entry.name, _plain(hints[entry.name]), entry.default, about, not entry.repr
            )
    return found


SETTINGS: Final = _collect()
"""All settings by name."""


# -- values ---------------------------------------------------------------------------------


def _from_text(setting: _Setting, text: str, source: str) -> object:
    """The value of an environment variable or a flag."""
    convert: Mapping[Any, Callable[[str], object]] = {
        int: int,
        float: float,
        bool: _boolean,
        Path: lambda path: Path(path).expanduser(),
        tuple[str, ...]: _list,
    }
    try:
        return convert.get(setting.kind, str)(text)
    except ValueError:
        shown = "" if setting.secret else f", not {text!r}"
        raise SettingsError(f"{source} must be {_kind_name(setting)}{shown}") from None


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _boolean(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True}
    known |= {"0": False, "false": False, "no": False, "off": False}
    try:
        return known[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def _from_toml(setting: _Setting, value: object, source: str) -> object:
    kind = setting.kind
    if kind is bool and isinstance(value, bool):
        return value
    if kind is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind == tuple[str, ...] and isinstance(value, list):
        if all(isinstance(entry, str) for entry in value):
            return tuple(value)
    elif kind is Path and isinstance(value, str):
        return Path(value).expanduser()
    elif kind not in (bool, int, float, tuple[str, ...]) and isinstance(value, str):
        return value
    raise SettingsError(f"{source} must be {_kind_name(setting)}")


def _kind_name(setting: _Setting) -> str:
    if setting.choices:
        return "one of " + ", ".join(setting.choices)
    names = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        Path: "a path",
        tuple[str, ...]: "a list of strings",
    }
    return names.get(setting.kind, "a string")


def _checked(setting: _Setting, value: object, source: str) -> object:
    if setting.choices and value not in setting.choices:
        raise SettingsError(f"{source} must be {_kind_name(setting)}, not {value!r}")
    if setting.kind is TurnPolicy:
        return TurnPolicy(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = setting.about.low, setting.about.high
        if value != value or (low is not None and value < low):
            raise SettingsError(f"{source} must be at least {low:g}")
        if high is not None and value > high:
            raise SettingsError(f"{source} must be at most {high:g}")
    return value


def _unknown(name: str, source: str, known: Sequence[str]) -> SettingsError:
    close = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return SettingsError(f"{source}: there is no setting {name}{hint}")


# -- sources --------------------------------------------------------------------------------


def _read_file(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None
    found: dict[str, object] = {}
    for name, value in table.items():
        setting = SETTINGS.get(name)
        if setting is None:
            raise _unknown(name, str(path), list(SETTINGS))
        if name == "deployment" and not isinstance(value, str):
            found[name] = str(path)  # the table in this file
            continue
        source = f"{path}: {name}"
        found[name] = _checked(setting, _from_toml(setting, value, source), source)
    return found


def _is_service_link(variable: str, text: str) -> bool:
    """Whether Kubernetes or Docker tells of a service that is called duologue, as they do with
    variables of its name in every container beside it."""
    return _SERVICE_LINK.fullmatch(variable) is not None or (
        variable == PREFIX + "PORT" and text.startswith(("tcp://", "udp://"))
    )


def _read_environment(environ: Mapping[str, str]) -> dict[str, object]:
    by_variable = {setting.variable: setting for setting in SETTINGS.values()}
    found: dict[str, object] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable == PREFIX + "CONFIG":
            continue
        if _is_service_link(variable, text):
            continue
        setting = by_variable.get(variable)
        if setting is None:
            raise _unknown(variable, "environment", list(by_variable))
        found[setting.name] = _checked(setting, _from_text(setting, text, variable), variable)
    return found


def _read_flags(args: argparse.Namespace) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, setting in SETTINGS.items():
        given: str | bool | list[str] | None = getattr(args, name, None)
        if given is None:
            continue
        if isinstance(given, bool):
            found[name] = given
            continue
        text = ",".join(given) if isinstance(given, list) else given
        found[name] = _checked(setting, _from_text(setting, text, setting.flag), setting.flag)
    return found


def load_settings(args: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """The settings that flags, environment and file give together. Raises SettingsError."""
    named = args.config or environ.get(PREFIX + "CONFIG")
    path = Path(named) if named else FILE
    values = _read_file(path) if named or path.is_file() else {}
    values |= _read_environment(environ)
    values |= _read_flags(args)
    limits = {name: values.pop(name) for name in _LIMIT_HELP if name in values}
    language, duplex = (
        {entry.name: values.pop(entry.name) for entry in fields(owner) if entry.name in values}
        for owner in (LanguageSettings, DuplexSettings)
    )
    return Settings(
        **values,  # type: ignore[arg-type]
        language=LanguageSettings(**language),  # type: ignore[arg-type]
        duplex=DuplexSettings(**duplex),  # type: ignore[arg-type]
        limits=dataclasses.replace(SessionLimits(), **limits),  # type: ignore[arg-type]
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for every setting, with its explanation, its default and its variable."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"TOML file with settings (default: {FILE} in the current folder; {PREFIX}CONFIG)",
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for name, setting in SETTINGS.items():
        title = setting.about.group
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        text = f"{setting.about.help} ({_default_text(setting)}{setting.variable})"
        text = text.replace("%", "%%")
        if setting.kind is bool:
            groups[title].add_argument(
                setting.flag,
                dest=name,
                action=argparse.BooleanOptionalAction,
                default=None,
                help=text,
            )
            continue
        repeats = setting.kind == tuple[str, ...]
        if setting.about.alone is not None:
            groups[title].add_argument(
                setting.flag,
                dest=name,
                metavar=name.upper(),
                nargs="?",
                const=setting.about.alone,
                help=text,
            )
            continue
        groups[title].add_argument(
            setting.flag,
            dest=name,
            metavar="|".join(setting.choices) or name.rsplit("_", 1)[-1].upper(),
            action="append" if repeats else "store",
            help=text,
        )


def _default_text(setting: _Setting) -> str:
    default = setting.default
    if default is None or default == () or setting.name == "instructions":
        return ""
    shown = default.value if isinstance(default, TurnPolicy) else default
    return f"default: {str(shown).lower() if isinstance(shown, bool) else shown}; "
