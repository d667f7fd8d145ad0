"""All sessions of a process: who may come in, who must go, and how the process empties.

The registry's task group owns every session's tasks. A session that raises ends alone.
"""

import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

import anyio
import anyio.abc

from duologue.engines.engine import Engine
from duologue.models.silero_vad import SileroVad
from duologue.sessions.core import Session
from duologue.sessions.headcount import Headcount
from duologue.sessions.ports import Clock, Observer, Unobserved
from duologue.sessions.runner import Conversation
from duologue.sessions.session_config import SessionConfig, SessionLimits

logger = logging.getLogger(__name__)

REAP_INTERVAL = 5.0
CLOSE_SECONDS = 10.0
RETRY_AFTER = 5.0


class SessionsFull(Exception):
    """No room for one more session. ``retry_after`` is in seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("the server holds as many sessions as it may")
        self.retry_after = retry_after


class Draining(Exception):
    """The server is about to stop and takes no new sessions."""


def new_id(prefix: str) -> str:
    """An id that can't be guessed, as clients know them: ``item_…``."""
    return f"{prefix}_{secrets.token_hex(10)}"


class SessionRegistry:
    """Enter it to run; leaving it ends every session."""

    def __init__(
        self,
        engine: Engine,
        vad: SileroVad,
        limits: SessionLimits,
        clock: Clock,
        max_sessions: int,
        observer: Observer | None = None,
        headcount: Headcount | None = None,
    ) -> None:
        """``max_sessions``, with those of the processes that share ``headcount``."""
        self._engine = engine
        self._vad = vad
        self._limits = limits
        self._clock = clock
        self._max_sessions = max_sessions
        self._observer = observer or Unobserved()
        self.headcount = headcount or Headcount()
        self._sessions: dict[str, Conversation] = {}
        self._guests: dict[object, Callable[[int, str], None]] = {}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._changed = anyio.Event()
        self.draining = False

    @property
    def active(self) -> int:
        """Sessions that hold a place, closing ones and guests included."""
        return len(self._sessions) + len(self._guests)

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def sees(self) -> bool:
        """Whether pictures are of use, as far as is known before a session opens."""
        return self._engine.ready and self._engine.spec.sees

    @property
    def shows(self) -> bool:
        """Whether answers have video, as far as is known before a session opens."""
        return self._engine.ready and self._engine.spec.shows

    async def __aenter__(self) -> "SessionRegistry":
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._reap)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._tasks is not None
        self.draining = True
        self._close_all(1012, "the server is restarting")
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SECONDS):
            await self._emptied()
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, error, trace)

    async def open(self, config: SessionConfig, *, plays_out: bool = False) -> Conversation:
        """A new session. Raises SessionsFull, Draining, EngineFull or EngineUnavailable."""
        self._check_room()
        assert self._tasks is not None
        session_id = new_id("sess")
        self.headcount.enter()
        try:
            stream = await self._engine.open(session_id)
        except BaseException:
            self.headcount.leave()
            raise
        if self.draining:
            self.headcount.leave()
            with anyio.CancelScope(shield=True):
                await stream.aclose()
            raise Draining("the server is restarting")
        session = Session(
            session_id,
            config,
            self._engine.spec,
            self._limits,
            new_id,
            self._clock.now(),
            plays_out=plays_out,
        )
        conversation = Conversation(
            session,
            self._vad,
            self._engine,
            stream,
            self._clock,
            self._observer,
            self._forget,
        )
        self._sessions[session_id] = conversation
        self._tasks.start_soon(conversation.live)
        return conversation

    def _check_room(self) -> None:
        if self.draining:
            raise Draining("the server is restarting")
        if self.headcount.own + self.headcount.others >= self._max_sessions:
            raise SessionsFull(RETRY_AFTER)

    @contextmanager
    def guest(self, close: Callable[[int, str], None]) -> Iterator[None]:
        """Count a session that is driven elsewhere. Raises SessionsFull, Draining.

        ``close`` ends it, with a WebSocket close code and its reason, when the server is drained.
        """
        self._check_room()
        key = object()
        self._guests[key] = close
        self.headcount.enter()
        try:
            yield
        finally:
            del self._guests[key]
            self.headcount.leave()
            self._tell_change()

    async def drain(self, seconds: float) -> None:
        """Take no new sessions, let the others finish for a while, then close them (1012)."""
        self.draining = True
        with anyio.move_on_after(seconds):
            await self._emptied()
        self._close_all(1012, "the server is restarting")
        with anyio.move_on_after(CLOSE_SECONDS):
            await self._emptied()

    def _close_all(self, code: int, reason: str) -> None:
        for conversation in list(self._sessions.values()):
            conversation.close(code, reason)
        for close in list(self._guests.values()):
            close(code, reason)

    async def _emptied(self) -> None:
        while self.active:
            await self._changed.wait()

    def _forget(self, conversation: Conversation) -> None:
        if self._sessions.pop(conversation.id, None) is not None:
            self.headcount.leave()
        self._tell_change()

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _reap(self) -> None:
        """Try again to give back what a closed session still holds."""
        while True:
            await anyio.sleep(REAP_INTERVAL)
            for conversation in list(self._sessions.values()):
                if conversation.needs_reaping:
                    logger.warning("session %s: cleaning up again", conversation.id)
                    await conversation.clean_up()
