"""A conversation as a language model sees it, in no model's own form."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function that the model has called; `arguments` is the JSON text that it wrote."""

    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that the model may call; `parameters` is a JSON Schema as JSON text."""

    name: str
    description: str = ""
    parameters: str = "{}"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One entry of the history.

    `tool_calls` belong to the assistant's messages. A message with the role "tool" is the output of
    the call with that `call_id`.
    """

    role: Role
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One message as a chat template takes it: a role and a text."""

    role: Literal["system", "user", "assistant"]
    content: str
