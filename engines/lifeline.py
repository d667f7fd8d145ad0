"""What a worker and its supervisor say to each other over the worker's standard streams.

Standard input brings one :class:`WorkerConfig`, perhaps a :class:`Drain`, to a gateway
:class:`Staff` again and again, and its end means that the parent is gone or wants the worker gone.
Standard output carries :class:`Started`, then :class:`Beat` at an interval, or one
:class:`StartFailed`. Both are frames as in the lanes, of one message each. Nothing secret is in the
arguments or the environment.
"""

from typing import Literal

import msgspec

from duologue.engines.lane import LaneLimits
from duologue.engines.pulse import Reading


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker needs to know.

    ``backend`` names an entry of the worker's table; ``options`` is the msgpack of that backend's
    own options. ``directory`` is where its sockets go: private to this worker, mode 0700, and with
    ``remove_directory`` removed when the worker ends.
    ``environment``: variables that this worker gets besides the server's, and in place of them: the
    devices that it sees (``CUDA_VISIBLE_DEVICES``), how many threads its libraries start.
    ``log_format``: ``text`` or ``json``, one line a message.
    ``retry_after_s`` is what a client is told when all places are taken. ``batch_limit``: sessions
    of the batch lane, with those whose answer runs. ``stop_s`` bounds an orderly end.
    """

    name: str
    backend: str
    directory: str
    remove_directory: bool = False
    options: bytes = b"\x80"
    environment: dict[str, str] = {}
    log_level: str = "info"
    log_format: Literal["text", "json"] = "text"
    heartbeat_s: float = 0.5
    stop_s: float = 5.0
    retry_after_s: float = 5.0
    batch_limit: int = 32
    limits: LaneLimits = LaneLimits()


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Take no more sessions; end when the last has closed, or after ``deadline_s`` seconds."""

    deadline_s: float


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the supervisor of a worker knows of it."""

    name: str
    state: str
    restarts: int
    sessions: int
    start_s: float
    reading: Reading


class Staff(msgspec.Struct, frozen=True, tag=True):
    """To a gateway that is not the workers' parent: how they are, and how often gateways have had
    to be started again."""

    workers: tuple[Told, ...]
    gateway_restarts: int = 0


Request = Drain | Staff


class Started(msgspec.Struct, frozen=True, tag=True):
    """The backend is warm and the sockets are open."""

    capacity: int


class StartFailed(msgspec.Struct, frozen=True, tag=True):
    """The backend could not be started. ``reason`` is for the operator, not for clients."""

    reason: str


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The worker's event loop turns. ``sessions`` are open."""

    sessions: int
    reading: Reading


Report = Started | StartFailed | Beat
