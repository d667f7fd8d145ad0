"""Requests as prompts for llama.cpp: rendered by the model's own template, counted, made to fit.

Nothing here is asynchronous: rendering and counting block for a few milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from duologue.engines.call_schema import call_schema
from duologue.engines.chat_messages import Json, chat_tools, named_choice, without_special_tokens
from duologue.engines.context_window import KEPT, shortened
from duologue.engines.engine import ImagePart, Message, ResponseRequest, TextPart, UtterancePart
from duologue.engines.language import LanguageError
from duologue.engines.llama_impl import Completer, LlamaError, Sampling
from duologue.engines.slots import common_prefix
from duologue.models.chat import ChatMessage, ToolCall, ToolSpec
from duologue.models.chat_prompt import Family, chat_prompt, family_of


class LlamaStage(msgspec.Struct, frozen=True, kw_only=True, tag="llama"):
    """A GGUF file to answer with.

    ``path`` is the file; ``family`` one of the values of :class:`Family`, or "" to tell by the
    file's name. ``context`` is in tokens, for each of ``slots`` conversations (0: as many as the
    cascade takes), and of ``batch_slots`` more for the batch lane. ``parallel`` of them generate
    at the same time, the others wait their turn: on a CPU, tokens generated together come no
    faster. ``threads`` 0 is as many as there are cores, at most 8. ``max_new_tokens`` bounds an
    answer that the request does not. ``seed`` -1 is a new one for each answer.
    """

    path: str
    name: str = ""
    family: str = ""
    slots: int = 0
    batch_slots: int = 1
    parallel: int = 1
    context: int = 2048
    threads: int = 0
    max_new_tokens: int = 320
    temperature: float = 0.6
    seed: int = -1


@dataclass(frozen=True, slots=True)
class SlotPrompt:
    """What a slot is asked to continue, with at most `most` tokens.

    ``shown`` is the part of the history that is in it; ``schema`` a JSON Schema that the
    continuation must follow.
    """

    tokens: Sequence[int]
    instructions: str
    shown: tuple[Message, ...]
    most: int
    sampling: Sampling
    schema: Json | None = None


class PromptBuilder:
    """Builds prompts for one model."""

    def __init__(self, stage: LlamaStage, completer: Completer) -> None:
        self._stage = stage
        self._completer = completer
        self._family = Family(stage.family) if stage.family else family_of(stage.path)

    def build(self, request: ResponseRequest) -> SlotPrompt:
        """Raises LanguageError when it can't be made to fit, or not be rendered."""
        stage = self._stage
        most = min(request.max_output_tokens or stage.max_new_tokens, stage.context // 2)
        room = stage.context - min(most, stage.context // 4) - 1
        shown = request.messages
        try:
            schema = self._schema(request)
            tokens = self._tokens(request, shown)
            while len(tokens) > room:
                ratio = 1 - KEPT * room / len(tokens)
                fewer = None if request.whole else shortened(shown, ratio)
                if fewer is None:
                    raise LanguageError.of(
                        "context_too_long",
                        f"The prompt takes {len(tokens)} tokens; there is room for {room}.",
                    )
                shown = fewer
                tokens = self._tokens(request, shown)
        except (LlamaError, ValueError) as error:
            raise LanguageError.of("engine_error", str(error)) from error
        return SlotPrompt(
            tokens,
            request.instructions,
            shown,
            min(most, stage.context - len(tokens) - 1),
            self._sampling(request),
            schema,
        )

    def beginning(self, request: ResponseRequest) -> SlotPrompt:
        """What every prompt will begin with that goes on from here: the template's closing marks
        are left out. Raises as :meth:`build`."""
        one, other = (self.build(_longer(request, word)) for word in ("and", "or"))
        common = common_prefix(one.tokens, other.tokens)
        return replace(one, tokens=one.tokens[:common], shown=request.messages, most=0)

    def continuation(self, prompt: SlotPrompt, said: str) -> list[int]:
        """The prompt's tokens and those of what the model said so far."""
        return [*prompt.tokens, *self._completer.tokenize(said, special=False)]

    def offered(self, request: ResponseRequest) -> tuple[str, ...]:
        """The functions that the model is told of."""
        if request.tool_choice == "none" or not self._family.has_tools:
            return ()
        named = named_choice(request.tool_choice)
        return tuple(tool.name for tool in request.tools if named in (None, tool.name))

    def _tokens(self, request: ResponseRequest, shown: tuple[Message, ...]) -> list[int]:
        prompts = chat_prompt(
            self._family,
            [_chat_message(message) for message in shown],
            instructions=without_special_tokens(request.instructions),
            tools=[
                ToolSpec(tool.name, tool.description, tool.parameters) for tool in request.tools
            ],
            tool_choice=request.tool_choice,
            spoken=request.modality == "audio",
        )
        messages: list[Json] = [{"role": one.role, "content": one.content} for one in prompts]
        return self._completer.tokenize(self._completer.render(messages), special=True)

    def _sampling(self, request: ResponseRequest) -> Sampling:
        sampling = Sampling(self._stage.temperature, seed=self._stage.seed)
        if request.temperature is not None:
            sampling = replace(sampling, temperature=request.temperature)
        if request.top_p is not None:
            sampling = replace(sampling, top_p=request.top_p)
        if request.seed is not None:
            # llama.cpp takes 32 bits, of which the largest number means a new one each time.
            sampling = replace(sampling, seed=request.seed % (2**32 - 1))
        return sampling

    def _schema(self, request: ResponseRequest) -> Json | None:
        """What forces a call where one is insisted on."""
        names = self.offered(request)
        forced = request.tool_choice == "required" or named_choice(request.tool_choice) is not None
        if not names or not forced:
            return None
        functions = [tool["function"] for tool in chat_tools(request.tools)]
        return call_schema([function for function in functions if function["name"] in names])


def _longer(request: ResponseRequest, word: str) -> ResponseRequest:
    """The request with one more word of the user's."""
    messages = list(request.messages)
    parts: tuple[TextPart | ImagePart | UtterancePart, ...] = ()
    if messages and messages[-1].role == "user":
        parts = messages.pop().parts
    messages.append(Message("user", (*parts, TextPart(word))))
    return msgspec.structs.replace(request, messages=tuple(messages))


def _chat_message(message: Message) -> ChatMessage:
    texts = [part.text for part in message.parts if isinstance(part, TextPart)]
    calls = [ToolCall(call.call_id, call.name, call.arguments) for call in message.tool_calls]
    text = without_special_tokens(" ".join(text.strip() for text in texts))
    return ChatMessage(message.role, text, tuple(calls), message.call_id)
