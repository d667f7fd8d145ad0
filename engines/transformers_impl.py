"""A causal language model through transformers: loaded, and stepped one token at a time.

Nothing here is asynchronous, and nothing waits for anybody else.
"""

import copy
import inspect
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from duologue.engines.chat_messages import Json
from duologue.engines.cores import usable_cores
from duologue.engines.slots import common_prefix
from duologue.engines.transformers_stage import TransformersStage
from duologue.models.model_folder import ModelFolderError, read_model_folder

MOST_CONTEXT = 32_768
MOST_THREADS = 8
SLICE = 64
"""Tokens of a prompt evaluated in one step on a processor."""
GPU_SLICE = 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """How tokens are chosen; ``None`` leaves it to the model's own configuration.

    ``temperature`` 0 is always the likeliest. ``seed`` ``None`` is a new one each time.
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None


class Generation(Protocol):
    """One answer under way. All methods block for one step at most."""

    prompted: int
    cached: int
    """Tokens of the prompt, and of these how many the memory held already."""
    evaluated: int
    generated: int

    def step(self) -> str | None:
        """Evaluate more of the prompt ("" comes back), or make one token: its text, which may be
        "" until a character is complete. ``None`` when the model has ended."""

    def rest(self) -> str:
        """Text of tokens that never became a complete character. After the end."""


class Memory(Protocol):
    """What a model keeps of one history."""

    tokens: list[int]


class Stepper(Protocol):
    """What the language stage needs of transformers. Thread-safe as long as one thread at a time
    calls it."""

    context: int
    knows_tools: bool

    def prompt(self, messages: list[Json], tools: list[Json], answering: bool) -> list[int]:
        """The messages by the model's template, as tokens. Raises ValueError."""

    def memory(self) -> Memory:
        """An empty memory."""

    def begin(self, memory: Memory, tokens: Sequence[int], choice: Choice) -> Generation:
        """Go on from `tokens`, of which the beginning may be in `memory`, which is changed."""

    def close(self) -> None:
        """Free the model. Idempotent."""


class KeyValues:
    """The keys and values of a history."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.cache: Any = None


class TransformersModel:
    """A model, loaded. See :class:`Stepper`."""

    def __init__(self, stage: TransformersStage) -> None:
        """Blocks. Raises ModelFolderError for a folder that can't be served, ValueError with the
        setting's name for a device or a type that is not there, and what transformers raises."""
        path = Path(stage.path)
        options: Json = {"trust_remote_code": stage.trust_remote_code}
        if path.is_dir():
            try:
                read_model_folder(path, pickled=stage.trust_remote_code)
            except ModelFolderError as error:
                raise ModelFolderError(f"llm: {error}") from None
            place = str(path)
        else:
            place = str(path.parent)
            options["gguf_file"] = path.name
        self._device = device_of(stage.device)
        if self._device.type == "cpu":
            torch.set_num_threads(stage.threads or min(usable_cores(), MOST_THREADS))
        # A folder is a folder: nothing is fetched for it.
        options["local_files_only"] = True
        self._tokenizer = AutoTokenizer.from_pretrained(place, **options)
        # A tokenizer can't be used by two threads: one renders, the other steps the model.
        self._decoder = copy.deepcopy(self._tokenizer)
        self._rendering = threading.Lock()
        if stage.chat_template:
            self._tokenizer.chat_template = stage.chat_template
        template = self._tokenizer.chat_template
        if not template:
            raise ValueError(f"llm: {path} has no chat template; llm_chat_template can name one")
        self.knows_tools = "tools" in template if isinstance(template, str) else True
        transformers.utils.logging.disable_progress_bar()
        try:
            model = AutoModelForCausalLM.from_pretrained(
                place,
                dtype=type_of(stage.dtype),
                use_safetensors=None if stage.trust_remote_code or path.is_file() else True,
                **options,
            )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
            raise ValueError(f"llm: transformers can't load {path}: {error}") from error
        self._model = model.to(self._device).eval()
        most = getattr(model.config.get_text_config(), "max_position_embeddings", MOST_CONTEXT)
        self.context = stage.context or min(most, MOST_CONTEXT)

    def prompt(self, messages: list[Json], tools: list[Json], answering: bool) -> list[int]:
        try:
            with self._rendering:
                tokens: list[int] = self._tokenizer.apply_chat_template(
                    messages,
                    tools=tools or None,
                    add_generation_prompt=answering,
                    tokenize=True,
                    return_dict=False,
                )
        except Exception as error:
            # Templates raise whatever they like, through Jinja.
            raise ValueError(f"the chat template can't take this: {error}") from error
        return tokens

    def memory(self) -> KeyValues:
        return KeyValues()

    def begin(self, memory: Memory, tokens: Sequence[int], choice: Choice) -> "Generating":
        assert isinstance(memory, KeyValues)
        return Generating(self._model, self._decoder, memory, tokens, choice)

    def close(self) -> None:
        self._model = None


class Generating:
    """See :class:`Generation`."""

    def __init__(
        self, model: Any, tokenizer: Any, memory: KeyValues, tokens: Sequence[int], choice: Choice
    ) -> None:
        self._model = model
        self._memory = memory
        self._tokens = list(tokens)
        self._text = Detokenizer(tokenizer)
        settings = model.generation_config
        self._ends = _ends(settings, tokenizer)
        self._warpers, self._random = _choosing(settings, choice, model.device)
        takes = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in takes else "past_key_values"
        self._slice = SLICE if model.device.type == "cpu" else GPU_SLICE
        self.prompted = len(self._tokens)
        self.cached = self._keep(min(common_prefix(memory.tokens, self._tokens), len(tokens) - 1))
        self.evaluated = 0
        self.generated = 0

    def step(self) -> str | None:
        with torch.inference_mode():
            return self._step()

    def _step(self) -> str | None:
        memory = self._memory
        begin = len(memory.tokens)
        piece = self._tokens[begin : begin + self._slice]
        output = self._model(
            input_ids=torch.tensor([piece], device=self._model.device),
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: memory.cache},
        )
        memory.tokens.extend(piece)
        if begin < self.prompted:
            self.evaluated += len(piece)
        if len(memory.tokens) < len(self._tokens):
            return ""
        token = self._choose(output.logits[:, -1, :].float())
        if token in self._ends:
            return None
        self.generated += 1
        self._tokens.append(token)
        return self._text.push(token)

    def rest(self) -> str:
        return self._text.finish()

    def _choose(self, logits: Any) -> int:
        scores = self._warpers(torch.tensor([self._tokens], device=logits.device), logits)
        if self._random is None:
            return int(scores.argmax(-1))
        chances = torch.softmax(scores, -1)
        return int(torch.multinomial(chances, 1, generator=self._random))

    def _keep(self, length: int) -> int:
        """Shorten the memory; returns how much of it is left. Some kinds can't be shortened."""
        memory = self._memory
        if memory.cache is None:
            memory.cache = DynamicCache(config=self._model.config)
        elif length < len(memory.tokens):
            if not _croppable(memory.cache):
                memory.cache, length = DynamicCache(config=self._model.config), 0
            else:
                memory.cache.crop(length - len(memory.tokens))
        del memory.tokens[length:]
        return length


class Detokenizer:
    """Tokens to text as they come, without halves of characters."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._said_tokens = 0
        self._context = 0

    def push(self, token: int) -> str:
        """The text that is certain now."""
        self._tokens.append(token)
        new = self._new()
        if new.endswith("\ufffd"):
            return ""
        return self._say(new)

    def finish(self) -> str:
        """What is left."""
        return self._say(self._new())

    def _new(self) -> str:
        # Some tokenizers put a space or none before a token by what stands before it: so a few
        # tokens that were said already are decoded along.
        before = self._decoded(self._tokens[self._context : self._said_tokens])
        return self._decoded(self._tokens[self._context :])[len(before) :]

    def _say(self, new: str) -> str:
        self._context, self._said_tokens = self._said_tokens, len(self._tokens)
        return new

    def _decoded(self, tokens: list[int]) -> str:
        text: str = self._tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def device_of(name: str) -> Any:
    """torch's device of that name. Raises ValueError when there is none."""
    if not name:
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(f"llm_device: {name} is not there ({first})") from None
    return device


def type_of(name: str) -> Any:
    """torch's type of that name, or "auto". Raises ValueError."""
    if name == "auto":
        return "auto"
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"llm_dtype: {name} is no type of weights")
    return found


def _ends(settings: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end an answer."""
    ends = settings.eos_token_id
    listed = ends if isinstance(ends, list) else [ends]
    return frozenset(token for token in (*listed, tokenizer.eos_token_id) if token is not None)


def _choosing(settings: Any, choice: Choice, device: Any) -> tuple[Any, Any]:
    """What bends the scores, and where chance comes from: ``None`` takes the best."""
    warpers = LogitsProcessorList()
    penalty = settings.repetition_penalty
    if penalty is not None and penalty != 1.0:
        warpers.append(RepetitionPenaltyLogitsProcessor(penalty))
    temperature = choice.temperature
    if temperature is None:
        temperature = (settings.temperature or 1.0) if settings.do_sample else 0.0
    if temperature == 0:
        return warpers, None
    if temperature != 1.0:
        warpers.append(TemperatureLogitsWarper(float(temperature)))
    if settings.top_k:
        warpers.append(TopKLogitsWarper(settings.top_k))
    top_p = settings.top_p if choice.top_p is None else choice.top_p
    if top_p is not None and top_p < 1:
        warpers.append(TopPLogitsWarper(float(top_p)))
    generator = torch.Generator(device)
    if choice.seed is None:
        generator.seed()
    else:
        generator.manual_seed(choice.seed % 2**63)
    return warpers, generator


def _croppable(cache: Any) -> bool:
    """Whether the memory's end can be cut off: windows and states have lost what came before."""
    layers = getattr(cache, "layers", None)
    if not layers or not hasattr(cache, "crop"):
        return False
    return all(type(layer).__name__ == "DynamicLayer" for layer in layers)
