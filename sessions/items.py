"""Items of a conversation and what they are made of."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]
Status = Literal["completed", "incomplete", "in_progress"]


@dataclass(frozen=True, slots=True)
class InputText:
    text: str


@dataclass(frozen=True, slots=True)
class InputAudio:
    """What a user said. The transcript is ``None`` until it is known."""

    transcript: str | None = None


@dataclass(frozen=True, slots=True)
class InputImage:
    """``url`` is a ``data:`` or ``https:`` URL; ``detail`` is auto, low or high."""

    url: str
    detail: str = "auto"


@dataclass(frozen=True, slots=True)
class OutputText:
    text: str


@dataclass(frozen=True, slots=True)
class OutputAudio:
    """What the assistant said; after an interruption only what was heard of it."""

    transcript: str


Content = InputText | InputAudio | InputImage | OutputText | OutputAudio


@dataclass(frozen=True, slots=True)
class MessageItem:
    id: str
    role: Role
    content: tuple[Content, ...]
    status: Status = "completed"


@dataclass(frozen=True, slots=True)
class FunctionCallItem:
    """``arguments`` is JSON text as the model wrote it."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status = "completed"


@dataclass(frozen=True, slots=True)
class FunctionOutputItem:
    id: str
    call_id: str
    output: str
    status: Status = "completed"


Item = MessageItem | FunctionCallItem | FunctionOutputItem
