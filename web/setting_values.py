"""Values of settings: read from text and from TOML, and held against their bounds."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from duologue.sessions.session_config import TurnPolicy
from duologue.web.setting import Setting
from duologue.web.settings import SettingsError


def from_text(setting: Setting, text: str, source: str) -> object:
    """The value of a variable or a flag. Raises SettingsError for one of another kind."""
    convert: Mapping[Any, Callable[[str], object]] = {
        int: int,
        float: float,
        bool: _boolean,
        Path: lambda path: _path(path, source),
        tuple[str, ...]: _list,
    }
    try:
        return convert.get(setting.kind, str)(text)
    except ValueError:
        shown = "" if setting.secret else f", not {text!r}"
        raise SettingsError(f"{source} must be {_kind_name(setting)}{shown}") from None


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _path(text: str, source: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise SettingsError(f"{source}: there is no home folder for {text!r}") from None


def _boolean(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True}
    known |= {"0": False, "false": False, "no": False, "off": False}
    try:
        return known[text.lower()]
    except KeyError:
        raise ValueError(text) from None


def from_toml(setting: Setting, value: object, source: str) -> object:
    """The value of a key in a TOML file. Raises SettingsError for one of another kind."""
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
        return _path(value, source)
    elif kind not in (bool, int, float, tuple[str, ...]) and isinstance(value, str):
        return value
    raise SettingsError(f"{source} must be {_kind_name(setting)}")


def _kind_name(setting: Setting) -> str:
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


def checked(setting: Setting, value: object, source: str) -> object:
    """The value, where it is one of the choices and in its bounds. Raises SettingsError."""
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
