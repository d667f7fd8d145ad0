"""The language stage on transformers: one token at a time, for whoever is most urgent."""

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.streams.memory import MemoryObjectSendStream

from duologue.engines.answer_table import AnswerTable
from duologue.engines.engine import ResponseRequest, Usage
from duologue.engines.fairness import Rank, ServiceLane
from duologue.engines.language import Began, Finished, Generated, LanguageError
from duologue.engines.llama_output import Failed, Item
from duologue.engines.pulse import Pulse
from duologue.engines.stop_text import StopText
from duologue.engines.template_prompts import Fitted, fit, offered, pictures, template_prompt
from duologue.engines.transformers_impl import (
    Choice,
    Generation,
    Memory,
    Stepper,
    TransformersModel,
)
from duologue.engines.transformers_stage import TransformersStage
from duologue.engines.turnstile import Turnstile

BURST = 8
"""Tokens made before others that wait as urgently get their turn."""

log = logging.getLogger(__name__)

T = TypeVar("T")


class _Run:
    """One use of the model. ``stopped`` is read by the thread that steps it; ``made`` are its steps
    since it has had the model."""

    def __init__(self, session: str, rank: Callable[[], Rank]) -> None:
        self.session = session
        self.rank = rank
        self.stopped = False
        self.made = 0

    def stop(self) -> None:
        self.stopped = True


class TransformersLanguage:
    """See :class:`duologue.engines.language.LanguageStage`.

    Each session has a memory of its own that holds what was evaluated of its history; the batch
    lane's answers begin with an empty one.
    """

    def __init__(
        self,
        stage: TransformersStage,
        pulse: Pulse,
        load: Callable[[TransformersStage], Stepper] = TransformersModel,
    ) -> None:
        self._stage = stage
        self._pulse = pulse
        self._load = load
        self._model: Stepper | None = None
        self._turnstile = Turnstile(1)
        self._limiter = anyio.CapacityLimiter(1)
        self._memories: dict[str, Memory] = {}
        self._used: set[str] = set()
        self._table: AnswerTable[_Run] = AnswerTable(_Run.stop)

    @property
    def model(self) -> str:
        return self._stage.name or Path(self._stage.path).stem

    @property
    def context_tokens(self) -> int:
        return self._loaded.context

    @property
    def sees(self) -> bool:
        return False

    @property
    def remote(self) -> bool:
        return False

    async def load(self) -> None:
        self._model = await self._in_thread(partial(self._load, self._stage))

    async def aclose(self) -> None:
        model, self._model = self._model, None
        self._memories.clear()
        if model is not None:
            with anyio.CancelScope(shield=True):
                await self._in_thread(model.close)

    def forget(self, session: str) -> None:
        self._table.forget(session)
        self._memories.pop(session, None)
        self._turnstile.forget(session)

    def answer(
        self, session: str, request: ResponseRequest, rank: Callable[[], Rank]
    ) -> AbstractAsyncContextManager[AsyncIterator[Generated]]:
        run = _Run(session, rank)
        make = partial(self._answer, request, run)
        return self._table.answering(session, run, make, offered(request), request)

    async def warm(self, session: str, request: ResponseRequest) -> None:
        self._table.stop_warming(session)
        if self._table.answers(session) or not request.messages:
            # Many templates take no conversation in which nobody has spoken.
            return
        run = _Run(session, lambda: Rank.IDLE)
        with self._table.warming(session, run):
            try:
                fitted = await self._fitted(request, answering=False)
                with self._memory(run) as memory:
                    generation = self._loaded.begin(memory, fitted.prompt, Choice(0.0))
                    await self._step(generation, run, None, 0)
            except (LanguageError, RuntimeError) as error:
                log.info("a prompt could not be warmed: %s", error)

    async def _answer(
        self, request: ResponseRequest, run: _Run, send: MemoryObjectSendStream[Item]
    ) -> None:
        async with send:
            ending: Item
            try:
                fitted = await self._fitted(request)
                choice = Choice(
                    self._stage.temperature if request.temperature is None else request.temperature,
                    request.top_p,
                    self._stage.seed if request.seed is None else request.seed,
                )
                with self._memory(run) as memory:
                    generation = self._loaded.begin(memory, fitted.prompt, choice)
                    sink = _Sink(send, StopText(request.stop))
                    ending = await self._step(generation, run, sink, fitted.most)
            except LanguageError as error:
                ending = Failed(error)
            except RuntimeError as error:
                # torch's word for everything, running out of memory among it.
                ending = Failed(LanguageError.of("engine_error", f"The model failed: {error}"))
            await send.send(ending)

    async def _step(
        self, generation: Generation, run: _Run, sink: "_Sink | None", most: int
    ) -> Finished:
        """Step to the end; gives the model up to whoever is more urgent."""
        ended = False
        while not ended:
            if run.rank().lane is ServiceLane.BATCH:
                await self._pulse.live.quiet()
            await self._turnstile.enter(run.session, run.rank())
            try:
                ended = await self._turn(generation, run, sink, most)
            finally:
                self._turnstile.leave()
            if sink is not None:
                await sink.flush()
        if sink is not None and not sink.stop.stopped:
            sink.offer(generation, [generation.rest()], last=True)
            await sink.flush()
        limited = generation.generated >= most
        stopped = sink is not None and sink.stop.stopped
        return Finished(
            "max_output_tokens" if limited and not stopped else "completed",
            Usage(
                input_tokens=generation.prompted,
                cached_tokens=generation.cached,
                output_tokens=generation.generated,
            ),
        )

    async def _turn(
        self, generation: Generation, run: _Run, sink: "_Sink | None", most: int
    ) -> bool:
        """Steps in a row, until the end, until somebody else should have the model, or until the
        reader has no room; whether it is the end.

        The model is kept from one token to the next: given up in between, it would make a token of
        the batch lane for each one of a conversation.
        """
        run.made = 0
        while True:
            said, ended = await self._in_thread(partial(self._steps, generation, run, most))
            room = True
            if sink is not None:
                room = sink.offer(generation, said)
                ended = ended or sink.stop.stopped
            if ended or not room or self._makes_way(run):
                return ended

    def _steps(self, generation: Generation, run: _Run, most: int) -> tuple[list[str], bool]:
        """Some steps, in a thread: what they said, and whether it is the end."""
        while not run.stopped:
            prompting = generation.evaluated + generation.cached < generation.prompted
            if not most and not prompting:
                return [], True
            with self._pulse.step():
                text = generation.step()
            if text is None:
                return [], True
            run.made += 1
            if generation.generated >= most > 0:
                return [text], True
            if text:
                # One piece at a time: the reader gets each as soon as it is there.
                return [text], False
            if self._makes_way(run):
                return [], False
        return [], True

    def _makes_way(self, run: _Run) -> bool:
        if run.rank().lane is ServiceLane.BATCH and self._pulse.live.busy:
            return True
        return self._turnstile.outranked(run.rank(), run.made >= BURST)

    @contextmanager
    def _memory(self, run: _Run) -> Iterator[Memory]:
        """The session's own, unless another answer of it uses that now."""
        own = run.rank().lane is ServiceLane.REALTIME and run.session not in self._used
        if not own:
            yield self._loaded.memory()
            return
        if run.session not in self._memories:
            self._memories[run.session] = self._loaded.memory()
        self._used.add(run.session)
        try:
            yield self._memories[run.session]
        finally:
            self._used.discard(run.session)

    async def _fitted(self, request: ResponseRequest, answering: bool = True) -> Fitted[list[int]]:
        model = self._loaded
        if pictures(request):
            raise LanguageError.of("engine_error", "This model takes no pictures.")

        async def render(shown: ResponseRequest) -> list[int]:
            made = template_prompt(shown, knows_tools=model.knows_tools)
            return await anyio.to_thread.run_sync(
                model.prompt, made.messages, made.tools, answering
            )

        try:
            return await fit(
                request,
                context=model.context,
                most=self._stage.max_new_tokens,
                render=render,
                length=len,
            )
        except ValueError as error:
            raise LanguageError.of("engine_error", str(error)) from error

    @property
    def _loaded(self) -> Stepper:
        assert self._model is not None, "load() comes first"
        return self._model

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)


class _Sink:
    """Where an answer's text goes, up to a stop text."""

    def __init__(self, send: MemoryObjectSendStream[Item], stop: StopText) -> None:
        self._send = send
        self.stop = stop
        self._began = False
        self._pending: deque[Item] = deque()

    def offer(self, generation: Generation, said: list[str], last: bool = False) -> bool:
        """Whether the reader has room for it; what it has none for waits for :meth:`flush`."""
        text = "".join(map(self.stop.push, said))
        if last:
            text += self.stop.finish()
        if not self._began and (generation.generated or last):
            self._began = True
            self._pending.append(Began(generation.prompted, generation.cached))
        if text:
            self._pending.append(text)
        try:
            while self._pending:
                self._send.send_nowait(self._pending[0])
                self._pending.popleft()
        except (anyio.WouldBlock, anyio.BrokenResourceError):
            return False
        return True

    async def flush(self) -> None:
        """Wait for the reader."""
        while self._pending:
            await self._send.send(self._pending[0])
            self._pending.popleft()
