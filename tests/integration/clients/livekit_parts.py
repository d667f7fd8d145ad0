"""What both of LiveKit's models of OpenAI are tried with."""

import logging
from collections.abc import Callable
from typing import Any

from client_steps import until
from livekit.agents import llm


class LogWatch(logging.Handler):
    """Keeps what the plugin logs as a warning or worse, while it is entered."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(f"{record.levelname} {record.name}: {record.getMessage()}")

    def __enter__(self) -> "LogWatch":
        logging.getLogger().addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        logging.getLogger().removeHandler(self)


class Told:
    """Everything that a session told its application."""

    def __init__(self, session: Any, *kinds: str) -> None:
        self.events: dict[str, list[Any]] = {}
        for kind in ("error", "openai_server_event_received", *kinds):
            session.on(kind, self._note(kind))

    def _note(self, kind: str) -> Callable[[Any], None]:
        return lambda event: self.events.setdefault(kind, []).append(event)

    def server_events(self, kind: str) -> list[dict[str, Any]]:
        seen = self.events.get("openai_server_event_received", [])
        return [event for event in seen if event.get("type") == kind]

    async def until(self, what: str, condition: Callable[[], object]) -> None:
        await until(what, condition, lambda: self.events.get("error"))


@llm.function_tool
async def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"It rains in {city}."
