"""How the process logs: to standard error, as text or as JSON, a line a message."""

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

import msgspec

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class JsonFormatter(logging.Formatter):
    """One JSON object: time (RFC 3339), level, logger, message, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry).decode()


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Set up the root logger; what libraries say in passing is left out unless debugging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    quiet = logging.DEBUG if level == "debug" else logging.WARNING
    for name in (
        "uvicorn.error",
        "uvicorn.asgi",
        "httpx",
        "httpcore",
        "websockets",
        "aioice",
        "aiortc",
    ):
        logging.getLogger(name).setLevel(quiet)
