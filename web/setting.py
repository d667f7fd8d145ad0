"""A setting: how it is declared, what it is called, what `--help` says of it and what bounds it."""

from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args, get_origin

from duologue.sessions.session_config import TurnPolicy

PREFIX: Final = "DUOLOGUE_"
"""What the name of a setting's variable begins with."""


@dataclass(frozen=True, slots=True)
class About:
    """What `--help` says of a setting. ``low`` and ``high`` bound numbers.

    ``engines``: the language engines that have it, where not all do. ``alone``: the value of a
    flag that has none behind it, where it may.
    """

    help: str
    group: str
    low: float | None = None
    high: float | None = None
    engines: tuple[str, ...] = ()
    alone: str | None = None


def declare(
    default: Any,
    text: str,
    group: str = "Server",
    *,
    secret: bool = False,
    low: float | None = None,
    high: float | None = None,
    engines: tuple[str, ...] = (),
    alone: str | None = None,
) -> Any:
    """A dataclass field that is a setting. A secret does not show in the representation."""
    about = About(text, group, low, high, engines, alone)
    return field(default=default, repr=not secret, metadata={"about": about})


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its name in a file, as a variable and as a flag, and what it can be.

    ``kind`` is the type of its value, without ``None``.
    """

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
