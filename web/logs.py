"""How the process logs: to standard error, as text or as JSON, a line a message."""

import logging
import sys
from typing import Literal

from duologue.engines.log_lines import Discretion, JsonFormatter

TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def configure(level: str, form: Literal["text", "json"]) -> None:
    """Set up the root logger."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT))
    handler.addFilter(Discretion())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    quieten(level)


def quieten(level: str) -> None:
    """Leave out what libraries say in passing, unless debugging."""
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
    # It warns of every malformed body of a client's, who is told of it in the answer.
    parser = logging.DEBUG if level == "debug" else logging.ERROR
    logging.getLogger("python_multipart").setLevel(parser)
