"""Who is talking: one table for each machine, and what one speaker's state means for the other.

A missing key is an impossible transition: :func:`step` leaves the state as it is, and says so, so
that a late or repeated signal changes nothing. The tables are drawn by ``docs/draw_turns.py``.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from duologue.sessions.session_config import TurnPolicy


class Connection(Enum):
    ATTACHED = "attached"
    DETACHED = "detached"
    CLOSING = "closing"
    CLOSED = "closed"
    CLEANUP_FAILED = "cleanup failed"
    FAILED = "failed"


class ConnectionSignal(Enum):
    ATTACH = "attach"
    DETACH = "detach"
    CLOSE = "close"
    FAIL = "fail"
    CLEANED = "cleaned"
    NOT_CLEANED = "not cleaned"


class User(Enum):
    """SILENT; SPEAKING; PAUSING: silent, but the turn is not over."""

    SILENT = "silent"
    SPEAKING = "speaking"
    PAUSING = "pausing"


class UserSignal(Enum):
    VOICE = "voice"
    SILENCE = "silence"
    TURN_OVER = "turn over"


class Assistant(Enum):
    """As the listener hears it.

    SPEAKING lasts until all that was sent is played and no more will come. DUCKED: softened while
    an overlap is judged. YIELDING: cancelled, the engine has not confirmed.
    """

    QUIET = "quiet"
    THINKING = "thinking"
    SPEAKING = "speaking"
    DUCKED = "ducked"
    YIELDING = "yielding"


class AssistantSignal(Enum):
    REQUESTED = "requested"
    AUDIBLE = "audible"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    CONFIRMED = "confirmed"
    OVERLAPPED = "overlapped"
    RESTORED = "restored"


class Generation(Enum):
    """As the engine works: may bring more, was told to stop, has said its last."""

    OPEN = "open"
    CANCELLING = "cancelling"
    CLOSED = "closed"


class GenerationSignal(Enum):
    CANCEL = "cancel"
    END = "end"


class Reaction(Enum):
    """What the assistant does about an overlap."""

    YIELD = "yield"
    JUDGE = "judge"


CONNECTION: Mapping[Connection, Mapping[ConnectionSignal, Connection]] = {
    Connection.ATTACHED: {
        ConnectionSignal.DETACH: Connection.DETACHED,
        ConnectionSignal.CLOSE: Connection.CLOSING,
        ConnectionSignal.FAIL: Connection.FAILED,
    },
    Connection.DETACHED: {
        ConnectionSignal.ATTACH: Connection.ATTACHED,
        ConnectionSignal.CLOSE: Connection.CLOSING,
        ConnectionSignal.FAIL: Connection.FAILED,
    },
    Connection.CLOSING: {
        ConnectionSignal.CLEANED: Connection.CLOSED,
        ConnectionSignal.NOT_CLEANED: Connection.CLEANUP_FAILED,
        ConnectionSignal.FAIL: Connection.FAILED,
    },
    Connection.CLEANUP_FAILED: {
        ConnectionSignal.CLEANED: Connection.CLOSED,
        ConnectionSignal.FAIL: Connection.FAILED,
    },
    Connection.FAILED: {
        ConnectionSignal.CLEANED: Connection.CLOSED,
        ConnectionSignal.NOT_CLEANED: Connection.CLEANUP_FAILED,
    },
    Connection.CLOSED: {},
}

USER: Mapping[User, Mapping[UserSignal, User]] = {
    User.SILENT: {UserSignal.VOICE: User.SPEAKING},
    User.SPEAKING: {UserSignal.SILENCE: User.PAUSING, UserSignal.TURN_OVER: User.SILENT},
    User.PAUSING: {UserSignal.VOICE: User.SPEAKING, UserSignal.TURN_OVER: User.SILENT},
}

ASSISTANT: Mapping[Assistant, Mapping[AssistantSignal, Assistant]] = {
    Assistant.QUIET: {AssistantSignal.REQUESTED: Assistant.THINKING},
    Assistant.THINKING: {
        AssistantSignal.AUDIBLE: Assistant.SPEAKING,
        AssistantSignal.FINISHED: Assistant.QUIET,
        AssistantSignal.CANCELLED: Assistant.YIELDING,
    },
    Assistant.SPEAKING: {
        AssistantSignal.FINISHED: Assistant.QUIET,
        AssistantSignal.CANCELLED: Assistant.YIELDING,
        AssistantSignal.OVERLAPPED: Assistant.DUCKED,
    },
    Assistant.DUCKED: {
        AssistantSignal.RESTORED: Assistant.SPEAKING,
        AssistantSignal.FINISHED: Assistant.QUIET,
        AssistantSignal.CANCELLED: Assistant.YIELDING,
    },
    Assistant.YIELDING: {
        AssistantSignal.REQUESTED: Assistant.THINKING,
        AssistantSignal.CONFIRMED: Assistant.QUIET,
    },
}

GENERATION: Mapping[Generation, Mapping[GenerationSignal, Generation]] = {
    Generation.OPEN: {
        GenerationSignal.CANCEL: Generation.CANCELLING,
        GenerationSignal.END: Generation.CLOSED,
    },
    Generation.CANCELLING: {GenerationSignal.END: Generation.CLOSED},
    Generation.CLOSED: {},
}

Coupling = Mapping[tuple[User, Assistant], Reaction]

COUPLINGS: Mapping[TurnPolicy, Coupling] = {
    TurnPolicy.MANUAL: {},
    TurnPolicy.BARGE_IN: {
        (User.SPEAKING, Assistant.THINKING): Reaction.YIELD,
        (User.SPEAKING, Assistant.SPEAKING): Reaction.YIELD,
        (User.SPEAKING, Assistant.DUCKED): Reaction.YIELD,
    },
    TurnPolicy.BACKCHANNEL_AWARE: {
        (User.SPEAKING, Assistant.THINKING): Reaction.YIELD,
        (User.SPEAKING, Assistant.SPEAKING): Reaction.JUDGE,
        (User.SPEAKING, Assistant.DUCKED): Reaction.YIELD,
    },
    TurnPolicy.OVERLAP: {},
}

State = TypeVar("State", bound=Enum)
Signal = TypeVar("Signal", bound=Enum)


def step(table: Mapping[State, Mapping[Signal, State]], state: State, signal: Signal) -> State:
    """The next state, or the same one where the table has no such transition."""
    return table[state].get(signal, state)
