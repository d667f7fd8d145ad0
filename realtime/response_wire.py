"""Responses both ways: what a client asks of one, and how one is shown."""

from typing import Final

from duologue.realtime.item_wire import decode_item, encode_item
from duologue.realtime.json_fields import (
    Fields,
    shown,
    unsupported,
    wrong_type,
    wrong_value,
)
from duologue.realtime.tool_wire import (
    decode_format,
    decode_max_output_tokens,
    decode_modality,
    decode_tool_choice,
    decode_tools,
    decode_voice,
    encode_format,
    encode_max_output_tokens,
    encode_modality,
)
from duologue.sessions.effects import AudioUsage, ResponseView
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import ItemReference, ResponseParams
from duologue.sessions.items import Item
from duologue.sessions.session_config import UNSET, AudioFormat

MOST_METADATA: Final = 16
LONGEST_METADATA_KEY: Final = 64
LONGEST_METADATA_VALUE: Final = 512
LONGEST_INPUT: Final = 2_000
CONVERSATION_PREFIX: Final = "conv_"


# -- from the client ------------------------------------------------------------------------


def decode_response(response: Fields, input_format: AudioFormat) -> ResponseParams:
    """The ``response`` of ``response.create``. ``prompt`` and ``reasoning`` have no effect."""
    audio = response.object("audio")
    output = audio.object("output") if audio is not None else None
    return ResponseParams(
        conversation=_decode_conversation(response),
        input=_decode_input(response, input_format),
        instructions=response.string("instructions"),
        modality=decode_modality(response),
        voice=None if output is None else decode_voice(output),
        output_format=None if output is None else decode_format(output),
        tools=decode_tools(response),
        tool_choice=decode_tool_choice(response),
        parallel_tool_calls=response.boolean("parallel_tool_calls"),
        max_output_tokens=(
            decode_max_output_tokens(response) if response.has("max_output_tokens") else UNSET
        ),
        metadata=_decode_metadata(response),
    )


def _decode_conversation(response: Fields) -> bool:
    """Whether the response belongs to the session's one conversation."""
    value = response.string("conversation")
    if value is None or value == "auto" or value.startswith(CONVERSATION_PREFIX):
        return True
    if value == "none":
        return False
    raise wrong_value(response.at("conversation"), f"must be 'auto' or 'none', not {shown(value)}.")


def _decode_input(
    response: Fields, input_format: AudioFormat
) -> tuple[Item | ItemReference, ...] | None:
    items = response.objects("input")
    if items is None:
        return None
    if len(items) > LONGEST_INPUT:
        raise wrong_value(response.at("input"), f"must not hold more than {LONGEST_INPUT} items.")
    decoded: list[Item | ItemReference] = []
    for fields in items:
        if fields.string("type") == "item_reference":
            decoded.append(ItemReference(fields.required_id("id")))
            continue
        item, audio = decode_item(fields, input_format)
        if audio is not None:
            raise unsupported(
                fields.at("content"),
                "Audio in a response's input is not supported: add it to the conversation and "
                "refer to it with an item_reference.",
            )
        decoded.append(item)
    return tuple(decoded)


def _decode_metadata(response: Fields) -> dict[str, str] | None:
    metadata = response.object("metadata")
    if metadata is None:
        return None
    decoded: dict[str, str] = {}
    for key, value in metadata.items():
        path = metadata.at(key[:LONGEST_METADATA_KEY])
        if not isinstance(value, str):
            raise wrong_type(path, "string", value)
        if len(key) > LONGEST_METADATA_KEY or len(value) > LONGEST_METADATA_VALUE:
            raise wrong_value(
                path,
                f"must be at most {LONGEST_METADATA_VALUE} characters, its key at most "
                f"{LONGEST_METADATA_KEY}.",
            )
        decoded[key] = value
    if len(decoded) > MOST_METADATA:
        raise wrong_value(metadata.path, f"must not hold more than {MOST_METADATA} pairs.")
    return decoded


# -- to the client --------------------------------------------------------------------------


def encode_error(error: ProtocolError) -> dict[str, object]:
    """What a client learns of an error where it is not the event itself."""
    return {"type": error.type, "code": error.code, "message": error.message}


def encode_response(view: ResponseView) -> dict[str, object]:
    output: dict[str, object] = {
        "format": encode_format(view.output_format),
        "voice": view.voice,
    }
    return {
        "object": "realtime.response",
        "id": view.id,
        "status": view.status,
        "status_details": _encode_details(view),
        "output": [encode_item(item) for item in view.output],
        "conversation_id": view.conversation_id,
        "output_modalities": encode_modality(view.modality),
        "max_output_tokens": encode_max_output_tokens(view.max_output_tokens),
        "audio": {"output": output},
        "usage": None if view.usage is None else _encode_usage(view.usage),
        "metadata": view.metadata,
    }


def _encode_details(view: ResponseView) -> dict[str, object] | None:
    if view.status in ("in_progress", "completed"):
        return None
    details: dict[str, object] = {"type": view.status}
    if view.reason is not None:
        details["reason"] = view.reason
    if view.error is not None:
        details["error"] = encode_error(view.error)
    return details


def _encode_usage(usage: AudioUsage) -> dict[str, object]:
    input_tokens = usage.text.input_tokens + usage.input_audio_tokens
    output_tokens = usage.text.output_tokens + usage.output_audio_tokens
    return {
        "total_tokens": input_tokens + output_tokens,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "input_token_details": {
            "text_tokens": usage.text.input_tokens,
            "audio_tokens": usage.input_audio_tokens,
            "image_tokens": 0,
            "cached_tokens": usage.text.cached_tokens,
            "cached_tokens_details": {
                "text_tokens": usage.text.cached_tokens,
                "audio_tokens": 0,
                "image_tokens": 0,
            },
        },
        "output_token_details": {
            "text_tokens": usage.text.output_tokens,
            "audio_tokens": usage.output_audio_tokens,
        },
    }
