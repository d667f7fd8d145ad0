"""The JSON of a request for chat completions, ``POST /v1/chat/completions``.

Source: ``openai.types.chat`` of the ``openai`` package. A field that can't be honoured is refused
with its name; the few that are accepted without an effect are in :data:`WITHOUT_EFFECT`.
"""

import re
from dataclasses import dataclass
from typing import Final

import msgspec

from duologue.engines.engine import (
    EngineSpec,
    ImagePart,
    Message,
    ResponseRequest,
    TextPart,
    Tool,
    ToolInvocation,
)
from duologue.realtime.chat_refusal import ChatRefusal
from duologue.realtime.json_fields import (
    Fields,
    Json,
    missing,
    shown,
    unsupported,
    wrong_type,
    wrong_value,
)
from duologue.sessions.errors import ProtocolError

LARGEST_REQUEST: Final = 20 * 1024 * 1024
"""Bytes of a request's body; pictures come in it."""

MOST_TOOLS: Final = 128
MOST_STOPS: Final = 4
LONGEST_STOP: Final = 256

WITHOUT_EFFECT: Final = frozenset(
    (
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    )
)
"""Fields that say nothing about the answer. Nothing is stored, whatever they say."""

_NEUTRAL: Final[dict[str, tuple[Json, ...]]] = {
    "audio": (),
    "frequency_penalty": (0,),
    "function_call": (),
    "functions": (),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "prediction": (),
    "presence_penalty": (0,),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields of which only the values that change nothing are supported."""

_READ: Final = frozenset(
    (
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "parallel_tool_calls",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "tool_choice",
        "tools",
        "top_p",
    )
)
_SAMPLING: Final = ("temperature", "top_p", "seed", "stop")
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SEED: Final = 2**63


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """``include_usage``: a stream's last chunk tells the usage."""

    request: ResponseRequest
    stream: bool = False
    include_usage: bool = False


# -- requests -------------------------------------------------------------------------------


def decode_chat_request(body: bytes, spec: EngineSpec) -> ChatRequest:
    """A request for the model that `spec` tells of.

    Raises ProtocolError for a request that is wrong, ChatRefusal for one that this server or
    model can't serve.
    """
    try:
        message: Json = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ProtocolError("invalid_json", "The body is not JSON.") from None
    fields = Fields(message)
    _check_model(fields, spec)
    for name, value in fields.items():
        _check_supported(name, value, spec)
    stream = fields.boolean("stream") or False
    tools = _tools(fields, spec)
    instructions, messages = _messages(fields, spec)
    return ChatRequest(
        ResponseRequest(
            instructions=instructions,
            messages=messages,
            modality="text",
            tools=tools,
            tool_choice=_tool_choice(fields, tools),
            parallel_tool_calls=fields.boolean("parallel_tool_calls") is not False,
            max_output_tokens=_most_tokens(fields),
            temperature=fields.number("temperature", 0, 2),
            top_p=_top_p(fields),
            seed=fields.integer("seed", -_SEED, _SEED - 1),
            stop=_stops(fields),
            whole=True,
        ),
        stream,
        _include_usage(fields, stream),
    )


def _check_model(fields: Fields, spec: EngineSpec) -> None:
    model = fields.required_string("model")
    if model != spec.model:
        words = f"There is no model {shown(model)}; this server has {shown(spec.model)}."
        raise ChatRefusal(404, "invalid_request_error", "model_not_found", words, "model")
    if not spec.batch:
        words = f"{shown(model)} gives no chat completions."
        raise ChatRefusal(400, "invalid_request_error", "unsupported_model", words, "model")


def _check_supported(name: str, value: Json, spec: EngineSpec) -> None:
    if name in _NEUTRAL:
        if value is not None and value not in _NEUTRAL[name]:
            kept = " or ".join(msgspec.json.encode(one).decode() for one in _NEUTRAL[name])
            only = f": it can only be {kept}" if kept else ""
            raise unsupported(name, f"'{name}' is not supported{only}.")
    elif name in _SAMPLING:
        if value is not None and name not in spec.sampling:
            raise unsupported(name, f"{shown(spec.model)} can't honour '{name}'.")
    elif name not in _READ and name not in WITHOUT_EFFECT:
        raise _unknown(name)


def _unknown(name: str) -> ChatRefusal:
    words = f"There is no parameter {shown(name)}."
    return ChatRefusal(400, "invalid_request_error", "unknown_parameter", words, name)


def _include_usage(fields: Fields, stream: bool) -> bool:
    options = fields.object("stream_options")
    if options is None:
        return False
    if not stream:
        raise wrong_value("stream_options", "is only allowed when 'stream' is true.")
    # Obfuscation pads chunks against eavesdroppers; a client may ask to be spared it.
    known = ("include_usage", "include_obfuscation")
    unknown = [name for name, _ in options.items() if name not in known]
    if unknown:
        raise _unknown(options.at(unknown[0]))
    if options.boolean("include_obfuscation"):
        raise unsupported(options.at("include_obfuscation"), "Obfuscation is not supported.")
    return options.boolean("include_usage") or False


def _most_tokens(fields: Fields) -> int | None:
    older = fields.integer("max_tokens", 1)
    newer = fields.integer("max_completion_tokens", 1)
    if older is not None and newer is not None:
        raise wrong_value("max_tokens", "can't be given together with 'max_completion_tokens'.")
    return newer if older is None else older


def _top_p(fields: Fields) -> float | None:
    top_p = fields.number("top_p", 0, 1)
    if top_p == 0:
        raise wrong_value("top_p", "must be above 0.")
    return top_p


def _stops(fields: Fields) -> tuple[str, ...]:
    given = fields.value("stop")
    stops = (given,) if isinstance(given, str) else fields.strings("stop") or ()
    if len(stops) > MOST_STOPS:
        raise wrong_value("stop", f"must not hold more than {MOST_STOPS} texts.")
    if not all(0 < len(stop) <= LONGEST_STOP for stop in stops):
        raise wrong_value("stop", f"must hold texts of 1 to {LONGEST_STOP} characters.")
    return stops


# -- tools ----------------------------------------------------------------------------------


def _tools(fields: Fields, spec: EngineSpec) -> tuple[Tool, ...]:
    entries = fields.objects("tools") or []
    if len(entries) > MOST_TOOLS:
        raise wrong_value("tools", f"must not hold more than {MOST_TOOLS} tools.")
    if entries and not spec.calls_tools:
        raise unsupported("tools", f"{shown(spec.model)} can't call tools.")
    tools = tuple(_tool(entry) for entry in entries)
    if len({tool.name for tool in tools}) < len(tools):
        raise wrong_value("tools", "must not hold two functions of one name.")
    return tools


def _tool(entry: Fields) -> Tool:
    entry.choice("type", ("function",))
    function = entry.required_object("function")
    name = function.required_string("name")
    if not _NAME.fullmatch(name):
        raise wrong_value(function.at("name"), "must be 1 to 64 of a-z, A-Z, 0-9, '_' and '-'.")
    parameters = function.kept("parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    elif not isinstance(parameters, dict):
        raise wrong_type(function.at("parameters"), "object", parameters)
    text = msgspec.json.encode(parameters).decode()
    return Tool(name, function.string("description") or "", text)


def _tool_choice(fields: Fields, tools: tuple[Tool, ...]) -> str:
    given = fields.value("tool_choice")
    if given is None:
        return "auto"
    if not tools and given != "none":
        raise wrong_value("tool_choice", "is only allowed when 'tools' are given.")
    if isinstance(given, str):
        return fields.choice("tool_choice", ("auto", "none", "required")) or "auto"
    choice = fields.required_object("tool_choice")
    choice.choice("type", ("function",))
    function = choice.required_object("function")
    name = function.required_string("name")
    if name not in {tool.name for tool in tools}:
        raise wrong_value(function.at("name"), f"names {shown(name)}, which is not in 'tools'.")
    return f"function:{name}"


# -- messages -------------------------------------------------------------------------------


def _messages(fields: Fields, spec: EngineSpec) -> tuple[str, tuple[Message, ...]]:
    """The instructions, which are the system messages at the beginning, and the rest."""
    entries = fields.objects("messages")
    if entries is None:
        raise missing("messages")
    if not entries:
        raise wrong_value("messages", "must not be empty.")
    called: set[str] = set()
    messages = [_message(entry, spec, called) for entry in entries]
    leading = 0
    while leading < len(messages) and messages[leading].role == "system":
        leading += 1
    instructions = "\n\n".join(_text(message) for message in messages[:leading])
    return instructions, tuple(messages[leading:])


def _text(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, TextPart))


def _message(entry: Fields, spec: EngineSpec, called: set[str]) -> Message:
    roles: tuple[str, ...] = ("system", "developer", "user", "assistant", "tool")
    role = entry.choice("role", roles)
    match role:
        case None:
            raise missing(entry.at("role"))
        case "user":
            return Message("user", _parts(entry, spec))
        case "assistant":
            return _assistant(entry, spec, called)
        case "tool":
            call_id = entry.required_id("tool_call_id")
            if call_id not in called:
                where = entry.at("tool_call_id")
                raise wrong_value(where, "answers no call of an assistant's message before it.")
            return Message("tool", _parts(entry, spec, words_only=True), call_id=call_id)
        case _:
            return Message("system", _parts(entry, spec, words_only=True))


def _assistant(entry: Fields, spec: EngineSpec, called: set[str]) -> Message:
    if entry.value("function_call") is not None or entry.value("audio") is not None:
        name = "audio" if entry.value("function_call") is None else "function_call"
        raise unsupported(entry.at(name), f"'{entry.at(name)}' is not supported.")
    calls = tuple(_invocation(call) for call in entry.objects("tool_calls") or [])
    called.update(call.call_id for call in calls)
    refusal = entry.string("refusal")
    content = entry.value("content")
    if content is not None:
        parts = _parts(entry, spec, words_only=True)
    elif refusal is not None or calls:
        parts = (TextPart(refusal),) if refusal else ()
    else:
        raise missing(entry.at("content"))
    return Message("assistant", parts, calls)


def _invocation(call: Fields) -> ToolInvocation:
    call.choice("type", ("function",))
    function = call.required_object("function")
    return ToolInvocation(
        call.required_id("id"),
        function.required_string("name"),
        function.required_string("arguments"),
    )


def _parts(
    entry: Fields, spec: EngineSpec, *, words_only: bool = False
) -> tuple[TextPart | ImagePart, ...]:
    content = entry.value("content")
    if content is None:
        raise missing(entry.at("content"))
    if isinstance(content, str):
        return (TextPart(content),)
    if not isinstance(content, list):
        raise wrong_type(entry.at("content"), "string or array", content)
    return tuple(_part(part, spec, words_only) for part in entry.objects("content") or [])


def _part(part: Fields, spec: EngineSpec, words_only: bool) -> TextPart | ImagePart:
    kind = part.required_string("type")
    if kind == "text":
        return TextPart(part.required_string("text"))
    if kind == "refusal":
        return TextPart(part.required_string("refusal"))
    if kind != "image_url" or words_only:
        raise unsupported(part.at("type"), f"A part of type {shown(kind)} is not supported here.")
    if not spec.sees:
        raise unsupported(part.at("type"), f"{shown(spec.model)} takes no pictures.")
    image = part.required_object("image_url")
    url = image.required_string("url")
    if not url.startswith(("data:image/", "https:")):
        raise wrong_value(image.at("url"), "must be a data: URL of a picture, or an https: URL.")
    return ImagePart(url, image.choice("detail", ("auto", "low", "high")) or "auto")
