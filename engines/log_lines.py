"""A line of the log as a JSON object."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

_SECRET: Final = frozenset({"authorization", "api-key", "cookie", "sec-websocket-protocol"})


class Discretion(logging.Filter):
    """Leaves out what clients prove with who they are: libraries tell of each header, as a name
    and a value, when they are asked to tell all."""

    def filter(self, record: logging.LogRecord) -> bool:
        given = record.args
        if isinstance(given, tuple) and len(given) == 2 and str(given[0]).lower() in _SECRET:
            record.args = (given[0], "(left out)")
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object: time (RFC 3339), level, logger, message, and the traceback if any.

    `given`: fields that every line gets besides, such as the worker that it comes from.
    """

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self._given = dict(given or {})

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self._given,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry).decode()
