"""A worker with the real cascade around stand-ins for its models, one of which obeys: what the
user says is what goes wrong. Run as a program in place of the worker.

"raise at N": the language model's step N raises. "break at N": it says that it is broken for all.
"eat memory": one step allocates until there is no more. "starve": the whole worker gets no memory
any more. "talk on": the language model says more after its last piece. "hang": a step never ends.
"garbage": the worker sends bytes that are no message. Anything else is answered in three steps.
"""

import resource
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread

from duologue.engines import frames, worker
from duologue.engines.backend import Backend
from duologue.engines.cascade import CascadeBackend, CascadeConfig, Parts
from duologue.engines.engine import ResponseRequest, TextPart, Usage
from duologue.engines.fairness import Rank
from duologue.engines.language import Finished, Generated, TextPiece
from duologue.engines.llama_prompts import LlamaStage
from duologue.engines.pipeline.pipeline_run import StageFatal
from duologue.engines.pulse import Pulse
from duologue.engines.stand_ins import (
    StandInDetector,
    StandInLanguage,
    StandInRecognizer,
    StandInSynthesizer,
)

MEBIBYTE = 2**20
PIECES = ("First. ", "Then some. ", "And the last.")
CONFIG = CascadeConfig(
    recognizer="/r", turn_detector="/t", language=LlamaStage(path="/l.gguf"), capacity=8
)


class ObedientLanguage(StandInLanguage):
    def __init__(self, pulse: Pulse) -> None:
        super().__init__()
        self._pulse = pulse

    @asynccontextmanager
    async def answer(
        self, session: str, request: ResponseRequest, rank: Callable[[], Rank]
    ) -> AsyncIterator[AsyncIterator[Generated]]:
        part = request.messages[-1].parts[0] if request.messages else TextPart("")
        order = part.text if isinstance(part, TextPart) else ""
        yield self._obey(order)

    async def _obey(self, order: str) -> AsyncIterator[Generated]:
        for number, piece in enumerate(PIECES):
            await anyio.to_thread.run_sync(self._step, order, number)
            yield TextPiece(piece)
        yield Finished("completed", Usage())
        if order == "talk on":
            yield TextPiece("And one more thing. ")
            yield Finished("completed", Usage())

    def _step(self, order: str, number: int) -> None:
        with self._pulse.step():
            if order == f"raise at {number}":
                raise RuntimeError("this step goes wrong")
            if order == f"break at {number}":
                raise StageFatal("the model is broken")
            if order == "eat memory":
                _allocate_everything()
            if order == "hang":
                time.sleep(600)
            if order == "starve":
                resource.setrlimit(resource.RLIMIT_AS, (MEBIBYTE, MEBIBYTE))
                raise StageFatal(str(MemoryError()))
            if order == "garbage":
                frames.FrameWriter.take = lambda self: b"\0\0\0\1\301"  # type: ignore[method-assign]


def _allocate_everything() -> None:
    """All that 64 MiB hold; the limit is lifted afterwards, as others end and give theirs back."""
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + 64 * MEBIBYTE, hard))
    held = []
    try:
        while True:
            held.append(bytearray(8 * MEBIBYTE))
    finally:
        held.clear()
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _faulty(options: bytes, pulse: Pulse) -> Backend:
    return CascadeBackend(
        CONFIG,
        pulse,
        language=ObedientLanguage(pulse),
        load=lambda _: Parts(StandInRecognizer(), StandInDetector(), (StandInSynthesizer(),)),
    )


if __name__ == "__main__":
    worker.BACKENDS = {"faulty": _faulty}
    sys.exit(worker.main())
