"""Tools, tool choice, voices and formats: what sessions and single responses both carry."""

import msgspec

from duologue.realtime.json_fields import (
    Fields,
    Json,
    missing,
    shown,
    unsupported,
    wrong_type,
    wrong_value,
)
from duologue.sessions.session_config import AudioFormat, FunctionTool, Modality

LONGEST_VOICE = 128
LONGEST_TOOL_NAME = 64
MOST_TOKENS = 4096
_FUNCTION = "function:"


def decode_modality(fields: Fields) -> Modality | None:
    name = "output_modalities"
    values = fields.strings(name)
    if values is None:
        return None
    if values == ("audio",):
        return "audio"
    if values == ("text",):
        return "text"
    raise wrong_value(fields.at(name), "must be ['audio'] (which has a transcript) or ['text'].")


def encode_modality(modality: Modality) -> Json:
    return [modality]


def decode_format(fields: Fields) -> AudioFormat | None:
    """The ``format`` of ``audio.input`` or ``audio.output``."""
    given = fields.object("format")
    if given is None:
        return None
    kind = given.choice("type", ("audio/pcm", "audio/pcmu", "audio/pcma")) or "audio/pcm"
    chosen = AudioFormat(kind)
    rate = given.integer("rate", 1)
    if chosen is AudioFormat.PCM and rate is not None and rate != AudioFormat.PCM.rate:
        raise wrong_value(given.at("rate"), "must be 24000.")
    return chosen


def encode_format(audio_format: AudioFormat) -> Json:
    if audio_format is AudioFormat.PCM:
        return {"type": audio_format.value, "rate": audio_format.rate}
    return {"type": audio_format.value}


def decode_voice(fields: Fields) -> str | None:
    """A voice by its name, or as ``{"id": …}``."""
    if isinstance(fields.value("voice"), dict):
        return fields.required_object("voice").required_id("id")
    voice = fields.string("voice", LONGEST_VOICE)
    if voice == "":
        raise wrong_value(fields.at("voice"), "must not be empty.")
    return voice


def decode_max_output_tokens(fields: Fields) -> int | None:
    """``None`` for ``"inf"`` and ``null``."""
    name = "max_output_tokens"
    if isinstance(fields.value(name), str):
        fields.choice(name, ("inf",))
        return None
    return fields.integer(name, 1, MOST_TOKENS)


def encode_max_output_tokens(limit: int | None) -> Json:
    return "inf" if limit is None else limit


def decode_tools(fields: Fields) -> tuple[FunctionTool, ...] | None:
    tools = fields.objects("tools")
    return None if tools is None else tuple(_decode_tool(tool) for tool in tools)


def _decode_tool(fields: Fields) -> FunctionTool:
    kind = fields.string("type") or "function"
    if kind == "mcp":
        raise unsupported(fields.at("type"), "MCP tools are not supported; nothing was changed.")
    if kind != "function":
        raise wrong_value(fields.at("type"), f"must be 'function', not {shown(kind)}.")
    name = fields.required_string("name", LONGEST_TOOL_NAME)
    if not name:
        raise missing(fields.at("name"))
    parameters = fields.object("parameters")
    schema = b"{}" if parameters is None else msgspec.json.encode(fields.kept("parameters"))
    return FunctionTool(name, fields.string("description") or "", schema.decode())


def encode_tool(tool: FunctionTool) -> Json:
    encoded: dict[str, Json] = {"type": "function", "name": tool.name}
    if tool.description:
        encoded["description"] = tool.description
    encoded["parameters"] = msgspec.json.decode(tool.parameters)
    return encoded


def decode_tool_choice(fields: Fields) -> str | None:
    """``auto``, ``none``, ``required`` or ``function:NAME``."""
    name = "tool_choice"
    value = fields.value(name)
    if value is None:
        return None
    if isinstance(value, str):
        return fields.choice(name, ("auto", "none", "required"))
    if not isinstance(value, dict):
        raise wrong_type(fields.at(name), "string or object", value)
    chosen = fields.required_object(name)
    if chosen.string("type") == "mcp":
        raise unsupported(chosen.at("type"), "MCP tools are not supported.")
    chosen.choice("type", ("function",))
    return _FUNCTION + chosen.required_id("name")


def encode_tool_choice(choice: str) -> Json:
    if choice.startswith(_FUNCTION):
        return {"type": "function", "name": choice.removeprefix(_FUNCTION)}
    return choice
