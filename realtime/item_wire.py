"""Conversation items both ways."""

import binascii
from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec

from duologue.realtime.json_fields import (
    LONGEST_ID,
    Fields,
    missing,
    shown,
    unsupported,
    wrong_type,
    wrong_value,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import (
    Content,
    FunctionCallItem,
    FunctionOutputItem,
    InputAudio,
    InputImage,
    InputText,
    Item,
    MessageItem,
    OutputAudio,
    OutputText,
    Role,
    Status,
)
from duologue.sessions.session_config import AudioFormat

MAX_AUDIO_BYTES: Final = 15 * 1024 * 1024
"""Decoded audio in one event."""

_STATUSES: tuple[Status, ...] = ("completed", "incomplete", "in_progress")
_PARTS: Mapping[Role, tuple[str, ...]] = {
    "system": ("input_text",),
    "user": ("input_text", "input_audio", "input_image"),
    "assistant": ("output_text", "output_audio"),
}
_MCP_ITEMS = ("mcp_approval_response", "mcp_list_tools", "mcp_call", "mcp_approval_request")


def check_audio(audio: bytes, audio_format: AudioFormat, path: str) -> None:
    """Refuses more than an event may carry and a part of a sample."""
    if len(audio) > MAX_AUDIO_BYTES:
        raise ProtocolError(
            "event_too_large", f"'{path}' holds more than {MAX_AUDIO_BYTES} bytes of audio.", path
        )
    if len(audio) % audio_format.sample_bytes:
        raise ProtocolError(
            "invalid_audio", f"'{path}' must hold whole 16-bit samples: it is odd in length.", path
        )


def decode_base64(text: str, path: str) -> bytes:
    """Strict RFC 4648 section 4: padded, no white space, nothing outside the alphabet."""
    try:
        # binascii's strict mode lets padding after a whole group pass; this is faster, too.
        return msgspec.convert(text, bytes)
    except msgspec.ValidationError:
        raise ProtocolError("invalid_audio", f"'{path}' is not valid base64.", path) from None


# -- from the client ------------------------------------------------------------------------


def decode_item(fields: Fields, audio_format: AudioFormat) -> tuple[Item, bytes | None]:
    """An item, and the audio of a user's message if it has any.

    The id is empty when the client leaves it to the server.
    """
    kind = fields.required_string("type")
    if kind in _MCP_ITEMS:
        raise unsupported(fields.at("type"), "MCP is not supported; the item was not added.")
    item_id = fields.string("id", LONGEST_ID) or ""
    status = fields.choice("status", _STATUSES) or "completed"
    if kind == "message":
        return _decode_message(fields, item_id, status, audio_format)
    if kind == "function_call":
        call_id = fields.string("call_id", LONGEST_ID) or ""
        name = fields.required_id("name")
        arguments = fields.required_string("arguments")
        return FunctionCallItem(item_id, call_id, name, arguments, status), None
    if kind == "function_call_output":
        call_id = fields.required_id("call_id")
        return FunctionOutputItem(item_id, call_id, fields.required_string("output"), status), None
    raise wrong_value(
        fields.at("type"),
        f"must be 'message', 'function_call' or 'function_call_output', not {shown(kind)}.",
    )


def _decode_message(
    fields: Fields, item_id: str, status: Status, audio_format: AudioFormat
) -> tuple[MessageItem, bytes | None]:
    role = fields.choice("role", tuple(_PARTS))
    if role is None:
        raise missing(fields.at("role"))
    parts = fields.objects("content")
    if parts is None:
        raise missing(fields.at("content"))
    content: list[Content] = []
    audio: bytes | None = None
    for part in parts:
        kind = part.choice("type", _PARTS[role])
        if kind is None:
            raise missing(part.at("type"))
        content.append(_DECODE_PART[kind](part))
        if kind != "input_audio" or part.value("audio") is None:
            continue
        if audio is not None:
            raise unsupported(part.at("audio"), "A message may hold audio once.")
        audio = decode_base64(part.required_string("audio"), part.at("audio"))
        check_audio(audio, audio_format, part.at("audio"))
    return MessageItem(item_id, role, tuple(content), status), audio


def _decode_image(part: Fields) -> InputImage:
    url = part.required_string("image_url")
    if not url.startswith(("data:image/", "https://")):
        raise wrong_value(part.at("image_url"), "must be a 'data:image/…' or 'https://…' URL.")
    return InputImage(url, part.choice("detail", ("auto", "low", "high")) or "auto")


def _decode_spoken(part: Fields) -> OutputAudio:
    transcript = part.string("transcript")
    if transcript is None:
        raise missing(part.at("transcript"))
    return OutputAudio(transcript)


def _decode_heard(part: Fields) -> InputAudio:
    audio = part.value("audio")
    if audio is not None and not isinstance(audio, str):
        raise wrong_type(part.at("audio"), "string", audio)
    return InputAudio(part.string("transcript"))


_DECODE_PART: Mapping[str, Callable[[Fields], Content]] = {
    "input_text": lambda part: InputText(part.required_string("text")),
    "input_audio": _decode_heard,
    "input_image": _decode_image,
    "output_text": lambda part: OutputText(part.required_string("text")),
    "output_audio": _decode_spoken,
}


# -- to the client --------------------------------------------------------------------------


def encode_item(item: Item, audio: bytes | None = None) -> dict[str, object]:
    """An item; ``audio`` in the session's input format goes into its ``input_audio``."""
    encoded: dict[str, object] = {
        "id": item.id,
        "object": "realtime.item",
        "type": _ITEM_TYPES[type(item)],
        "status": item.status,
    }
    match item:
        case MessageItem():
            encoded["role"] = item.role
            encoded["content"] = [_encode_part(part, audio) for part in item.content]
        case FunctionCallItem():
            encoded["call_id"] = item.call_id
            encoded["name"] = item.name
            encoded["arguments"] = item.arguments
        case FunctionOutputItem():
            encoded["call_id"] = item.call_id
            encoded["output"] = item.output
    return encoded


_ITEM_TYPES: Mapping[type[Item], Literal["message", "function_call", "function_call_output"]] = {
    MessageItem: "message",
    FunctionCallItem: "function_call",
    FunctionOutputItem: "function_call_output",
}


def _encode_part(part: Content, audio: bytes | None) -> dict[str, object]:
    match part:
        case InputText(text):
            return {"type": "input_text", "text": text}
        case InputAudio(transcript):
            encoded: dict[str, object] = {"type": "input_audio", "transcript": transcript}
            if audio is not None:
                encoded["audio"] = binascii.b2a_base64(audio, newline=False).decode("ascii")
            return encoded
        case InputImage(url, detail):
            return {"type": "input_image", "image_url": url, "detail": detail}
        case OutputText(text):
            return {"type": "output_text", "text": text}
        case OutputAudio(transcript):
            return {"type": "output_audio", "transcript": transcript}
