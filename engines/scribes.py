"""A recogniser beside a model that hears by itself: what users say, in writing.

It is never in a conversation's way. Nothing here waits or raises: while the recogniser is not
there, is full or falls behind, utterances fail one by one, and when it is there again the next one
is written.
"""

import logging
from collections.abc import Callable
from types import TracebackType
from typing import Final

import anyio
import anyio.abc

from duologue.engines.engine import (
    ConfigureListening,
    DropUtterance,
    EndUtterance,
    Engine,
    EngineFull,
    EngineLost,
    EngineStream,
    EngineUnavailable,
    Hear,
    TranscriptDelta,
    TranscriptFailed,
    TranscriptFinal,
)

log = logging.getLogger(__name__)

LEAST_WAIT_S: Final = 0.2
MOST_WAIT_S: Final = 5.0
"""Bounds of the time after which a recogniser that had no place is asked again."""

MOST_WAITING: Final = 8
"""Utterances of a session that wait to be recognised; one more fails."""

AWAY: Final = "the recogniser is not there"
BEHIND: Final = "the recogniser has fallen behind"

Heard = ConfigureListening | Hear | EndUtterance | DropUtterance
Written = TranscriptDelta | TranscriptFinal | TranscriptFailed


class Scribe:
    """What one session's user says, in writing. All methods are for the event loop."""

    def __init__(self, session: str, engine: Engine, say: Callable[[Written], None]) -> None:
        """``say`` takes what is written; it is called from :meth:`tell` too."""
        self._session = session
        self._engine = engine
        self._say = say
        self._scope = anyio.CancelScope()
        self._stream: EngineStream | None = None
        self._manner: ConfigureListening | None = None
        self._heard: set[str] = set()
        self._missed: set[str] = set()
        self._waiting: set[str] = set()

    def tell(self, command: Heard) -> None:
        """Give the recogniser a command. Never waits or raises."""
        match command:
            case ConfigureListening():
                self._manner = command
                self._pass_on(command)
            case Hear(utterance=name):
                if self._stream is None:
                    self._missed.add(name)
                elif name not in self._missed:
                    self._heard.add(name)
                    self._pass_on(command)
            case EndUtterance(utterance=name):
                self._heard.discard(name)
                if self._stream is None or name in self._missed:
                    self._missed.discard(name)
                    self._fail(name, AWAY)
                elif len(self._waiting) >= MOST_WAITING:
                    self._pass_on(DropUtterance(session="", utterance=name))
                    self._fail(name, BEHIND)
                else:
                    self._waiting.add(name)
                    self._pass_on(command)
            case DropUtterance(utterance=name):
                for names in (self._heard, self._missed, self._waiting):
                    names.discard(name)
                self._pass_on(command)

    def close(self) -> None:
        """The session is over. Idempotent."""
        self._scope.cancel()

    async def run(self) -> None:
        """Keep a place with the recogniser until closed."""
        with self._scope:
            while True:
                try:
                    stream = await self._engine.open(self._session)
                except (EngineFull, EngineUnavailable) as error:
                    await anyio.sleep(min(max(error.retry_after, LEAST_WAIT_S), MOST_WAIT_S))
                    continue
                try:
                    await self._listen(stream)
                except EngineLost:
                    log.info("session %s: the recogniser was lost", self._session)
                finally:
                    self._lose()
                    with anyio.CancelScope(shield=True):
                        await stream.aclose()

    async def _listen(self, stream: EngineStream) -> None:
        self._stream = stream
        if self._manner is not None:
            stream.send(self._manner)
        while True:
            match await stream.receive():
                case TranscriptDelta() as more:
                    self._say(more)
                case TranscriptFinal(utterance=name) | TranscriptFailed(utterance=name) as last:
                    if name in self._waiting:
                        self._waiting.discard(name)
                        self._say(last)
                case _:
                    continue

    def _pass_on(self, command: Heard) -> None:
        if self._stream is None:
            return
        try:
            self._stream.send(command)
        except EngineLost:
            # The receiving side learns of it too, and loses what waits.
            log.debug("session %s: a command was lost with the recogniser", self._session)

    def _lose(self) -> None:
        self._stream = None
        self._missed |= self._heard
        self._heard.clear()
        waiting, self._waiting = sorted(self._waiting), set()
        if not self._scope.cancel_called:
            for name in waiting:
                self._fail(name, AWAY)

    def _fail(self, utterance: str, reason: str) -> None:
        self._say(TranscriptFailed(utterance, reason, session=self._session))


class Scribes:
    """Scribes of all sessions, over one recogniser. To be entered before any is opened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: anyio.abc.TaskGroup | None = None

    async def __aenter__(self) -> "Scribes":
        self._tasks = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, error, trace)

    @property
    def recognizer(self) -> str:
        """What it is called; "" before it was there for the first time."""
        try:
            spec = self._engine.spec
        except EngineUnavailable:
            return ""
        return spec.recognizer or spec.model

    def open(self, session: str, say: Callable[[Written], None]) -> Scribe:
        """One for a session, at once; its place is found in the background."""
        assert self._tasks is not None
        scribe = Scribe(session, self._engine, say)
        self._tasks.start_soon(self._run, scribe)
        return scribe

    async def _run(self, scribe: Scribe) -> None:
        try:
            await scribe.run()
        except Exception:
            log.exception("a session has no recogniser any more")
            scribe.close()
