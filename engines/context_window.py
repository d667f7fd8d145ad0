"""What of a history is shown to a model with a short memory; pure.

A history is cut by whole turns, oldest first, and well below the limit at once: a cut that moved
with every turn would leave nothing of the prompt's beginning the same, and nothing of it cached.
"""

from collections.abc import Sequence

from duologue.engines.engine import Message

KEPT = 0.6
"""Of the room, how much is filled after a cut."""


def turns(messages: Sequence[Message]) -> list[list[Message]]:
    """The history in turns: each begins where the user speaks, or a system message stands."""
    result: list[list[Message]] = []
    for message in messages:
        begins = message.role in ("user", "system") or not result
        if begins or result[-1][0].role == "system":
            result.append([message])
        else:
            result[-1].append(message)
    return result


def shortened(messages: Sequence[Message], excess: float) -> tuple[Message, ...] | None:
    """The history without its oldest turns, about the share `excess` (0 to 1) of its letters.

    System messages and the last turn stay. ``None`` when nothing can be left out.
    """
    parts = turns(messages)
    droppable = [i for i, turn in enumerate(parts[:-1]) if turn[0].role != "system"]
    if not droppable:
        return None
    sizes = [sum(letters(message) for message in turn) for turn in parts]
    target = sum(sizes) * excess
    dropped: set[int] = set()
    for index in droppable:
        if dropped and target <= 0:
            break
        dropped.add(index)
        target -= sizes[index]
    kept = [message for i, turn in enumerate(parts) if i not in dropped for message in turn]
    return tuple(kept)


def letters(message: Message) -> int:
    """A measure of a message's length that needs no tokenizer."""
    total = 20
    for part in message.parts:
        total += len(getattr(part, "text", ""))
    for call in message.tool_calls:
        total += len(call.name) + len(call.arguments)
    return total


def only_older_gone(previous: Sequence[Message], current: Sequence[Message]) -> bool:
    """Whether `current` is `previous` without its oldest messages, and perhaps with new ones.

    System messages must be the same. False as well when nothing is gone. The last of `previous`
    may have changed.
    """
    if [m for m in previous if m.role == "system"] != [m for m in current if m.role == "system"]:
        return False
    before = [message for message in previous if message.role != "system"]
    now = [message for message in current if message.role != "system"]
    if not before or not now or before[0] == now[0]:
        return False
    for start in range(1, len(before) - 1):
        rest = before[start:-1]
        if now[: len(rest)] == rest:
            return True
    return False
