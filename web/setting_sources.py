"""Where settings come from: flags win over the environment, which wins over a TOML file.

A setting `audio_lead` is the key `audio_lead` of the TOML file, the variable `DUOLOGUE_AUDIO_LEAD`
and the flag `--audio-lead`. Names that are no setting are errors.
"""

import argparse
import dataclasses
import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Final

from duologue.sessions.session_config import SessionLimits
from duologue.web.duplex_settings import DuplexSettings
from duologue.web.language_settings import LanguageSettings
from duologue.web.setting import PREFIX
from duologue.web.setting_table import LIMITS, SETTINGS
from duologue.web.setting_values import checked, from_text, from_toml
from duologue.web.settings import Settings, SettingsError

_SERVICE_LINK: Final = re.compile(
    PREFIX + r"(SERVICE_HOST|SERVICE_PORT\w*|PORT_\d+_(TCP|UDP|SCTP)\w*)"
)
FILE: Final = Path("duologue.toml")
"""Read from the current folder when no file is named."""


def _unknown(name: str, source: str, known: Sequence[str]) -> SettingsError:
    close = difflib.get_close_matches(name, known, 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return SettingsError(f"{source}: there is no setting {name}{hint}")


def _read_file(path: Path) -> dict[str, object]:
    try:
        # Some editors of Windows begin a file with a byte-order mark.
        table = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
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
        found[name] = checked(setting, from_toml(setting, value, source), source)
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
        found[setting.name] = checked(setting, from_text(setting, text, variable), variable)
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
        found[name] = checked(setting, from_text(setting, text, setting.flag), setting.flag)
    return found


def load_settings(args: argparse.Namespace, environ: Mapping[str, str]) -> Settings:
    """The settings that flags, environment and file give together. Raises SettingsError."""
    named = args.config or environ.get(PREFIX + "CONFIG")
    path = Path(named) if named else FILE
    values = _read_file(path) if named or path.is_file() else {}
    values |= _read_environment(environ)
    values |= _read_flags(args)
    limits = {name: values.pop(name) for name in LIMITS if name in values}
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
