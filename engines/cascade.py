"""The cascade: a recogniser, a turn detector, a language model and voices behind one backend."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.abc
import anyio.lowlevel
import anyio.to_thread
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream

from duologue.engines.backend import Backend, Emit, incoming
from duologue.engines.batch_session import BatchSession
from duologue.engines.cascade_session import CascadeSession, Stages
from duologue.engines.cores import usable_cores
from duologue.engines.engine import (
    CloseSession,
    Command,
    EngineSpec,
    OpenSession,
    Output,
    Respond,
    ResponseRequest,
)
from duologue.engines.eyes import Gaze
from duologue.engines.language import LanguageStage
from duologue.engines.language_choice import (
    LanguageConfig,
    Mortal,
    batch_width,
    calls_tools,
    create_language,
)
from duologue.engines.pipeline.deployment import StageSampling
from duologue.engines.pipeline.lane_connector import LaneConnector, reached
from duologue.engines.pipeline.stage_graph import TTS
from duologue.engines.pulse import Pulse
from duologue.engines.recognition import Recognition, Recognizer, TurnDetector
from duologue.engines.rehearsal import SESSION as REHEARSAL, Rehearsal
from duologue.engines.speaking import Voices, VoiceStage
from duologue.engines.voice_backend import PiperVoice, VoicesConfig, load_voices
from duologue.models.smart_turn import SmartTurn
from duologue.models.vision import Vision
from duologue.models.voice import Synthesizer, VoiceCatalogue
from duologue.models.whisper import Whisper

REHEARSAL_OUTPUTS = 1000

SAMPLING = ("temperature", "top_p", "seed", "stop")
"""What all kinds of language models honour."""


class CascadeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where the parts are; nothing is looked for elsewhere.

    ``recognizer`` is a folder with CTranslate2's Whisper, ``turn_detector`` smart-turn's graph,
    ``kokoro`` Kokoro's folder or "". At least one voice must be there; ``default_voice`` "" is the
    first one that this machine is fast enough for. Threads are those of one call;
    ``voice_threads`` 0 is one for Piper, which is quick, and for Kokoro as many as there are cores,
    at most 4. ``capacity`` 0 is two sessions a core, or one where the default voice may be
    Kokoro's. ``vision`` is the folder of the networks that put pictures into words, or "" for
    none; they are loaded when there is a first picture.

    ``voice_workers``: directories of workers that have the voices instead. ``answer_s``: how long
    a stage of :data:`CASCADE` may be silent over a chunk. ``sampling`` is for requests that don't
    say.
    """

    recognizer: str
    turn_detector: str
    language: LanguageConfig
    kokoro: str = ""
    piper: tuple[PiperVoice, ...] = ()
    default_voice: str = ""
    recognizer_threads: int = 1
    voice_threads: int = 0
    capacity: int = 0
    description: str = ""
    vision: str = ""
    voice_workers: tuple[str, ...] = ()
    answer_s: dict[str, float] = {}
    sampling: StageSampling = StageSampling()


@dataclass(frozen=True, slots=True)
class Parts:
    """The models, loaded. The language model loads itself."""

    recognizer: Recognizer
    detector: TurnDetector
    synthesizers: tuple[Synthesizer, ...]


class CascadeBackend:
    """See :class:`duologue.engines.backend.Backend`."""

    def __init__(
        self,
        config: CascadeConfig,
        pulse: Pulse | None = None,
        *,
        language: LanguageStage | None = None,
        load: Callable[[CascadeConfig], Parts] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`language` and `load` may stand in for what the configuration names; `clock` gives
        seconds and is read on several threads."""
        self._config = config
        self._pulse = pulse or Pulse()
        self._capacity = config.capacity or usual_capacity(config, usable_cores())
        self._language = language or create_language(config.language, self._capacity, self._pulse)
        self._load = load or load_parts
        self._clock = clock
        self._elsewhere: LaneConnector | None = None
        self._stages: Stages | None = None
        self._sessions: dict[str, CascadeSession | BatchSession] = {}

    @property
    def spec(self) -> EngineSpec:
        voices = self._loaded.voices
        return EngineSpec(
            model=self._language.model,
            voices=voices.names,
            default_voice=self._config.default_voice or voices.default,
            context_tokens=self._language.context_tokens,
            sees=self._language.sees or bool(self._config.vision),
            description=self._config.description,
            recognizer=Path(self._config.recognizer).name,
            calls_tools=calls_tools(self._config.language),
            batch=batch_width(self._config.language),
            sampling=SAMPLING,
        )

    @property
    def capacity(self) -> int:
        return self._capacity

    async def run(
        self,
        commands: MemoryObjectReceiveStream[Command],
        emit: Emit,
        *,
        task_status: anyio.abc.TaskStatus[None],
    ) -> None:
        try:
            async with (
                reached(self._config.voice_workers, TTS) as self._elsewhere,
                anyio.create_task_group() as group,
            ):
                await self._load_all()
                if self._elsewhere is not None:
                    await self._elsewhere.wait_ready()
                if isinstance(self._language, Mortal):
                    group.start_soon(self._language.watch)
                await self._rehearse(group)
                task_status.started()
                async for command in incoming(commands):
                    await self._take(group, emit, command)
                for session in self._sessions.values():
                    session.close()
                group.cancel_scope.cancel()
        finally:
            await self._language.aclose()

    @property
    def _loaded(self) -> Stages:
        assert self._stages is not None, "known once it has started"
        return self._stages

    async def _take(self, group: anyio.abc.TaskGroup, emit: Emit, command: Command) -> None:
        session = self._sessions.get(command.session)
        if isinstance(command, OpenSession):
            if session is None:
                opening = self._open_batch if command.batch else self._open
                self._sessions[command.session] = await opening(group, emit, command)
        elif isinstance(command, CloseSession):
            if session is not None:
                del self._sessions[command.session]
                session.close()
        elif session is not None:
            if isinstance(command, Respond):
                request = with_defaults(command.request, self._config.sampling)
                command = msgspec.structs.replace(command, request=request)
            session.take(command)
            if isinstance(command, Respond):
                # Of many that are asked for at once, the first reaches the model before the last
                # one's work begins. All together cost less, but the first words of all are late.
                await anyio.lowlevel.checkpoint()

    async def _open(
        self, group: anyio.abc.TaskGroup, emit: Emit, command: OpenSession
    ) -> CascadeSession:
        session = CascadeSession(command, self._loaded, emit, self._clock)
        await group.start(session.live)
        return session

    async def _open_batch(
        self, group: anyio.abc.TaskGroup, emit: Emit, command: OpenSession
    ) -> BatchSession:
        session = BatchSession(command.session, self._language, emit, self._loaded.gaze)
        await group.start(session.live)
        return session

    async def _load_all(self) -> None:
        """Load the parts side by side."""
        loaded: list[Parts] = []

        async def load() -> None:
            loaded.append(await anyio.to_thread.run_sync(self._load, self._config))

        async with anyio.create_task_group() as group:
            group.start_soon(self._language.load)
            group.start_soon(load)
        voices: VoiceStage | None = self._elsewhere
        if voices is None:
            catalogue = VoiceCatalogue(loaded[0].synthesizers, self._config.default_voice)
            voices = Voices(catalogue, self._pulse)
        self._stages = Stages(
            Recognition(loaded[0].recognizer, loaded[0].detector, self._pulse),
            self._language,
            voices,
            self._config.answer_s,
            self._gaze(),
        )

    def _gaze(self) -> Gaze | None:
        """Eyes for a model that has none."""
        folder = self._config.vision
        if self._language.sees or not folder:
            return None
        return Gaze(lambda: Vision(Path(folder)), self._pulse)

    async def _rehearse(self, group: anyio.abc.TaskGroup) -> None:
        """Run one turn through the real path."""
        send, receive = anyio.create_memory_object_stream[Output](REHEARSAL_OUTPUTS)
        with send, receive:
            session = await self._open(group, send.send_nowait, OpenSession(session=REHEARSAL))
            try:
                choose = not self._config.default_voice
                await Rehearsal(self._loaded, receive, self._clock, choose).run(session)
            finally:
                session.close()


def create_backend(options: bytes, pulse: Pulse) -> Backend:
    """A cascade from the msgpack of :class:`CascadeConfig`."""
    return CascadeBackend(msgspec.msgpack.decode(options, type=CascadeConfig), pulse)


def load_parts(config: CascadeConfig) -> Parts:
    """Load recogniser, turn detector and voices side by side; blocks.

    Raises what the models raise, and ValueError where there is no voice.
    """
    with ThreadPoolExecutor() as pool:
        recognizer = pool.submit(
            Whisper, Path(config.recognizer), threads=config.recognizer_threads
        )
        detector = pool.submit(SmartTurn, Path(config.turn_detector))
        voices: tuple[Synthesizer, ...] = ()
        if not config.voice_workers:
            voices = load_voices(
                VoicesConfig(kokoro=config.kokoro, piper=config.piper, threads=config.voice_threads)
            )
        return Parts(recognizer.result(), detector.result(), voices)


def with_defaults(request: ResponseRequest, sampling: StageSampling) -> ResponseRequest:
    """The request with what it does not say."""
    fields = {
        name: getattr(sampling, name) for name in sampling.given if getattr(request, name) is None
    }
    return msgspec.structs.replace(request, **fields) if fields else request


def usual_capacity(config: CascadeConfig, cores: int) -> int:
    """How many conversations a machine holds: Kokoro needs several times what Piper does."""
    names = {voice.name for voice in config.piper}
    light = not config.kokoro or config.default_voice in names
    return max(1, 2 * cores if light else cores)
