"""How a setting is declared: its default, what `--help` says of it, and what bounds it."""

from dataclasses import dataclass, field
from typing import Any


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
