"""Who does what the model hands over, and what is told of it.

A task for the application is a call of one tool without arguments: the client hears of a
delegation, and what it appends to it is the tool's output. With a backend the client's own tools
are the model's, and their calls are told as the Responses API would.
"""

import itertools
import math
from dataclasses import dataclass, field
from typing import Final

from duologue.sessions.effects import ResponseView
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import FunctionCallItem, MessageItem, OutputAudio, OutputText
from duologue.sessions.live_config import (
    ClientDelegation,
    ResponsesDelegation,
)
from duologue.sessions.live_events import DelegationCreated, ResponseTold
from duologue.sessions.live_session import LiveSession

MOST_DELEGATIONS: Final = 256
"""Delegations that can still be answered; an older one is forgotten."""


@dataclass(slots=True)
class _Told:
    """A response of which the client is told. ``sequence`` counts its events."""

    delegation_id: str | None
    client_event_id: str | None
    sequence: "itertools.count[int]" = field(default_factory=itertools.count)
    items: int = 0


class Delegations:
    """One session's. Events go to the session's own list."""

    def __init__(self, session: LiveSession) -> None:
        self._session = session
        self._calls: dict[str, str | None] = {}
        self._told: dict[str, _Told] = {}
        self._last: str | None = None
        self._continued: tuple[str | None] | None = None
        self._acknowledge_at = math.inf

    # -- from the client --------------------------------------------------------------------

    def take_call(self, delegation_id: str | None) -> str | None:
        """The call that the first word about a delegation answers; ``None`` for further ones.

        Raises ProtocolError for a delegation that is not the client's.
        """
        self._acknowledge_at = math.inf
        if delegation_id is None:
            return None
        if delegation_id not in self._calls:
            message = f"There is no delegation '{delegation_id}' to the client."
            raise ProtocolError("delegation_not_found", message, "delegation_id")
        call_id, self._calls[delegation_id] = self._calls[delegation_id], None
        return call_id

    def check_responses(self) -> None:
        """Raises ProtocolError unless tasks go to a backend."""
        if not isinstance(self._session.config.delegation, ResponsesDelegation):
            message = "This needs a session whose delegation is of the type 'responses'."
            raise ProtocolError("invalid_event_for_session", message)

    def continues(self, client_event_id: str | None) -> None:
        """The next response is the client's wish."""
        self._continued = (client_event_id,)

    # -- from the model ---------------------------------------------------------------------

    def response_created(self, response_id: str) -> None:
        if self._continued is not None:
            (client_event_id,) = self._continued
            self._continued = None
            self._begin(response_id, self._last, client_event_id)

    def called(self, response_id: str, item: FunctionCallItem, now: float) -> None:
        """The model calls a tool."""
        delegation = self._session.config.delegation
        offset = self._session.place(now)
        if isinstance(delegation, ClientDelegation):
            made = self._session.new_id("dlg")
            self._calls[made] = item.call_id
            while len(self._calls) > MOST_DELEGATIONS:
                del self._calls[next(iter(self._calls))]
            self._session.events.append(DelegationCreated(made, "client", offset))
            if delegation.acknowledge_ms is not None:
                self._acknowledge_at = now + delegation.acknowledge_ms / 1000
        elif isinstance(delegation, ResponsesDelegation):
            if response_id not in self._told:
                self._last = self._session.new_id("dlg")
                self._session.events.append(
                    DelegationCreated(self._last, "responses", offset, response_id)
                )
                self._begin(response_id, self._last, None)
            self._tell_item(response_id, _shown_call(item))

    def item_done(self, response_id: str, item: MessageItem) -> None:
        """The model has said something: told where the client hears of the response."""
        if response_id in self._told:
            self._tell_item(response_id, _shown_message(item))

    def response_done(self, response: ResponseView) -> None:
        told = self._told.get(response.id)
        if told is None:
            return
        kind = {"completed": "completed", "failed": "failed"}.get(response.status, "incomplete")
        self._tell(response.id, f"response.{kind}", response=self._shown(response.id, response))
        del self._told[response.id]

    def acknowledges(self, now: float) -> bool:
        """Whether a delegation has waited for long enough to be acknowledged; once."""
        if now < self._acknowledge_at:
            return False
        self._acknowledge_at = math.inf
        return True

    # -- told -------------------------------------------------------------------------------

    def _begin(self, response_id: str, delegation_id: str | None, event: str | None) -> None:
        self._told[response_id] = _Told(delegation_id, event)
        self._tell(response_id, "response.created", response=self._shown(response_id, None))

    def _tell_item(self, response_id: str, item: dict[str, object]) -> None:
        told = self._told[response_id]
        index, told.items = told.items, told.items + 1
        self._tell(
            response_id,
            "response.output_item.added",
            output_index=index,
            item={**item, "status": "in_progress"},
        )
        self._tell(response_id, "response.output_item.done", output_index=index, item=item)

    def _tell(self, response_id: str, kind: str, **fields: object) -> None:
        told = self._told[response_id]
        event = {"type": kind, "sequence_number": next(told.sequence), **fields}
        self._session.events.append(ResponseTold(event, told.delegation_id, told.client_event_id))

    def _shown(self, response_id: str, response: ResponseView | None) -> dict[str, object]:
        """A snapshot as the Responses API gives it: without input and output."""
        delegation = self._session.config.delegation
        model = self._session.config.model
        if isinstance(delegation, ResponsesDelegation):
            named = delegation.shown.get("model")
            model = named if isinstance(named, str) else model
        shown: dict[str, object] = {
            "id": response_id,
            "object": "response",
            "created_at": 0,
            "status": "in_progress",
            "model": model,
            "instructions": None,
            "tools": [],
            "output": [],
            "error": None,
            "incomplete_details": None,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "metadata": {},
            "usage": None,
        }
        if response is not None:
            shown["status"] = "incomplete" if response.status == "cancelled" else response.status
            if response.status in ("incomplete", "cancelled"):
                shown["incomplete_details"] = {"reason": response.reason}
            if response.error is not None:
                shown["error"] = {"code": "server_error", "message": response.error.message}
            if response.usage is not None:
                shown["usage"] = _shown_usage(response)
        return shown


def _shown_usage(response: ResponseView) -> dict[str, object]:
    assert response.usage is not None
    usage = response.usage.text
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


def _shown_call(item: FunctionCallItem) -> dict[str, object]:
    return {
        "type": "function_call",
        "id": item.id,
        "call_id": item.call_id,
        "name": item.name,
        "arguments": item.arguments,
        "status": item.status,
    }


def _shown_message(item: MessageItem) -> dict[str, object]:
    texts = [
        part.transcript if isinstance(part, OutputAudio) else part.text
        for part in item.content
        if isinstance(part, OutputAudio | OutputText)
    ]
    return {
        "type": "message",
        "id": item.id,
        "role": "assistant",
        "status": item.status,
        "content": [{"type": "output_text", "text": text, "annotations": []} for text in texts],
    }
