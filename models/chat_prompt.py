"""History, instructions and tools as the messages that one family of models was trained on."""

import json
from collections.abc import Sequence
from enum import Enum

from duologue.models.chat import ChatMessage, Prompt, ToolCall, ToolSpec

_SPOKEN = (
    "You are talking with someone aloud. Answer the way people speak: one to three short sentences,"
    " plain words, no lists, no markdown, no emoji."
)
_WRITTEN = "You are a helpful assistant."

# With a system line alone a model of 135 million parameters rambles; shown how, it answers.
_EXAMPLES = (
    ("Hi there!", "Hello! What would you like to talk about?"),
    ("What is the capital of Italy?", "The capital of Italy is Rome."),
    ("What could I cook tonight?", "How about tomato soup with fresh bread?"),
    ("Thanks, that helps.", "You're welcome! Is there anything else?"),
)

# Qwen's own wording, from the chat template that its models were trained with.
_TOOLS_BEFORE = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
_TOOLS_AFTER = """
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""


class Family(Enum):
    """Models that take the same prompts."""

    QWEN = "qwen"
    SMOLLM2 = "smollm2"
    OTHER = "other"

    @property
    def has_tools(self) -> bool:
        """Whether its models can be told of tools: the smallest ones lose the thread over them."""
        return self is not Family.SMOLLM2


def family_of(model: str) -> Family:
    """The family of a model, by its name or file name."""
    name = model.lower()
    return next((family for family in Family if family.value in name), Family.OTHER)


def chat_prompt(
    family: Family,
    messages: Sequence[ChatMessage],
    *,
    instructions: str = "",
    tools: Sequence[ToolSpec] = (),
    tool_choice: str = "auto",
    spoken: bool = True,
) -> list[Prompt]:
    """The messages for the model's chat template; the first is a system message, as long as the
    instructions, the tools and the examples stay the same a constant beginning of every prompt.

    `instructions` are the caller's and come after the instruction to speak in short sentences,
    which `spoken` asks for. `tool_choice` is "auto", "none", "required" or "function:NAME"; tools
    are left out for "none" and for a family without them. Tool outputs become user messages in
    Qwen's tags. Consecutive messages of one role are joined, since many templates insist that roles
    alternate. Raises ValueError when `tool_choice` names a tool that is not there.
    """
    system = [_SPOKEN if spoken else _WRITTEN, instructions.strip()]
    system += [message.text.strip() for message in messages if message.role == "system"]
    if family.has_tools:
        system.append(_describe(tools, tool_choice))
    prompts = [Prompt("system", "\n\n".join(part for part in system if part))]
    if family is Family.SMOLLM2 and spoken:
        for question, answer in _EXAMPLES:
            prompts += [Prompt("user", question), Prompt("assistant", answer)]
    examples = len(prompts)
    for message in messages:
        if message.role == "system":
            continue
        prompt = _rendered(message)
        if not prompt.content:
            continue
        if len(prompts) > examples and prompts[-1].role == prompt.role:
            prompt = Prompt(prompt.role, f"{prompts.pop().content}\n{prompt.content}")
        prompts.append(prompt)
    return prompts


def _rendered(message: ChatMessage) -> Prompt:
    if message.role == "tool":
        return Prompt("user", f"<tool_response>\n{message.text}\n</tool_response>")
    if message.role == "assistant":
        parts = [message.text.strip(), *map(_call, message.tool_calls)]
        return Prompt("assistant", "\n".join(part for part in parts if part))
    return Prompt("user", message.text.strip())


def _call(call: ToolCall) -> str:
    return (
        f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments or "{}"}}}\n'
        "</tool_call>"
    )


def _describe(tools: Sequence[ToolSpec], choice: str) -> str:
    """The system message's part on tools, "" when none is offered."""
    kind, _, wanted = choice.partition(":")
    if kind == "function":
        tools = [tool for tool in tools if tool.name == wanted]
        if not tools:
            raise ValueError(f"tool_choice names {wanted!r}, which is not among the tools")
    if choice == "none" or not tools:
        return ""
    lines = [
        f'{{"type": "function", "function": {{"name": {json.dumps(tool.name)}, "description": '
        f'{json.dumps(tool.description)}, "parameters": {tool.parameters or "{}"}}}}}'
        for tool in tools
    ]
    text = _TOOLS_BEFORE + "\n".join(lines) + _TOOLS_AFTER
    if kind == "function":
        text += f"\n\nNow call the function {wanted}."
    elif choice == "required":
        text += "\n\nNow call one of the functions."
    return text
