"""What our path to vLLM costs: the same prompts to a bare AsyncLLM, to the stage, to the engine.

All share one AsyncLLM, one process and one event loop, and take turns; the prefix cache is emptied
before each. *bare* gives tokens to ``AsyncLLM.generate``, made before the clock starts; *rendered*
has vLLM make them of the messages first, as whoever has messages must; *stage* gives requests to
the language stage; *engine* goes through a gateway's sockets and the cascade's sessions, as every
conversation does. What is added is told against both of vLLM's own ways.
"""

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import anyio
import anyio.to_thread

from duologue.engines.cascade import CascadeBackend, CascadeConfig, Parts
from duologue.engines.engine import (
    EngineStream,
    Message,
    Respond,
    ResponseEnded,
    ResponseRequest,
    TextGenerated,
    TextPart,
)
from duologue.engines.fairness import Rank
from duologue.engines.in_process import open_in_process
from duologue.engines.language import Finished, TextPiece
from duologue.engines.pulse import Pulse
from duologue.engines.settled_heap import settle_heap
from duologue.engines.stand_ins import StandInDetector, StandInRecognizer, StandInSynthesizer
from duologue.engines.template_prompts import template_prompt
from duologue.engines.vllm_stage import VllmStage
from load_tests.clock import now
from load_tests.report import Json, percentile, spread
from load_tests.tiny_model import QWEN_7B, SENTENCES, Geometry, write_model

WAYS: Final = ("bare", "rendered", "stage", "engine")
OWN: Final = ("bare", "rendered")
"""vLLM alone."""
WORDS: Final = 12
"""Sentences before each question, so that a prompt has some hundred tokens."""


@dataclass(slots=True)
class Taken:
    """What one pass of one way took. Times in milliseconds."""

    first: list[float] = field(default_factory=list)
    token: list[float] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    def add(self, begun: float, first: float, last: float, tokens: int) -> None:
        """One answer, in seconds of one clock."""
        self.first.append((first - begun) * 1000)
        if tokens > 1:
            self.token.append((last - first) * 1000 / (tokens - 1))
        self.tokens += tokens

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0


Answer = Callable[[int, int, Taken], Awaitable[None]]
"""Ask for one answer: by which of the clients, which prompt, and where the times go."""


def request_of(number: int, tokens: int) -> ResponseRequest:
    """A question that no other number has from its first word on."""
    filler = " ".join(SENTENCES[(number + at) % len(SENTENCES)] for at in range(WORDS))
    return ResponseRequest(
        instructions="Answer in one short sentence.",
        messages=(Message("user", (TextPart(f"Question {number}. {filler}"),)),),
        modality="text",
        max_output_tokens=tokens,
        temperature=0.0,
    )


async def run_engine_overhead(
    model: Path | None,
    large: bool,
    at_once: Sequence[int],
    answers: int,
    tokens: int,
    rounds: int,
    eager: bool,
    gpu_memory: float,
) -> tuple[dict[str, Json], list[str]]:
    """Figures of each number of clients in `at_once`; `answers` are asked for by each client.

    `model` is a folder; without it one is made here: Qwen2.5-7B's geometry with random weights if
    `large`, else one so small that vLLM itself is most of the work.
    """
    with tempfile.TemporaryDirectory() as made:
        folder = model or Path(made)
        if model is None:
            geometry, seed = (QWEN_7B, None) if large else (Geometry(), 0)
            await anyio.to_thread.run_sync(partial(write_model, folder, geometry, seed=seed))
        stage = VllmStage(
            path=str(folder),
            name="measured",
            places=max(at_once),
            batch=max(at_once),
            load_format="dummy" if large and model is None else "",
            eager=eager,
            gpu_memory=gpu_memory,
            context=2048,
        )
        return await _measure(stage, at_once, answers, tokens, rounds)


async def _measure(
    stage: VllmStage, at_once: Sequence[int], answers: int, tokens: int, rounds: int
) -> tuple[dict[str, Json], list[str]]:
    from duologue.engines.vllm_impl import VllmEngine
    from duologue.engines.vllm_language import VllmLanguage

    begun = now()
    engine = await anyio.to_thread.run_sync(VllmEngine, stage)
    figures: dict[str, Json] = {"vLLM started, s": round(now() - begun, 1)}
    problems: list[str] = []
    language = VllmLanguage(stage, Pulse(), lambda _: engine)
    config = CascadeConfig(
        recognizer="", turn_detector="", language=stage, capacity=max(at_once), default_voice="tone"
    )
    parts = Parts(StandInRecognizer(), StandInDetector(), (StandInSynthesizer(),))
    backend = CascadeBackend(config, language=language, load=lambda _: parts)
    requests = [request_of(number, tokens) for number in range(max(at_once) * answers)]
    shown = [template_prompt(request, knows_tools=True) for request in requests]

    async def render(number: int) -> Any:
        return await engine.prompt(shown[number].messages, shown[number].tools, True)

    prompts = [await render(number) for number in range(len(requests))]

    async def rendered(number: int) -> Any:
        return prompts[number]

    figures["tokens in a prompt"] = len(engine.tokens(prompts[0]))
    figures["tokens in an answer"] = tokens
    async with open_in_process(backend) as remote, AsyncExitStack() as stack:
        await remote.wait_ready()
        streams = [
            await stack.enter_async_context(_open(remote, f"s{number}"))
            for number in range(max(at_once))
        ]
        ways: dict[str, Answer] = {
            "bare": partial(_ask_vllm, engine.llm, rendered, tokens),
            "rendered": partial(_ask_vllm, engine.llm, render, tokens),
            "stage": partial(_ask_stage, language, requests),
            "engine": _Sessions(streams, requests).ask,
        }
        settle_heap()  # as a worker does
        for clients in at_once:
            passes: dict[str, list[Taken]] = {way: [] for way in WAYS}
            for number in range(rounds + 1):
                for way in WAYS:
                    await engine.llm.reset_prefix_cache()
                    taken = await _pass(ways[way], clients, answers)
                    if number:
                        # The first round is for what is compiled and cached once.
                        passes[way].append(taken)
            _tell(figures, problems, clients, passes)
    return figures, problems


async def _pass(ask: Answer, clients: int, answers: int) -> Taken:
    """Each client asks again as soon as it was answered."""
    taken = Taken()

    async def talk(client: int) -> None:
        for number in range(answers):
            await ask(client, client * answers + number, taken)

    begun = now()
    async with anyio.create_task_group() as group:
        for client in range(clients):
            group.start_soon(talk, client)
    taken.seconds = now() - begun
    return taken


async def _ask_vllm(
    llm: Any,
    prompt: Callable[[int], Awaitable[Any]],
    tokens: int,
    client: int,
    number: int,
    taken: Taken,
) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    sampling = SamplingParams(
        temperature=0.0, max_tokens=tokens, output_kind=RequestOutputKind.DELTA
    )
    begun, first, made = now(), 0.0, 0
    tokens_of = await prompt(number)
    async for output in llm.generate(tokens_of, sampling, f"bare-{number}-{begun}"):
        first = first or (now() if output.outputs[0].text else 0.0)
        made += len(output.outputs[0].token_ids)
    taken.add(begun, first or now(), now(), made)


async def _ask_stage(
    language: Any, requests: list[ResponseRequest], client: int, number: int, taken: Taken
) -> None:
    begun, first, made = now(), 0.0, 0
    async with language.answer(f"client-{client}", requests[number], lambda: Rank.FIRST) as pieces:
        async for piece in pieces:
            if isinstance(piece, TextPiece):
                first = first or now()
            elif isinstance(piece, Finished):
                made = piece.usage.output_tokens
    taken.add(begun, first or now(), now(), made)


class _Sessions:
    """A session for each client."""

    def __init__(self, streams: list[EngineStream], requests: list[ResponseRequest]) -> None:
        self._streams = streams
        self._requests = requests
        self._generations = 0

    async def ask(self, client: int, number: int, taken: Taken) -> None:
        self._generations += 1
        generation = self._generations
        stream = self._streams[client]
        begun, first = now(), 0.0
        stream.send(
            Respond(session=f"s{client}", generation=generation, request=self._requests[number])
        )
        while True:
            output = await stream.receive()
            if isinstance(output, TextGenerated):
                first = first or now()
            elif isinstance(output, ResponseEnded):
                taken.add(begun, first or now(), now(), output.usage.output_tokens)
                return


@asynccontextmanager
async def _open(remote: Any, name: str) -> AsyncIterator[EngineStream]:
    stream: EngineStream = await remote.open(name)
    try:
        yield stream
    finally:
        await stream.aclose()


def spread_of_passes(middles: Sequence[float]) -> dict[str, Json]:
    """The best, middle and worst of them, and which one the worst was, counted from 1: so that one
    bad pass shows. Raises ValueError when there are none."""
    worst = max(middles)
    return {
        "best": min(middles),
        "middle": percentile(middles, 0.5),
        "worst": worst,
        "worst pass": middles.index(worst) + 1,
    }


def _tell(
    figures: dict[str, Json], problems: list[str], clients: int, passes: dict[str, list[Taken]]
) -> None:
    for way in WAYS:
        first = [value for taken in passes[way] for value in taken.first]
        token = [value for taken in passes[way] for value in taken.token]
        rate = median(taken.rate for taken in passes[way])
        name = f"{clients} at once, {way}"
        figures[f"{name}: first text, ms"] = spread(first)
        middles = [round(percentile(taken.first, 0.5), 1) for taken in passes[way]]
        figures[f"{name}: first text, p50 of each pass, ms"] = spread_of_passes(middles)
        figures[f"{name}: each further token, ms"] = {
            "p50": round(percentile(token, 0.5), 2) if token else None,
            "p95": round(percentile(token, 0.95), 2) if token else None,
            "p99": round(percentile(token, 0.99), 2) if token else None,
            "max": round(max(token), 2) if token else None,
        }
        figures[f"{name}: tokens a second"] = round(rate, 1)
        for own in OWN:
            if way in OWN[: OWN.index(own) + 1]:
                continue
            # Neighbours in time are compared: a machine is not the same all the time.
            pairs = list(zip(passes[way], passes[own], strict=True))
            shares = [one.rate / other.rate for one, other in pairs]
            added = [
                percentile(one.first, 0.5) - percentile(other.first, 0.5) for one, other in pairs
            ]
            figures[f"{name}: of {own}'s throughput, %"] = round(100 * median(shares), 1)
            figures[f"{name}: added to {own}'s first text (p50), ms"] = round(median(added), 2)
    counts = {way: sum(taken.tokens for taken in passes[way]) for way in WAYS}
    if max(counts.values()) > 1.02 * min(counts.values()):
        problems.append(f"{clients} at once: the ways made different numbers of tokens: {counts}")
