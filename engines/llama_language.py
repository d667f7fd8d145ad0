"""The language stage on llama.cpp: warm slots, prompts in slices, answers as they come."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.streams.memory import MemoryObjectSendStream

from duologue.engines.answer_table import AnswerTable
from duologue.engines.context_window import only_older_gone
from duologue.engines.cores import usable_cores
from duologue.engines.engine import Message, ResponseRequest, Usage
from duologue.engines.fairness import Rank, ServiceLane
from duologue.engines.language import Began, Finished, Generated, LanguageError
from duologue.engines.llama_impl import Completed, Completer, Completion, LlamaError, LlamaServer
from duologue.engines.llama_output import Failed, Item
from duologue.engines.llama_prompts import LlamaStage, PromptBuilder, SlotPrompt
from duologue.engines.pulse import Pulse
from duologue.engines.slots import Slot, SlotTable
from duologue.engines.turnstile import Turnstile

SLICE = 64
"""Tokens of a prompt evaluated before others that wait as urgently get their turn."""

BURST = 16
"""Tokens generated before others that wait as urgently get their turn."""

MOST_THREADS = 8

log = logging.getLogger(__name__)

T = TypeVar("T")


def load_server(stage: LlamaStage) -> Completer:
    """The stage's model, loaded; see :class:`LlamaServer` for what it raises."""
    threads = stage.threads or min(usable_cores(), MOST_THREADS)
    slots = stage.slots + stage.batch_slots
    return LlamaServer(Path(stage.path), slots=slots, context=stage.context, threads=threads)


class _Run:
    """One use of a slot. ``stopped`` is read by the thread that generates."""

    def __init__(self, session: str, rank: Callable[[], Rank]) -> None:
        self.session = session
        self.rank = rank
        self.stopped = False
        self.slot: Slot | None = None
        self.cached: int | None = None
        self.began = False


class LlamaLanguage:
    """See :class:`duologue.engines.language.LanguageStage`."""

    def __init__(
        self,
        stage: LlamaStage,
        pulse: Pulse,
        load: Callable[[LlamaStage], Completer] = load_server,
    ) -> None:
        self._stage = stage
        self._pulse = pulse
        self._load = load
        self._completer: Completer | None = None
        self._slots = SlotTable(stage.slots, stage.batch_slots)
        self._given = anyio.Event()
        self._turnstile = Turnstile(stage.parallel)
        self._limiter = anyio.CapacityLimiter(stage.slots + stage.batch_slots + 2)
        self._shown: dict[str, tuple[str, tuple[Message, ...]]] = {}
        self._table: AnswerTable[_Run] = AnswerTable(self._stop)

    @property
    def model(self) -> str:
        return self._stage.name or Path(self._stage.path).stem

    @property
    def context_tokens(self) -> int:
        return self._stage.context

    @property
    def sees(self) -> bool:
        return False

    @property
    def remote(self) -> bool:
        return False

    async def load(self) -> None:
        self._completer = await self._in_thread(partial(self._load, self._stage))

    async def aclose(self) -> None:
        completer, self._completer = self._completer, None
        if completer is not None:
            with anyio.CancelScope(shield=True):
                await self._in_thread(completer.close)

    def forget(self, session: str) -> None:
        self._table.forget(session)
        self._slots.forget(session)
        self._shown.pop(session, None)
        self._turnstile.forget(session)

    def answer(
        self, session: str, request: ResponseRequest, rank: Callable[[], Rank]
    ) -> AbstractAsyncContextManager[AsyncIterator[Generated]]:
        run = _Run(session, rank)
        make = partial(self._answer, request, run)
        return self._table.answering(session, run, make, self._builder().offered(request), request)

    async def warm(self, session: str, request: ResponseRequest) -> None:
        self._table.stop_warming(session)
        if self._table.answers(session):
            # The answer's slot will hold this prompt; another slot would evaluate all of it.
            return
        run = _Run(session, lambda: Rank.IDLE)
        with self._table.warming(session, run):
            try:
                prompt = await self._in_thread(partial(self._builder().beginning, request))
                async with self._using_slot(run, prompt) as slot:
                    # To ask for less than the slot holds would make it forget the rest.
                    if slot.cached(prompt.tokens) < len(prompt.tokens):
                        await self._generate(prompt, run, None)
            except (LanguageError, LlamaError) as error:
                log.info("a prompt could not be warmed: %s", error)

    def _stop(self, run: _Run) -> None:
        run.stopped = True
        if run.slot is not None:
            self._slots.leave(run.slot)

    async def _answer(
        self, request: ResponseRequest, run: _Run, send: MemoryObjectSendStream[Item]
    ) -> None:
        async with send:
            ending: Item
            try:
                prompt = await self._in_thread(partial(self._builder().build, request))
                async with self._using_slot(run, prompt):
                    ending = await self._generate(prompt, run, send)
            except LanguageError as error:
                ending = Failed(error)
            except LlamaError as error:
                code = "context_too_long" if error.too_long else "engine_error"
                ending = Failed(LanguageError.of(code, str(error)))
            await send.send(ending)

    async def _generate(
        self, prompt: SlotPrompt, run: _Run, send: MemoryObjectSendStream[Item] | None
    ) -> Finished:
        """Evaluate the prompt and generate to the end; waits for others and for the reader."""
        assert run.slot is not None
        reuse = self._is_shortened(run.session, prompt)
        tokens, said, generated = prompt.tokens, "", 0
        while True:
            completion = Completion(
                tokens,
                run.slot.index,
                prompt.most - generated,
                prompt.sampling,
                prompt.schema,
                reuse,
            )
            flow = _Flow(run, completion, send, self._turnstile, self._pulse)
            run.slot.tokens, run.slot.generated = tokens, 0
            completed = await self._complete(completion, flow)
            run.slot.generated = completed.generated
            if flow.withheld and send is not None:
                if completed.reason == "stopped":
                    continue
                await send.send(flow.said)
            said += flow.said
            generated += completed.generated
            if completed.reason != "stopped" or generated >= prompt.most > 0 or flow.gone:
                usage = Usage(
                    input_tokens=len(prompt.tokens),
                    cached_tokens=run.cached or 0,
                    output_tokens=generated,
                )
                limited = completed.reason != "stop"
                return Finished("max_output_tokens" if limited else "completed", usage)
            if flow.held and send is not None:
                await send.send(flow.held)
            if flow.said:
                builder = self._builder()
                tokens = await self._in_thread(partial(builder.continuation, prompt, said))

    async def _complete(self, completion: Completion, flow: "_Flow") -> Completed:
        assert self._completer is not None
        work = partial(self._completer.complete, completion, flow.step)
        run = flow.run
        if run.rank().lane is ServiceLane.BATCH:
            await self._pulse.live.quiet()
        await self._turnstile.enter(run.session, run.rank())
        try:
            completed = await self._in_thread(work)
        finally:
            flow.end()
            self._turnstile.leave()
        if run.cached is None:
            run.cached = completed.cached
        return completed

    def _builder(self) -> PromptBuilder:
        assert self._completer is not None, "load() comes first"
        return PromptBuilder(self._stage, self._completer)

    def _is_shortened(self, session: str, prompt: SlotPrompt) -> bool:
        """Whether the slot holds this history after messages that are no longer in it."""
        before = self._shown.get(session)
        self._shown[session] = (prompt.instructions, prompt.shown)
        if before is None or before[0] != prompt.instructions:
            return False
        return only_older_gone(before[1], prompt.shown)

    @asynccontextmanager
    async def _using_slot(self, run: _Run, prompt: SlotPrompt) -> AsyncIterator[Slot]:
        batch = run.rank().lane is ServiceLane.BATCH
        while (slot := self._slots.take(run.session, prompt.tokens, batch)) is None:
            await self._given.wait()
        run.slot = slot
        try:
            yield slot
        finally:
            run.slot = None
            self._slots.give(slot)
            self._given.set()
            self._given = anyio.Event()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)


class _Flow:
    """One completion's text on its way from llama.cpp's thread to the reader.

    ``said`` is what was generated, ``held`` its last piece if the reader had no room for it;
    ``gone``: there is no reader any more. ``withheld``: nothing is given to the reader, since the
    text may have to begin again.
    """

    def __init__(
        self,
        run: _Run,
        completion: Completion,
        send: MemoryObjectSendStream[Item] | None,
        turnstile: Turnstile,
        pulse: Pulse,
    ) -> None:
        self.run = run
        self.said = ""
        self.held = ""
        self.gone = False
        self._batch = run.rank().lane is ServiceLane.BATCH
        # A text that follows a schema can't be taken up again in its middle. The batch lane has to
        # make way all the same, and begins anew.
        self._whole = completion.schema is not None and not self._batch
        self.withheld = completion.schema is not None and self._batch
        self._prompted = len(completion.tokens)
        self._send = send
        self._turnstile = turnstile
        self._pulse = pulse
        self._beat = ExitStack()
        self._generated = 0

    def step(self, text: str, evaluated: int) -> bool:
        """Whether to stop. Called in the thread, at every step of the model."""
        self._beat.close()
        if self.run.stopped:
            return True
        if text and self.withheld:
            self._generated += 1
            self.said += text
        elif text and self._send is not None:
            self._generated += 1
            began = None
            if not self.run.began:
                self.run.began = True
                if self.run.cached is None:
                    self.run.cached = self._prompted - evaluated
                began = Began(self._prompted, self.run.cached)
            if anyio.from_thread.run_sync(self._deliver, self._send, began, text):
                return True
        if self._makes_way(evaluated):
            return True
        self._beat.enter_context(self._pulse.step())
        return False

    def end(self) -> None:
        """The call is over."""
        self._beat.close()

    def _makes_way(self, evaluated: int) -> bool:
        if self._whole and self._generated:
            return False
        if self._batch and self._pulse.live.busy:
            return True
        served = self._generated >= BURST or (not self._generated and evaluated >= SLICE)
        return self._turnstile.outranked(self.run.rank(), served)

    def _deliver(self, send: MemoryObjectSendStream[Item], began: Began | None, text: str) -> bool:
        self.said += text
        try:
            if began is not None:
                send.send_nowait(began)
            send.send_nowait(text)
        except anyio.WouldBlock:
            self.held = text
        except anyio.BrokenResourceError:
            self.gone = True
        return bool(self.held) or self.gone
