"""One gateway among several: which one it is, what it has, and whose an id is."""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from duologue.engines.lifeline import Staff, Told
from duologue.engines.pulse import Reading
from duologue.engines.worker_directory import socket_paths
from duologue.sessions.headcount import Headcount
from duologue.web.settings import Settings, SettingsError

_RANGE: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_ID: Final = re.compile(r"(?:rtc|live)_([0-9a-f]{2})[0-9a-f]{18}")


@dataclass(slots=True)
class ToldWorker:
    """A worker whose supervisor is another process, as that one last told of it."""

    name: str
    state: str = "stopped"
    restarts: int = 0
    sessions: int = 0
    start_s: float = 0.0
    reading: Reading = Reading()
    last_fault: str = ""

    def hear(self, told: Told) -> None:
        self.state, self.restarts, self.sessions = told.state, told.restarts, told.sessions
        self.start_s, self.reading = told.start_s, told.reading

    async def run(self) -> None:
        """Whoever tells of it keeps it running."""


@dataclass(slots=True)
class Seat:
    """``directories``: the gateways', in order, of which this one is ``number``. ``workers``: the
    directories of those that take sessions, ``scribes``: of the recognisers' beside them. ``told``:
    all workers, by name."""

    number: int
    directories: Sequence[Path]
    workers: Sequence[Path]
    told: dict[str, ToldWorker]
    headcount: Headcount
    scribes: Sequence[Path] = ()
    gateway_restarts: int = 0

    @property
    def name(self) -> str:
        return gateway_name(self.number)

    def hear(self, staff: Staff) -> None:
        """What the parent tells of its workers."""
        self.gateway_restarts = staff.gateway_restarts
        for one in staff.workers:
            if one.name in self.told:
                self.told[one.name].hear(one)

    def new_id(self, prefix: str) -> str:
        """As :func:`duologue.sessions.registry.new_id`; this gateway's number is in it."""
        return f"{prefix}_{self.number:02x}{secrets.token_hex(9)}"

    def owner(self, found: str) -> Path | None:
        """The socket of the other gateway that an id of a call or a Live session is of.

        ``None`` when it is this one's, or no gateway's.
        """
        match = _ID.fullmatch(found)
        number = self.number if match is None else int(match[1], 16)
        if number == self.number or number >= len(self.directories):
            return None
        return inside_socket(self.directories[number])

    def others(self) -> list[Path]:
        """The sockets of all other gateways."""
        return [
            inside_socket(directory)
            for number, directory in enumerate(self.directories)
            if number != self.number
        ]


def gateway_name(number: int) -> str:
    """In logs, figures and traces."""
    return f"gateway-{number}"


def inside_socket(directory: Path) -> Path:
    """Where a gateway listens to the others."""
    return socket_paths(directory)[0]


def share_of(settings: Settings, number: int) -> Settings:
    """The settings of one of several gateways: its part of the UDP ports is its own.

    As many ports as gateways are one for all calls of each; of more, each gets as many, and one is
    for one call. Raises SettingsError when they can't be divided so.
    """
    match = _RANGE.fullmatch(settings.rtc_ports or "")
    if match is None:
        return settings  # none, or wrong: whoever reads it says so
    low, high = int(match[1]), int(match[2] or match[1])
    each = (high - low + 1) // settings.gateways
    if each < 1 or (each == 1 and high - low + 1 != settings.gateways):
        raise SettingsError(
            f"rtc_ports: {settings.gateways} gateways need {settings.gateways} ports, one for all "
            f"calls of each, or twice as many and more, not {settings.rtc_ports!r}"
        )
    first = low + number * each
    return replace(settings, rtc_ports=f"{first}-{first + each - 1}")
