"""What an engine is asked for a response: from a session's settings and the response's own."""

from duologue.engines.engine import EngineSpec, Message, ResponseRequest, Tool
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import ItemReference, ResponseParams
from duologue.sessions.history import History
from duologue.sessions.items import InputAudio, InputImage, Item, MessageItem
from duologue.sessions.prompting import LETTERS_PER_TOKEN, fitted
from duologue.sessions.session_config import SessionConfig, Unset

DEFAULT_ANSWER_TOKENS = 512
"""Room that is left for an answer whose length nobody has bounded."""


def answer_limit(config: SessionConfig, params: ResponseParams) -> int | None:
    """Tokens that an answer may have; None for any number."""
    limit = params.max_output_tokens
    return config.max_output_tokens if isinstance(limit, Unset) else limit


def input_items(params: ResponseParams, history: History, spec: EngineSpec) -> tuple[Item, ...]:
    """What a response answers: the conversation, or the input that its client gave it.

    Raises ProtocolError for input that names an item there isn't, or that the model can't take.
    """
    if params.input is None:
        return tuple(history)
    items: list[Item] = []
    for entry in params.input:
        item = history.get(entry.id) if isinstance(entry, ItemReference) else entry
        if item is None:
            raise ProtocolError(
                "bad_response_create",
                f"Error in response.create: there is no item with ID '{entry.id}'.",
                "response.input",
            )
        if isinstance(item, MessageItem) and not isinstance(entry, ItemReference):
            _check_inline(item, spec)
        items.append(item)
    return tuple(items)


def _check_inline(item: MessageItem, spec: EngineSpec) -> None:
    if InputAudio(None) in item.content:
        raise ProtocolError(
            "missing_required_parameter",
            "An input_audio part of response.create needs a transcript.",
            "response.input",
        )
    if not spec.sees and any(isinstance(part, InputImage) for part in item.content):
        raise ProtocolError(
            "unsupported", "The model of this session can't see images.", "response.input"
        )


def response_request(
    spec: EngineSpec,
    config: SessionConfig,
    params: ResponseParams,
    prompt: tuple[Message, ...],
    speculative: bool = False,
) -> ResponseRequest:
    """What the engine is asked: the response's own settings before the session's, and of the
    prompt what fits. Raises ProtocolError when nothing that fits can be left.
    """
    tools = config.tools if params.tools is None else params.tools
    instructions = config.instructions if params.instructions is None else params.instructions
    limit = answer_limit(config, params)
    context = spec.context_tokens
    overhead = len(instructions) + sum(
        len(tool.name) + len(tool.description) + len(tool.parameters) for tool in tools
    )
    reserve = min(limit or DEFAULT_ANSWER_TOKENS, context // 4)
    room = context - reserve - int(overhead / LETTERS_PER_TOKEN)
    parallel = params.parallel_tool_calls
    return ResponseRequest(
        instructions=instructions,
        messages=fitted(prompt, room, config.truncation),
        modality=params.modality or config.modality,
        voice=params.voice or config.voice,
        speed=config.speed,
        tools=tuple(Tool(tool.name, tool.description, tool.parameters) for tool in tools),
        tool_choice=params.tool_choice or config.tool_choice,
        parallel_tool_calls=config.parallel_tool_calls if parallel is None else parallel,
        max_output_tokens=limit,
        speculative=speculative,
    )
