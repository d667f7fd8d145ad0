"""The language stage on vLLM: prompts by the model's template, answers as they come."""

import itertools
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread

from duologue.engines.call_reader import CallReader
from duologue.engines.engine import EngineError, ResponseRequest, Usage
from duologue.engines.fairness import Rank
from duologue.engines.language import (
    Began,
    CallDelta,
    CallEnded,
    CallStarted,
    Finished,
    Generated,
    LanguageError,
    new_call_id,
)
from duologue.engines.pulse import Pulse
from duologue.engines.template_prompts import (
    Fitted,
    fit,
    forced_call,
    offered,
    offered_tools,
    pictures,
    template_prompt,
)
from duologue.engines.vllm_contract import (
    Ask,
    CallParser,
    Delta,
    Generator,
    ParsedCall,
    Prompt,
    VllmError,
)
from duologue.engines.vllm_stage import VllmStage

ABORT_SECONDS = 2.0
HEALTH_SECONDS = 0.25
"""Between two looks at whether vLLM's process is alive."""

log = logging.getLogger(__name__)


def load_engine(stage: VllmStage) -> Generator:
    """vLLM with the stage's model; see :class:`VllmEngine` for what it raises."""
    from duologue.engines.vllm_impl import VllmEngine

    return VllmEngine(stage)


class VllmLanguage:
    """See :class:`duologue.engines.language.LanguageStage`.

    A request's priority is its rank when it is made. vLLM runs all at once as far as its places
    and its memory go; the batch lane waits in the worker before that, see ``VllmStage.batch``.
    """

    def __init__(
        self,
        stage: VllmStage,
        pulse: Pulse,
        load: Callable[[VllmStage], Generator] | None = None,
    ) -> None:
        self._stage = stage
        self._load = load or load_engine
        self._engine: Generator | None = None
        self._beat = _Beat(pulse)
        self._numbers = itertools.count()
        self._warming: dict[str, anyio.CancelScope] = {}
        self._warmed: dict[str, list[int]] = {}
        self._answering: Counter[str] = Counter()

    @property
    def model(self) -> str:
        return self._stage.name or Path(self._stage.path).name

    @property
    def context_tokens(self) -> int:
        return self._loaded.context

    @property
    def sees(self) -> bool:
        return self._loaded.sees

    @property
    def remote(self) -> bool:
        return False

    async def load(self) -> None:
        self._engine = await anyio.to_thread.run_sync(self._load, self._stage)

    async def watch(self) -> None:
        """Return never; raises EngineError when the model's process has gone."""
        while True:
            if self._loaded.lost:
                raise EngineError("vLLM's process has ended")
            await anyio.sleep(HEALTH_SECONDS)

    async def aclose(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(engine.close)

    def forget(self, session: str) -> None:
        self._stop_warming(session)
        self._warmed.pop(session, None)
        del self._answering[session]

    @asynccontextmanager
    async def answer(
        self, session: str, request: ResponseRequest, rank: Callable[[], Rank]
    ) -> AsyncIterator[AsyncIterator[Generated]]:
        self._stop_warming(session)
        self._answering[session] += 1
        try:
            fitted = await self._fitted(request)
            schema = forced_call(request)
            ask = Ask(
                fitted.most,
                int(rank()),
                self._stage.temperature if request.temperature is None else request.temperature,
                request.top_p,
                self._stage.seed if request.seed is None else request.seed,
                request.stop,
                schema,
            )
            engine = self._loaded
            # A call that is forced comes as bare JSON, whatever the model's own way is.
            parser = None if schema else self._parser(request)
            name = f"answer-{next(self._numbers)}"
            deltas = engine.generate(name, fitted.prompt, ask)
            reader = _Answer(deltas, request, parser, engine.tokens(fitted.prompt), self._beat)
            try:
                yield reader
            finally:
                self._beat.end(reader.under_way)
                if not reader.over:
                    await self._abort(name, deltas)
                else:
                    # There is nothing more, but a generator that is left lying is ended by the
                    # event loop in a task of its own, and vLLM takes that for an abort.
                    with suppress(VllmError):
                        async for _ in deltas:
                            pass
        finally:
            self._answering[session] -= 1
            if self._answering[session] <= 0:
                del self._answering[session]

    async def warm(self, session: str, request: ResponseRequest) -> None:
        self._stop_warming(session)
        if self._answering[session] or not request.messages:
            # Many templates take no conversation in which nobody has spoken.
            return
        with anyio.CancelScope() as scope:
            self._warming[session] = scope
            try:
                await self._warm(session, request)
            except (LanguageError, VllmError, ValueError) as error:
                log.info("a prompt could not be warmed: %s", error)
            finally:
                if self._warming.get(session) is scope:
                    del self._warming[session]

    async def _warm(self, session: str, request: ResponseRequest) -> None:
        engine = self._loaded
        fitted = await self._fitted(request, answering=False)
        tokens = engine.tokens(fitted.prompt)
        # vLLM keeps whole blocks; the last tokens are the template's, which an answer's differ in.
        whole = len(tokens) // engine.block * engine.block
        if not whole or self._warmed.get(session) == tokens[:whole]:
            return
        name = f"warm-{next(self._numbers)}"
        deltas = engine.generate(name, fitted.prompt, Ask(1, int(Rank.IDLE)))
        over = False
        try:
            async for delta in deltas:
                over = over or bool(delta.finish)
        finally:
            if not over:
                await self._abort(name, deltas)
        self._warmed[session] = tokens[:whole]

    def _stop_warming(self, session: str) -> None:
        scope = self._warming.pop(session, None)
        if scope is not None:
            scope.cancel()

    async def _abort(self, name: str, deltas: AsyncGenerator[Delta, None]) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(ABORT_SECONDS):
            await self._loaded.abort(name)
            await deltas.aclose()

    async def _fitted(self, request: ResponseRequest, answering: bool = True) -> Fitted[Prompt]:
        engine = self._loaded
        if pictures(request) and not engine.sees:
            raise LanguageError.of("engine_error", "This model takes no pictures.")

        async def render(shown: ResponseRequest) -> Prompt:
            made = template_prompt(shown, knows_tools=engine.knows_tools)
            return await engine.prompt(made.messages, made.tools, answering)

        try:
            return await fit(
                request,
                context=engine.context,
                most=self._stage.max_new_tokens,
                render=render,
                length=lambda prompt: len(engine.tokens(prompt)),
            )
        except (VllmError, ValueError) as error:
            raise LanguageError.of("engine_error", str(error)) from error

    def _parser(self, request: ResponseRequest) -> CallParser | None:
        return self._loaded.parser(offered_tools(request), "auto")

    @property
    def _loaded(self) -> Generator:
        assert self._engine is not None, "load() comes first"
        return self._engine


class _Beat:
    """The model's steps as far as they show: something comes, for whomever."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse
        self._under_way = 0
        self._step = -1

    def begin(self) -> None:
        """A request waits for something."""
        if not self._under_way:
            self._step = self._pulse.begin()
        self._under_way += 1

    def came(self) -> None:
        """Something has come for one of them."""
        self._pulse.end(self._step)
        self._step = self._pulse.begin()

    def end(self, under_way: bool = True) -> None:
        """A request that had begun is over."""
        if under_way:
            self._under_way -= 1
            if not self._under_way:
                self._pulse.end(self._step)


class _Answer:
    """The pieces of one answer."""

    def __init__(
        self,
        deltas: AsyncGenerator[Delta, None],
        request: ResponseRequest,
        parser: CallParser | None,
        prompt: list[int],
        beat: _Beat,
    ) -> None:
        self._deltas = deltas
        self._parser = parser
        self._prompt = prompt
        self._beat = beat
        self._calls = CallReader(offered(request), request.parallel_tool_calls)
        self._parallel = request.parallel_tool_calls
        self._open: dict[int, tuple[str, str]] = {}
        self._ready: deque[Generated] = deque()
        self._usage: Usage | None = None
        self._generated = 0
        self.under_way = False
        self.over = False
        """The model has ended by itself."""
        self._said_all = False

    def __aiter__(self) -> "_Answer":
        return self

    async def __anext__(self) -> Generated:
        while not self._ready:
            if self.over or self._said_all:
                raise StopAsyncIteration
            if not self.under_way:
                self.under_way = True
                self._beat.begin()
            try:
                delta = await anext(self._deltas)
            except StopAsyncIteration:
                self.over = True
                raise LanguageError.of("engine_error", "The model broke off.") from None
            except VllmError as error:
                self.over = True
                code = "engine_unavailable" if error.lost else "engine_error"
                raise LanguageError.of(code, str(error)) from error
            self._beat.came()
            self._take(delta)
        return self._ready.popleft()

    def _take(self, delta: Delta) -> None:
        if self._usage is None:
            self._usage = Usage(input_tokens=delta.prompted, cached_tokens=delta.cached)
            self._ready.append(Began(delta.prompted, delta.cached))
        self._generated += len(delta.tokens)
        self.over = bool(delta.finish)
        text, calls = delta.text, list[ParsedCall]()
        if self._parser is not None:
            text, calls = self._parser.push(delta, self._prompt, self.over)
        if text:
            self._ready.extend(self._calls.push(text))
        for call in calls:
            self._call(call)
        if self.over:
            self._ready.extend(self._calls.finish())
            self._end_call()
        if self.over or self._calls.over:
            self._finish(delta.finish)

    def _call(self, part: ParsedCall) -> None:
        """A part of a call that vLLM's parser has found."""
        if part.index not in self._open:
            if not self._parallel and self._open:
                return
            self._end_call()
            call_id = new_call_id()
            self._open[part.index] = (call_id, "")
            self._ready.append(CallStarted(call_id, part.name))
        call_id, arguments = self._open[part.index]
        if part.arguments:
            self._open[part.index] = (call_id, arguments + part.arguments)
            self._ready.append(CallDelta(call_id, part.arguments))

    def _end_call(self) -> None:
        """The last call is complete: another one begins, or the answer is over."""
        if self._open:
            call_id, arguments = self._open[max(self._open)]
            if not arguments:
                arguments = "{}"
                self._ready.append(CallDelta(call_id, arguments))
            self._ready.append(CallEnded(call_id, arguments))

    def _finish(self, reason: str) -> None:
        self._said_all = True
        if reason in ("error", "abort"):
            raise LanguageError.of("engine_error", "The model broke off.")
        usage = self._usage or Usage()
        self._ready.append(
            Finished(
                "max_output_tokens" if reason == "length" else "completed",
                Usage(
                    input_tokens=usage.input_tokens,
                    cached_tokens=usage.cached_tokens,
                    output_tokens=self._generated,
                ),
            )
        )
