"""The conversation as the model is shown it.

Only what was heard of an answer is in it; an answer of which nothing was heard leaves it, and what
the user said before and after is joined. Where it outgrows the model's context, the oldest
messages go.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from duologue.engines.engine import (
    ImagePart,
    Message,
    TextPart,
    ToolInvocation,
    UtterancePart,
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
)
from duologue.sessions.session_config import Truncation

LETTERS_PER_TOKEN = 3.0
MESSAGE_TOKENS = 6
IMAGE_TOKENS = 400
UTTERANCE_TOKENS = 60
NO_OUTPUT = "(no result yet)"
Part = TextPart | ImagePart | UtterancePart


def messages(items: Iterable[Item], pending: UtterancePart | None = None) -> tuple[Message, ...]:
    """The history as messages; ``pending`` is a turn that is not in it yet.

    Every call is followed by its output, wherever that stands in the conversation, since chat
    models insist on it; an output without its call is left out.
    """
    items = tuple(items)
    outputs = {item.call_id: item for item in items if isinstance(item, FunctionOutputItem)}
    result: list[Message] = []
    for item in items:
        match item:
            case MessageItem():
                parts = tuple(part for content in item.content if (part := _part(item.id, content)))
                _append(result, item.role, parts)
            case FunctionCallItem(status="completed"):
                output = outputs.get(item.call_id)
                said = output.output if output is not None else NO_OUTPUT
                call = ToolInvocation(item.call_id, item.name, item.arguments)
                result.append(Message("assistant", (), (call,)))
                result.append(Message("tool", (TextPart(said),), (), item.call_id))
            case _:
                pass
    if pending is not None:
        _append(result, "user", (pending,))
    return tuple(result)


def _append(result: list[Message], role: str, parts: tuple[Part, ...]) -> None:
    if not parts:
        return
    assert role in ("system", "user", "assistant")
    if role == "user" and result and result[-1].role == "user":
        last = result.pop()
        parts = (*last.parts, *parts)
    result.append(Message(role, _joined(parts)))  # type: ignore[arg-type]


def _joined(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Neighbouring texts become one, with a space between them."""
    if len(parts) == 1:
        return parts
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            joined[-1] = TextPart(f"{last.text.rstrip()} {part.text.lstrip()}")
        else:
            joined.append(part)
    return tuple(joined)


def _part(item_id: str, content: Content) -> Part | None:
    match content:
        case InputText() | OutputText():
            return TextPart(content.text) if content.text.strip() else None
        case OutputAudio():
            return TextPart(content.transcript) if content.transcript.strip() else None
        case InputAudio():
            if content.transcript is None:
                return UtterancePart(item_id)
            return TextPart(content.transcript) if content.transcript.strip() else None
        case InputImage():
            return ImagePart(content.url, content.detail)


def tokens(message: Message) -> int:
    """About how many tokens a message takes; high rather than low."""
    total = MESSAGE_TOKENS
    for part in message.parts:
        match part:
            case TextPart():
                total += int(len(part.text) / LETTERS_PER_TOKEN) + 1
            case ImagePart():
                total += IMAGE_TOKENS
            case UtterancePart():
                total += UTTERANCE_TOKENS
    for call in message.tool_calls:
        total += int((len(call.name) + len(call.arguments)) / LETTERS_PER_TOKEN) + 8
    return total


def fitted(history: Sequence[Message], limit: int, truncation: Truncation) -> tuple[Message, ...]:
    """The newest part of the history that fits into ``limit`` tokens.

    System messages stay. A tool's output goes together with its call. With a retention ratio more
    than needed is dropped at once, and then nothing until the limit is reached again, so that the
    prompt keeps its beginning for longer. Raises ProtocolError ``context_too_long`` where
    truncation is disabled, or where even the newest message is too long.
    """
    if truncation.post_instructions is not None:
        limit = min(limit, truncation.post_instructions)
    sizes = [tokens(message) for message in history]
    if sum(sizes) <= limit:
        return tuple(history)
    too_long = ProtocolError("context_too_long", "The conversation is longer than the context.")
    if truncation.kind == "disabled":
        raise too_long
    target = limit
    if truncation.kind == "retention_ratio":
        target = int(limit * truncation.retention_ratio)
    # The conversation is gone through as it grew, so that it is cut where it was cut before.
    total = 0
    waiting: deque[range] = deque()
    dropped: set[int] = set()
    for group in _groups(history):
        total += sum(sizes[group.start : group.stop])
        if history[group.start].role != "system":
            waiting.append(group)
        goal = target if total > limit else limit
        while total > goal and len(waiting) > 1:
            oldest = waiting.popleft()
            dropped.update(oldest)
            total -= sum(sizes[oldest.start : oldest.stop])
    if total > limit:
        raise too_long
    return tuple(message for i, message in enumerate(history) if i not in dropped)


def _groups(history: Sequence[Message]) -> Iterator[range]:
    """What stays or goes together: a message, or a call with its output."""
    start = 0
    for index in range(1, len(history) + 1):
        if index == len(history) or history[index].role != "tool":
            yield range(start, index)
            start = index
