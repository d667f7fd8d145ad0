"""Requests for models that bring a chat template of their own: messages, tools, and what fits."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from duologue.engines.call_schema import call_schema
from duologue.engines.chat_messages import (
    Json,
    chat_message,
    chat_tools,
    named_choice,
    without_special_tokens,
)
from duologue.engines.context_window import KEPT, shortened
from duologue.engines.engine import ImagePart, Message, ResponseRequest, TextPart, Tool
from duologue.engines.language import LanguageError
from duologue.models.chat import ChatMessage, ToolCall, ToolSpec
from duologue.models.chat_prompt import Family, chat_prompt

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TemplatePrompt:
    """What a chat template is given. ``tools`` are functions as chat completions describe them."""

    messages: list[Json]
    tools: list[Json]


@dataclass(frozen=True, slots=True)
class Fitted(Generic[T]):
    """A prompt that fits, and how many tokens may follow it."""

    prompt: T
    most: int


def template_prompt(request: ResponseRequest, *, knows_tools: bool) -> TemplatePrompt:
    """The request for a chat template.

    All system messages become the first message, and neighbours of one role are joined, since many
    templates take nothing else. Marks that a template gives a meaning are broken where somebody
    said them. `knows_tools`: the template has a place for tools; else they are explained in words.
    Raises ValueError when the tools are no JSON, or `tool_choice` names one that is not there.
    """
    has_tools = bool(request.tools) or any(
        message.tool_calls or message.role == "tool" for message in request.messages
    )
    if has_tools and not knows_tools:
        return TemplatePrompt(_in_words(request), [])
    system = [request.instructions, *map(_text, _of_role(request, "system"))]
    joined: list[Json] = []
    if text := "\n\n".join(part for part in map(str.strip, system) if part):
        joined.append({"role": "system", "content": without_special_tokens(text)})
    for message in request.messages:
        if message.role == "system":
            continue
        entry = _entry(message)
        if joined and _continues(joined[-1], entry):
            joined[-1] = {**entry, "content": _both(joined[-1]["content"], entry["content"])}
        else:
            joined.append(entry)
    return TemplatePrompt(joined, offered_tools(request))


def offered_tools(request: ResponseRequest) -> list[Json]:
    """The functions that the model is told of, as chat completions describe them. Raises ValueError
    when they are no JSON."""
    return chat_tools(_offered(request))


def offered(request: ResponseRequest) -> tuple[str, ...]:
    """The functions that the model is told of."""
    return tuple(tool.name for tool in _offered(request))


def forced_call(request: ResponseRequest) -> Json | None:
    """The JSON Schema of the call that the request insists on, if it does."""
    forced = request.tool_choice == "required" or named_choice(request.tool_choice) is not None
    if not forced:
        return None
    functions = [tool["function"] for tool in offered_tools(request)]
    return call_schema(functions) if functions else None


def pictures(request: ResponseRequest) -> list[ImagePart]:
    """The request's pictures, in order."""
    return [
        part
        for message in request.messages
        for part in message.parts
        if isinstance(part, ImagePart)
    ]


async def fit(
    request: ResponseRequest,
    *,
    context: int,
    most: int,
    render: Callable[[ResponseRequest], Awaitable[T]],
    length: Callable[[T], int],
) -> Fitted[T]:
    """The request rendered, without its oldest turns where all of it does not fit.

    `context` bounds prompt and answer, `most` an answer for which the request gives no number.
    `render` makes a prompt, of which `length` counts the tokens. Raises LanguageError when nothing
    can be left out any more, or may be.
    """
    most = min(request.max_output_tokens or most, context // 2)
    room = context - min(most, context // 4) - 1
    prompt = await render(request)
    while (tokens := length(prompt)) > room:
        fewer = None if request.whole else shortened(request.messages, 1 - KEPT * room / tokens)
        if fewer is None:
            raise LanguageError.of(
                "context_too_long", f"The prompt takes {tokens} tokens; there is room for {room}."
            )
        request = msgspec.structs.replace(request, messages=fewer)
        prompt = await render(request)
    return Fitted(prompt, min(most, context - tokens - 1))


def _offered(request: ResponseRequest) -> tuple[Tool, ...]:
    if request.tool_choice == "none":
        return ()
    named = named_choice(request.tool_choice)
    return tuple(tool for tool in request.tools if named in (None, tool.name))


def _of_role(request: ResponseRequest, role: str) -> list[Message]:
    return [message for message in request.messages if message.role == role]


def _text(message: Message) -> str:
    return " ".join(part.text.strip() for part in message.parts if isinstance(part, TextPart))


def _entry(message: Message) -> Json:
    """A message whose texts hold no marks, and whose calls have their arguments as objects."""
    entry = chat_message(message)
    content = entry["content"]
    if isinstance(content, str):
        entry["content"] = without_special_tokens(content)
    elif content is None:
        # Many templates join it to a text.
        entry["content"] = ""
    else:
        for part in content:
            if part["type"] == "text":
                part["text"] = without_special_tokens(part["text"])
    for call in entry.get("tool_calls", ()):
        try:
            arguments = msgspec.json.decode(call["function"]["arguments"], type=Json)
        except msgspec.DecodeError:
            arguments = {}
        call["function"]["arguments"] = arguments
    return entry


def _continues(before: Json, entry: Json) -> bool:
    plain = "tool_calls" not in before and "tool_calls" not in entry
    return plain and before["role"] == entry["role"] and entry["role"] in ("user", "assistant")


def _both(one: str | list[Json], other: str | list[Json]) -> str | list[Json]:
    if isinstance(one, str) and isinstance(other, str):
        return f"{one}\n{other}"
    return [*_parts(one), *_parts(other)]


def _parts(content: str | list[Json]) -> list[Json]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _in_words(request: ResponseRequest) -> list[Json]:
    """The request without tools of the template's own. Pictures don't go together with that."""
    if pictures(request):
        raise ValueError("this model's chat template takes no tools beside pictures")
    prompts = chat_prompt(
        Family.OTHER,
        [
            ChatMessage(
                message.role,
                without_special_tokens(_text(message)),
                tuple(
                    ToolCall(call.call_id, call.name, call.arguments) for call in message.tool_calls
                ),
                message.call_id,
            )
            for message in request.messages
        ],
        instructions=without_special_tokens(request.instructions),
        tools=[ToolSpec(tool.name, tool.description, tool.parameters) for tool in request.tools],
        tool_choice=request.tool_choice,
        spoken=request.modality == "audio",
    )
    return [{"role": one.role, "content": one.content} for one in prompts]
