"""The recogniser in a worker of its own, for models that hear by themselves."""

from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
import numpy as np
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.codecs.pcm import bytes_from_int16
from duologue.engines.backend import Backend, Emit, incoming
from duologue.engines.engine import (
    HEARD_RATE,
    AlignSpeech,
    CloseSession,
    Command,
    ConfigureListening,
    DropUtterance,
    EndUtterance,
    EngineSpec,
    Hear,
    JudgeTurn,
    OpenSession,
    Output,
    TranscriptFailed,
    TranscriptFinal,
)
from duologue.engines.pulse import Pulse
from duologue.engines.recognition import Ears, Float32, Recognition, Recognizer
from duologue.models.whisper import Whisper

REHEARSAL = "rehearsal"
REHEARSAL_OUTPUTS = 16


class RecognizerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """``recognizer``: a folder with CTranslate2's Whisper. ``threads`` of one call. ``capacity``:
    sessions at a time."""

    recognizer: str
    threads: int = 1
    capacity: int = 64


class RecognizerBackend:
    """See :class:`duologue.engines.backend.Backend`.

    It answers what there is to say of utterances and of words; nothing can be asked of it.
    """

    def __init__(
        self,
        config: RecognizerConfig,
        pulse: Pulse | None = None,
        load: Callable[[RecognizerConfig], Recognizer] | None = None,
    ) -> None:
        """`load` may stand in for what the configuration names."""
        self._config = config
        self._pulse = pulse or Pulse()
        self._load = load or load_recognizer
        self._listeners: dict[str, _Listener] = {}

    @property
    def spec(self) -> EngineSpec:
        name = Path(self._config.recognizer).name
        return EngineSpec(
            model=name,
            voices=(),
            default_voice="",
            context_tokens=0,
            recognizer=name,
            calls_tools=False,
        )

    @property
    def capacity(self) -> int:
        return self._config.capacity

    async def run(
        self,
        commands: MemoryObjectReceiveStream[Command],
        emit: Emit,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        recognizer = await anyio.to_thread.run_sync(self._load, self._config)
        recognition = Recognition(recognizer, NoTurns(), self._pulse)
        async with anyio.create_task_group() as group:
            await self._rehearse(group, recognition)
            task_status.started()
            async for command in incoming(commands):
                await self._take(group, recognition, emit, command)
            group.cancel_scope.cancel()

    async def _take(
        self,
        group: anyio.abc.TaskGroup,
        recognition: Recognition,
        emit: Emit,
        command: Command,
    ) -> None:
        listener = self._listeners.get(command.session)
        if isinstance(command, OpenSession):
            if listener is None:
                listener = _Listener(command, recognition, emit)
                self._listeners[command.session] = listener
                await group.start(listener.live)
        elif isinstance(command, CloseSession):
            if listener is not None:
                del self._listeners[command.session]
                listener.close()
        elif listener is not None:
            listener.take(command)

    async def _rehearse(self, group: anyio.abc.TaskGroup, recognition: Recognition) -> None:
        """Recognise a second of noise, by the path that all take."""
        noise = np.random.default_rng(0).integers(-300, 300, HEARD_RATE, np.int16)
        send, receive = anyio.create_memory_object_stream[Output](REHEARSAL_OUTPUTS)
        with send, receive:
            listener = _Listener(OpenSession(session=REHEARSAL), recognition, send.send_nowait)
            await group.start(listener.live)
            listener.take(Hear(REHEARSAL, 0, bytes_from_int16(noise), session=REHEARSAL))
            listener.take(EndUtterance(REHEARSAL, HEARD_RATE, session=REHEARSAL))
            try:
                while not isinstance(output := await receive.receive(), TranscriptFinal):
                    if isinstance(output, TranscriptFailed):
                        raise RuntimeError(f"the recogniser fails: {output.message}")
            finally:
                listener.close()


class NoTurns:
    """In place of a turn detector: whoever pauses is done."""

    def probability(self, audio: Float32) -> float:
        return 1.0


class _Listener:
    """One session, from OpenSession to CloseSession."""

    def __init__(self, opened: OpenSession, recognition: Recognition, emit: Emit) -> None:
        self._opened = opened
        self._recognition = recognition
        self._emit_output = emit
        self._closed = anyio.Event()
        self._ears: Ears | None = None

    async def live(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Hold the session's tasks until it is closed, then cancel them."""
        async with anyio.create_task_group() as tasks:
            self._ears = Ears(self._opened, tasks, self._emit, lambda utterance: None)
            task_status.started()
            await self._closed.wait()
            tasks.cancel_scope.cancel()

    def close(self) -> None:
        """Nothing is emitted from now on."""
        self._closed.set()
        if self._ears is not None:
            self._recognition.forget(self._ears)

    def take(self, command: Command) -> None:
        assert self._ears is not None
        match command:
            case Hear():
                self._recognition.hear(self._ears, command)
            case ConfigureListening():
                self._recognition.configure(self._ears, command)
            case EndUtterance():
                self._recognition.end(self._ears, command)
            case DropUtterance():
                self._recognition.drop(self._ears, command)
            case JudgeTurn():
                self._recognition.judge(self._ears, command)
            case AlignSpeech():
                self._recognition.align(self._ears, command)
            case _:
                return

    def _emit(self, output: Output) -> None:
        if not self._closed.is_set():
            self._emit_output(output)


def load_recognizer(config: RecognizerConfig) -> Recognizer:
    """Blocks. Raises what the model raises."""
    return Whisper(Path(config.recognizer), threads=config.threads)


def create_backend(options: bytes, pulse: Pulse) -> Backend:
    """A recogniser from the msgpack of :class:`RecognizerConfig`."""
    return RecognizerBackend(msgspec.msgpack.decode(options, type=RecognizerConfig), pulse)
