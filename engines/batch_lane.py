"""The batch lane of a worker: sessions that ask for answers in text, which wait for their turn."""

from collections.abc import Awaitable, Callable

import anyio

from duologue.engines.batch_queue import BatchQueue
from duologue.engines.engine import (
    CancelResponse,
    Command,
    EngineFailure,
    Output,
    Respond,
    ResponseEnded,
    ResponseQueued,
)


class BatchLane:
    """Admits sessions of the batch lane and holds their answers back until it is their turn.

    At most :attr:`limit` sessions have a place, running or not: one more is refused. An answer is
    told its position while it waits; one that is cancelled while it waits has ended at once, and
    the backend never hears of it.
    """

    def __init__(self, limit: int, usual_s: float, say: Callable[[Output], None]) -> None:
        self.limit = limit
        self._say = say
        self._queue = BatchQueue(0, usual_s)
        self._sessions: set[str] = set()
        self._held: dict[str, Respond] = {}
        self._told: dict[str, int] = {}
        self._changed = anyio.Event()

    def open(self, width: int) -> None:
        """`width` answers run at a time; 0: nobody is admitted."""
        self._queue.width = width

    @property
    def taken(self) -> int:
        """How many sessions have a place."""
        return len(self._sessions)

    @property
    def full(self) -> bool:
        return not self._queue.width or len(self._sessions) >= self.limit

    def retry_after(self) -> float:
        """In seconds."""
        return self._queue.retry_after()

    def admit(self, session: str) -> None:
        self._sessions.add(session)

    def respond(self, command: Respond) -> None:
        """Queue an answer. A session's second one fails while the first is under way."""
        session = command.session
        if session in self._queue:
            failure = EngineFailure("engine_overloaded", "Another answer is under way.")
            self._say(ResponseEnded(command.generation, "failed", failure=failure, session=session))
            return
        self._queue.add(session)
        self._held[session] = command
        self._change()

    def cancel(self, command: CancelResponse) -> bool:
        """Whether the answer waited; then it has ended now."""
        held = self._held.get(command.session)
        if held is None or held.generation != command.generation:
            return False
        self._drop(command.session)
        self._say(ResponseEnded(command.generation, "cancelled", session=command.session))
        self._change()
        return True

    def end(self, session: str) -> None:
        """The answer that ran has ended."""
        self._queue.end(session, anyio.current_time())
        self._change()

    def forget(self, session: str) -> None:
        """The session is closed; nothing happens when it is none of this lane's."""
        if session in self._sessions:
            self._sessions.discard(session)
            self._drop(session)
            self._change()

    async def run(self, begin: Callable[[Command], Awaitable[None]]) -> None:
        """Hand answers to `begin` when it is their turn, for ever."""
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            while (session := self._queue.begin(anyio.current_time())) is not None:
                command = self._held.pop(str(session))
                self._tell(command, 0)
                await begin(command)
            for session, position in self._queue.positions().items():
                self._tell(self._held[str(session)], position)

    def _tell(self, command: Respond, position: int) -> None:
        session, generation = command.session, command.generation
        if self._told.get(session) != position:
            self._told[session] = position
            self._say(ResponseQueued(generation, position, session=session))
        if position == 0:
            del self._told[session]

    def _drop(self, session: str) -> None:
        self._held.pop(session, None)
        self._told.pop(session, None)
        self._queue.discard(session)

    def _change(self) -> None:
        self._changed.set()
