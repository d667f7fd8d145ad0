"""llama.cpp through xllamacpp: a model file, its slots, and completions in threads.

xllamacpp runs llama.cpp's HTTP server inside the process. Completions are asked of it directly;
only tokens and templates go through HTTP. That server answers any origin and, by default, anybody,
so here it listens on a Unix socket in a private folder and wants a key that nobody else has.
"""

import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import httpx
import msgspec
import xllamacpp

from duologue.engines.chat_messages import Json

BATCH = 16
"""Tokens evaluated between two looks at whether somebody cancelled. More is no faster on a CPU."""

NICENESS = 5
"""Added to the niceness of llama.cpp's threads. They take all cores, and what runs beside them is
always shorter and more urgent: a first clause being spoken, the words of a turn that just ended."""

MAGIC = b"GGUF"
REUSE = 32
"""The shortest run of tokens worth moving within a slot when the history lost its beginning."""


T = TypeVar("T")


class LlamaError(Exception):
    """llama.cpp refused or failed. ``too_long``: the prompt does not fit into a slot."""

    def __init__(self, message: str, too_long: bool = False) -> None:
        super().__init__(message)
        self.too_long = too_long


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen, in llama.cpp's terms. ``seed`` -1 is a new one each time."""

    temperature: float = 0.6
    top_p: float = 0.9
    top_k: int = 40
    repeat_penalty: float = 1.05
    seed: int = -1


@dataclass(frozen=True, slots=True)
class Completion:
    """A prompt as tokens, and what is wanted after it. ``most`` 0 evaluates the prompt only.

    ``schema`` is a JSON Schema of plain keywords that the text must follow. ``reuse``: parts of
    the slot's content that come again further forward may be moved there, not evaluated again.
    """

    tokens: Sequence[int]
    slot: int
    most: int
    sampling: Sampling = Sampling()
    schema: Mapping[str, Any] | None = None
    reuse: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    """How it ended and what it cost, in tokens. ``stopped``: the callback said so.

    ``cached`` tokens of the prompt were in the slot, ``evaluated`` were not and are now.
    """

    reason: Literal["stop", "length", "stopped"]
    cached: int
    evaluated: int
    generated: int


OnStep = Callable[[str, int], bool]
"""Takes text as it comes and the prompt's tokens evaluated so far; true means stop.

It is called after every step of evaluation too, with "" for the text."""


class Completer(Protocol):
    """What the language stage needs of llama.cpp. Every method blocks and may be called from
    several threads; all raise LlamaError."""

    def render(self, messages: Sequence[Json]) -> str:
        """The prompt by the model's own chat template, up to where the assistant speaks."""

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        """The text's tokens. `special`: a whole prompt, whose marks are tokens of their own."""

    def complete(self, completion: Completion, on_step: OnStep) -> Completed:
        """Generate. `on_step` is called on this thread, also between the steps of evaluation."""

    def close(self) -> None:
        """Free the model. Idempotent."""


class LlamaServer:
    """A model file, loaded. See :class:`Completer`."""

    def __init__(self, path: Path, *, slots: int, context: int, threads: int) -> None:
        """Load `path` with `slots` places of `context` tokens each.

        Raises FileNotFoundError, ValueError for a file that is not GGUF, LlamaError when llama.cpp
        can't load it.
        """
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise ValueError(f"{path}: not a GGUF file")
        self._folder = tempfile.TemporaryDirectory(prefix="duologue-")
        socket = str(Path(self._folder.name) / "llama.sock")
        key = secrets.token_urlsafe(32)
        try:
            self._server = _in_nice_thread(
                lambda: xllamacpp.Server(_params(path, slots, context, threads, socket, key))
            )
        except RuntimeError as error:
            self._folder.cleanup()
            raise LlamaError(f"{path}: llama.cpp could not load it ({error})") from error
        self._client = httpx.Client(
            transport=httpx.HTTPTransport(uds=socket),
            base_url="http://llama",
            headers={"Authorization": f"Bearer {key}"},
            timeout=30.0,
        )
        self._closed = False

    def render(self, messages: Sequence[Json]) -> str:
        prompt: str = self._post("/apply-template", {"messages": messages})["prompt"]
        return prompt

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        body = {"content": text, "add_special": special, "parse_special": special}
        tokens: list[int] = self._post("/tokenize", body)["tokens"]
        return tokens

    def complete(self, completion: Completion, on_step: OnStep) -> Completed:
        sampling = completion.sampling
        request: Json = {
            "prompt": list(completion.tokens),
            "n_predict": completion.most,
            "id_slot": completion.slot,
            "stream": True,
            "return_progress": True,
            "cache_prompt": True,
            "n_cache_reuse": REUSE if completion.reuse else 0,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "repeat_penalty": sampling.repeat_penalty,
            "seed": sampling.seed,
        }
        if completion.schema is not None:
            request["json_schema"] = completion.schema
        reader = _Reader(on_step)
        self._server.handle_completions(request, reader.take)
        return reader.result()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._client.close()
            del self._server
            self._folder.cleanup()

    def _post(self, path: str, body: Json) -> Json:
        try:
            response = self._client.post(path, content=msgspec.json.encode(body))
        except httpx.HTTPError as error:
            raise LlamaError(f"llama.cpp did not answer: {error}") from error
        answer: Json = {}
        with suppress(msgspec.DecodeError):
            answer = msgspec.json.decode(response.content, type=Json)
        if response.status_code != 200:
            said = answer.get("error", {}).get("message", f"status {response.status_code}")
            raise LlamaError(f"llama.cpp refused: {said}")
        return answer


class _Reader:
    """Reads the chunks of one completion. An exception in the callback must not be lost."""

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._error: BaseException | None = None
        self._reason: Literal["stop", "length", "stopped"] = "stopped"
        self._cached = 0
        self._evaluated = 0
        self._generated = 0

    def take(self, chunk: Json) -> bool:
        """Whether to stop."""
        try:
            return self._read(chunk)
        except BaseException as error:
            self._error = error
            return True

    def result(self) -> Completed:
        if self._error is not None:
            raise self._error
        return Completed(self._reason, self._cached, self._evaluated, self._generated)

    def _read(self, chunk: Json) -> bool:
        if "error" in chunk:
            error = chunk["error"]
            too_long = error.get("type") == "exceed_context_size_error"
            raise LlamaError(error.get("message", "llama.cpp failed"), too_long)
        if "prompt_progress" in chunk:
            progress = chunk["prompt_progress"]
            self._cached = progress["cache"]
            self._evaluated = progress["processed"] - self._cached
            return self._on_step("", self._evaluated)
        choice = chunk["choices"][0]
        if choice["finish_reason"] is None:
            self._generated += 1
            return self._on_step(choice["text"], self._evaluated)
        self._reason = "length" if choice["finish_reason"] == "length" else "stop"
        if "usage" in chunk:
            self._generated = chunk["usage"]["completion_tokens"]
        return bool(choice["text"]) and self._on_step(choice["text"], self._evaluated)


def _in_nice_thread(make: Callable[[], T]) -> T:
    """What `make` makes. The threads that it starts inherit the niceness of the one it runs in."""
    made: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            # On Linux a thread has its own; elsewhere this would be the whole process.
            if sys.platform == "linux":
                thread = threading.get_native_id()
                nice = os.getpriority(os.PRIO_PROCESS, thread) + NICENESS
                os.setpriority(os.PRIO_PROCESS, thread, min(nice, 19))
            made.append(make())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="llama-load")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


def _params(
    path: Path, slots: int, context: int, threads: int, socket: str, key: str
) -> xllamacpp.CommonParams:
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel = slots
    params.n_ctx = slots * context
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.n_batch = params.n_ubatch = BATCH
    params.hostnames = [socket]
    params.api_keys = [key]
    params.n_threads_http = 2
    params.cors_origins = ""
    params.ui = False
    params.endpoint_slots = False
    params.cache_ram_mib = 0
    params.warmup = False
    params.fit_params = False
    params.use_jinja = True
    params.verbosity = -1
    return params
