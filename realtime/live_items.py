"""Items that a Live client adds: for its backend, and for decisions."""

from collections.abc import Mapping
from typing import Final

from duologue.realtime.json_fields import LONGEST_ID, Fields, missing, shown, unsupported
from duologue.realtime.live_questions import decode_text
from duologue.sessions.items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputText,
)

_ROLES: Final = ("user", "developer", "system", "assistant")
_STATUSES: Final = ("in_progress", "completed", "incomplete")
_DECISION_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "message": ("type", "id", "role", "content", "phase"),
    "function_call": ("type", "id", "call_id", "name", "arguments", "namespace", "status"),
    "function_call_output": ("type", "id", "call_id", "output", "status"),
    "custom_tool_call": ("type", "id", "call_id", "name", "input", "namespace", "status"),
    "custom_tool_call_output": ("type", "id", "call_id", "output", "status"),
}


def decode_response_item(item: Fields) -> Item:
    """An item of the Responses API that a conversation here can hold. Raises ProtocolError."""
    kind = item.string("type") or "message"
    item_id = item.string("id", LONGEST_ID) or ""
    if kind == "message":
        return _decode_message(item, item_id)
    if kind == "function_call_output":
        return FunctionOutputItem(item_id, item.required_id("call_id"), decode_text(item, "output"))
    if kind == "function_call":
        return FunctionCallItem(
            item_id,
            item.required_id("call_id"),
            item.required_id("name"),
            item.required_string("arguments"),
        )
    message = f"Items of the type {shown(kind)} have no meaning here; it was not added."
    raise unsupported(item.at("type"), message)


def _decode_message(item: Fields, item_id: str) -> MessageItem:
    role = item.choice("role", _ROLES)
    if role is None:
        raise missing(item.at("role"))
    if isinstance(item.value("content"), str) or role != "user":
        text = decode_text(item, "content")
        if role == "assistant":
            return MessageItem(item_id, "assistant", (OutputText(text),))
        return MessageItem(item_id, "user" if role == "user" else "system", (InputText(text),))
    content: list[InputText | InputImage] = []
    for part in item.objects("content") or []:
        kind = part.choice("type", ("input_text", "input_image"))
        if kind == "input_image":
            detail = part.choice("detail", ("low", "high", "auto", "original")) or "auto"
            content.append(
                InputImage(
                    part.required_string("image_url"), "high" if detail == "original" else detail
                )
            )
        else:
            content.append(InputText(part.required_string("text")))
    if not content:
        raise missing(item.at("content"))
    return MessageItem(item_id, "user", tuple(content))


def decode_decision_item(item: Fields) -> str:
    """What there is to read in an item for decisions. Raises ProtocolError."""
    kind = item.string("type") or "message"
    names = _DECISION_FIELDS.get(kind)
    if names is None:
        raise unsupported(item.at("type"), f"There are no items of the type {shown(kind)}.")
    item.only(*names)
    item.string("id", LONGEST_ID)
    if kind == "message":
        role = item.choice("role", _ROLES)
        if role is None:
            raise missing(item.at("role"))
        item.choice("phase", ("commentary", "final_answer"))
        return f"{role}: {decode_text(item, 'content')}"
    item.choice("status", _STATUSES)
    item.required_id("call_id")
    if kind.endswith("_output"):
        return f"result of a tool: {decode_text(item, 'output')}"
    name = item.required_id("name")
    said = item.required_string("arguments" if kind == "function_call" else "input")
    return f"call of {name}: {said}"
