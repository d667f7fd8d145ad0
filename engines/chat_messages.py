"""A request in the JSON that chat models are asked with.

The shape is that of OpenAI's chat completions, which llama.cpp's chat templates take as well. This
module and those that call it are the JSON edge of the engines.
"""

import re
from typing import Any

import msgspec

from duologue.engines.engine import (
    ImagePart,
    Message,
    ResponseRequest,
    TextPart,
    Tool,
    ToolInvocation,
    UtterancePart,
)

Json = dict[str, Any]

_SPECIAL = re.compile(r"<(?=[|｜])|(?<=[|｜])>")


def chat_messages(request: ResponseRequest) -> list[Json]:
    """The instructions, if any, as the first system message, then the history.

    Utterances must have become texts before; one that is left says nothing.
    """
    messages = [chat_message(message) for message in request.messages]
    if request.instructions.strip():
        messages.insert(0, {"role": "system", "content": request.instructions})
    return messages


def chat_message(message: Message) -> Json:
    """One entry. Its content is a string, or a list of parts where there are pictures."""
    entry: Json = {"role": message.role, "content": _content(message)}
    if message.tool_calls:
        entry["content"] = entry["content"] or None
        entry["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.role == "tool":
        entry["tool_call_id"] = message.call_id
    return entry


def chat_tools(tools: tuple[Tool, ...]) -> list[Json]:
    """Raises ValueError when a function's parameters are no JSON object."""
    return [_tool(tool) for tool in tools]


def named_choice(choice: str) -> str | None:
    """The function that `function:NAME` insists on; ``None`` for the other choices."""
    kind, colon, name = choice.partition(":")
    return name if colon and kind == "function" else None


def without_special_tokens(text: str) -> str:
    """The text with the marks broken that a chat template gives a meaning, such as ``<|im_end|>``.

    What a user says must not end his turn and begin another role's.
    """
    if "|" not in text and "｜" not in text:
        return text  # looking at every letter takes a hundred times as long
    return _SPECIAL.sub(lambda found: f"{found[0]} " if found[0] == "<" else f" {found[0]}", text)


def _content(message: Message) -> str | list[Json]:
    pictures = any(isinstance(part, ImagePart) for part in message.parts)
    if not pictures:
        texts = [part.text for part in message.parts if isinstance(part, TextPart)]
        return " ".join(text.strip() for text in texts) if len(texts) != 1 else texts[0]
    parts: list[Json] = []
    for part in message.parts:
        match part:
            case TextPart():
                parts.append({"type": "text", "text": part.text})
            case ImagePart():
                image = {"url": part.url, "detail": part.detail}
                parts.append({"type": "image_url", "image_url": image})
            case UtterancePart():
                pass
    return parts


def _call(call: ToolInvocation) -> Json:
    function = {"name": call.name, "arguments": call.arguments or "{}"}
    return {"id": call.call_id, "type": "function", "function": function}


def _tool(tool: Tool) -> Json:
    try:
        parameters = msgspec.json.decode(tool.parameters or "{}", type=Json)
    except msgspec.DecodeError as error:
        raise ValueError(f"the parameters of {tool.name} are no JSON object") from error
    function: Json = {"name": tool.name, "parameters": parameters}
    if tool.description:
        function["description"] = tool.description
    return {"type": "function", "function": function}
