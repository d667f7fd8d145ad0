"""What a scripted engine says: its options, and the rules that choose an answer."""

import json
import re
from typing import Literal

import msgspec

from duologue.engines.engine import (
    EngineFailure,
    Message,
    ResponseRequest,
    TextPart,
    Tool,
    UtterancePart,
)

ECHO = "repeat the prompt as json"
"""In the instructions or the last user message: the answer is the request itself, as JSON that
:class:`~duologue.engines.engine.ResponseRequest` decodes."""

ECHO_REPLY = 1000
"""The number of the reply that :data:`ECHO` asks for, in its stamps."""

TOOL_REPLY = 1001
"""The number of a reply that says the output of a tool, or calls one that was asked for."""


class Clause(msgspec.Struct, frozen=True):
    """Words with their spaces, said in ``ms`` milliseconds."""

    text: str
    ms: int


class ScriptedCall(msgspec.Struct, frozen=True):
    """A tool call; ``arguments`` is JSON text and arrives in pieces of ``piece`` characters."""

    name: str
    arguments: str = "{}"
    piece: int = 8


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """One scripted answer.

    ``match``: taken when the last user text has this in it, whatever its case; replies without it
    take turns. ``first_ms``: from the request to the first output. ``pace``: seconds of audio per
    second, 0 for all at once. ``ending`` comes after the last clause; ``failure`` after
    ``failure_after`` chunks (or words, in text), and ``hang`` then instead of an end: a model step
    that never returns.
    """

    clauses: tuple[Clause, ...] = ()
    match: str = ""
    first_ms: float = 50.0
    pace: float = 1.0
    calls: tuple[ScriptedCall, ...] = ()
    ending: Literal["completed", "max_output_tokens", "content_filter"] = "completed"
    failure: EngineFailure | None = None
    failure_after: int = 0
    hang: bool = False


def sentences(text: str) -> tuple[Clause, ...]:
    """A clause a sentence, at 300 ms a word."""
    pieces = re.findall(r"\s*[^.!?]+[.!?]*", text)
    return tuple(Clause(piece, 300 * len(piece.split())) for piece in pieces)


LONG_ANSWER = (
    "Here is the first sentence. The second one follows it. A third one is not far. "
    "The fourth has some more words in it. Now we come to number five. Six is a short one. "
    "The seventh tells of the sea. Eight stands before nine. Nine is nearly the end. "
    "And this was the tenth."
)

REPLIES = (
    Reply(clauses=sentences("Hello, I am a script. What can I do for you?")),
    Reply(clauses=sentences("I see. Please tell me more about it.")),
    Reply(clauses=sentences("That is good to know. Is there anything else?")),
    Reply(clauses=sentences(LONG_ANSWER), match="long"),
    Reply(
        clauses=sentences("This is going to end badly."),
        match="fail",
        failure=EngineFailure("engine_error", "the script says that this answer fails"),
        failure_after=3,
    ),
)
"""The script that is used when no other is given."""


class ScriptedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The whole script.

    ``transcripts`` and ``probabilities`` are taken in turn, in each session from the first; without
    transcripts an utterance is called "utterance of 1.2 s". ``transcript_ms`` and ``judge_ms`` are
    what the answers to EndUtterance and JudgeTurn take. ``window_ms``: how far speech may be ahead
    of what was acknowledged, ``None`` for no bound. ``word_ms``: between two words of a text or two
    pieces of arguments. A token is a word. ``batch``: answers of the batch lane at the same time.
    ``picture_rate``: pictures a second of video beside its speech, each of which says its number
    (:mod:`duologue.codecs.video_pattern`); 0 for none. ``start_failure``:
    refuse to start, for this reason.
    """

    replies: tuple[Reply, ...] = REPLIES
    transcripts: tuple[str, ...] = ()
    transcript_ms: float = 20.0
    probabilities: tuple[float, ...] = (0.95,)
    judge_ms: float = 0.0
    chunk_ms: int = 100
    word_ms: float = 5.0
    picture_rate: float = 0.0
    picture_width: int = 320
    picture_height: int = 240
    window_ms: int | None = None
    capacity: int = 1000
    model: str = "scripted"
    voices: tuple[str, ...] = ("low", "high")
    context_tokens: int = 32_000
    sees: bool = True
    batch: int = 4
    start_failure: str = ""

    def __post_init__(self) -> None:
        if self.chunk_ms < 2:
            raise ValueError("chunk_ms must be at least 2: a stamp needs the room")
        if not any(not reply.match for reply in self.replies):
            raise ValueError("one reply at least must have no match")
        if not self.probabilities or not self.voices:
            raise ValueError("probabilities and voices must not be empty")
        sides = (self.picture_width, self.picture_height)
        if any(side % 2 or not 32 <= side <= 1088 for side in sides) or self.picture_rate > 60:
            raise ValueError("pictures have even sides of 32 to 1088, at most 60 a second")


class Choice(msgspec.Struct, frozen=True):
    """A reply and its number in the script."""

    number: int
    reply: Reply


def choose(
    options: ScriptedOptions, request: ResponseRequest, heard: dict[str, str], turn: int
) -> Choice:
    """The answer to a request.

    `heard` has the text of each utterance, `turn` counts the replies that took their turn. First
    of: the request itself (:data:`ECHO`), what a tool has said, a call of the tools that the text
    names or that the choice demands, the first reply that matches, the next one in turn.
    """
    text = last_user_text(request.messages, heard)
    if ECHO in text.lower() or ECHO in request.instructions.lower():
        prompt = msgspec.json.encode(request).decode()
        return Choice(ECHO_REPLY, Reply(clauses=(Clause(prompt, 200),), first_ms=0.0))
    if request.messages and request.messages[-1].role == "tool":
        said = "".join(p.text for p in request.messages[-1].parts if isinstance(p, TextPart))
        return Choice(TOOL_REPLY, Reply(clauses=(Clause(said, 300 * len(said.split()) or 300),)))
    calls = wanted_calls(request, text)
    if calls:
        return Choice(TOOL_REPLY, Reply(calls=calls))
    for number, reply in enumerate(options.replies):
        if reply.match and reply.match.lower() in text.lower():
            return Choice(number, _allowed(reply, request))
    rotation = [(n, reply) for n, reply in enumerate(options.replies) if not reply.match]
    number, reply = rotation[turn % len(rotation)]
    return Choice(number, _allowed(reply, request))


def _allowed(reply: Reply, request: ResponseRequest) -> Reply:
    if request.tool_choice == "none" or not request.tools:
        return msgspec.structs.replace(reply, calls=())
    return reply


def wanted_calls(request: ResponseRequest, text: str) -> tuple[ScriptedCall, ...]:
    """The tools that `text` names, with the JSON object that follows the name as arguments."""
    if request.tool_choice == "none":
        return ()
    named = [tool for tool in request.tools if _names(text, tool)]
    if request.tool_choice.startswith("function:"):
        only = request.tool_choice.removeprefix("function:")
        named = [tool for tool in request.tools if tool.name == only]
    elif not named and (request.tool_choice == "required" or "call a tool" in text.lower()):
        named = list(request.tools[:1])
    if not request.parallel_tool_calls:
        named = named[:1]
    return tuple(ScriptedCall(tool.name, _arguments(text, tool.name)) for tool in named)


def _names(text: str, tool: Tool) -> bool:
    return re.search(rf"\b{re.escape(tool.name)}\b", text) is not None


def _arguments(text: str, name: str) -> str:
    start = text.find("{", text.find(name) + len(name)) if name in text else -1
    if start < 0:
        return "{}"
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError:
        return "{}"
    return text[start:end]


def last_user_text(messages: tuple[Message, ...], heard: dict[str, str]) -> str:
    """What the user wrote or said last."""
    for message in reversed(messages):
        if message.role == "user":
            return message_text(message, heard)
    return ""


def message_text(message: Message, heard: dict[str, str]) -> str:
    """The words of a message; those of an utterance come from `heard`."""
    words = []
    for part in message.parts:
        if isinstance(part, TextPart):
            words.append(part.text)
        elif isinstance(part, UtterancePart):
            words.append(heard.get(part.utterance, ""))
    return " ".join(words)


def count_tokens(request: ResponseRequest, heard: dict[str, str]) -> int:
    """The words of the whole prompt."""
    count = len(request.instructions.split())
    for message in request.messages:
        count += len(message_text(message, heard).split())
        count += sum(len(call.arguments.split()) + 1 for call in message.tool_calls)
    return count


def shorten(clauses: tuple[Clause, ...], words: int) -> tuple[Clause, ...]:
    """The first `words` words, and their share of the last clause's time."""
    kept = []
    for clause in clauses:
        pieces = re.findall(r"\s*\S+", clause.text)
        if len(pieces) > words:
            if words:
                kept.append(Clause("".join(pieces[:words]), clause.ms * words // len(pieces)))
            break
        kept.append(clause)
        words -= len(pieces)
    return tuple(kept)
