"""A worker that says what it hears: ``python -m load_tests.echo_worker``, started as any worker."""

import sys

import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.engines import worker
from duologue.engines.backend import Backend, Emit, incoming
from duologue.engines.engine import (
    Command,
    EngineSpec,
    Hear,
    JudgeTurn,
    SpeechGenerated,
    TurnJudged,
)
from duologue.engines.pulse import Pulse


class EchoBackend:
    """Hear comes back as speech, JudgeTurn as a judgement: each at once."""

    spec = EngineSpec(model="echo", voices=("echo",), default_voice="echo", context_tokens=1)
    capacity = 1000

    async def run(
        self,
        commands: MemoryObjectReceiveStream[Command],
        emit: Emit,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        task_status.started()
        async for command in incoming(commands):
            match command:
                case Hear() if command.utterance != "kept":
                    emit(SpeechGenerated(1, command.pcm, session=command.session))
                case JudgeTurn():
                    emit(TurnJudged(command.utterance, command.at, 1.0, session=command.session))
                case _:
                    pass


def _echo(options: bytes, pulse: Pulse) -> Backend:
    return EchoBackend()


if __name__ == "__main__":
    worker.BACKENDS = {"echo": _echo}
    sys.exit(worker.main())
