"""What a client can set about a Live session, as typed values.

Fields without effect here are kept as they were sent, to be shown back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from duologue.sessions.items import Item
from duologue.sessions.session_config import AudioFormat, FunctionTool

MOST_INPUT: Final = 128
"""Messages that a session may begin with."""
DEFAULT_WAKE_THRESHOLD: Final = 0.5

TranscriptEvent = Literal["session.input_transcript.delta", "session.output_transcript.delta"]


@dataclass(frozen=True, slots=True)
class LiveFormat:
    """Audio of a Live WebSocket, the same both ways: PCM16 at 16 or 24 kHz, or G.711 at 8 kHz."""

    kind: AudioFormat = AudioFormat.PCM
    rate: int = 24_000

    @property
    def sample_bytes(self) -> int:
        return self.kind.sample_bytes


@dataclass(frozen=True, slots=True)
class ClientDelegation:
    """Tasks go to the application.

    ``acknowledge_ms`` until a spoken acknowledgement, ``None`` for no such thing.
    """

    acknowledge_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ResponsesDelegation:
    """Tasks go to a language model here, with the client's tools.

    ``shown``: the client's ``responses`` object as it was sent. ``refused``: kinds of tools that
    were left out, since nothing here runs them.
    """

    acknowledge_ms: int | None = None
    instructions: str = ""
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    shown: Mapping[str, object] = field(default_factory=dict)
    refused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a decision. ``options`` are labels with what they mean; none for yes or no."""

    kind: Literal["choice", "predicate", "score"]
    instructions: str
    options: tuple[tuple[str | bool, str], ...] = ()
    name: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionsDelegation:
    """Tasks are answered by deciding questions. ``shown``: as the client sent it."""

    acknowledge_ms: int | None = None
    questions: tuple[Question, ...] = ()
    shown: Mapping[str, object] = field(default_factory=dict)


Delegation = ClientDelegation | ResponsesDelegation | DecisionsDelegation


@dataclass(frozen=True, slots=True)
class Trigger:
    """Questions that are decided whenever somebody has said something."""

    event_type: TranscriptEvent
    questions: tuple[Question, ...]
    shown: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DataChannelRules:
    """What may pass over a frontend's data channel; ``None`` for everything.

    ``server`` holds the types of events, and for ``response.event`` those of the event inside.
    """

    client: frozenset[str] | None = None
    server: frozenset[tuple[str, str]] | None = None
    shown: Mapping[str, object] = field(default_factory=dict)

    def lets_in(self, kind: str) -> bool:
        return self.client is None or kind in self.client

    def lets_out(self, kind: str, inner: str = "") -> bool:
        return self.server is None or (kind, inner) in self.server


@dataclass(frozen=True, slots=True)
class LiveConfig:
    """A Live session's settings. Only delegation and triggers ever change.

    ``delegation`` is ``None`` where the client names none: then nothing is delegated.
    ``idle_timeout`` in seconds, ``wake_threshold`` a probability: after so long without speech the
    model rests until there is some. ``history`` is what the conversation begins with, and
    ``shown_history`` how the client wrote it. ``turn_marks``: tell where turns begin and end.
    """

    model: str = ""
    instructions: str = ""
    voice: str = ""
    shown_voice: object = None
    format: LiveFormat = LiveFormat()
    history: tuple[Item, ...] = ()
    shown_history: tuple[object, ...] = ()
    delegation: Delegation | None = None
    triggers: tuple[Trigger, ...] = ()
    store: bool = False
    channel: DataChannelRules | None = None
    safety_identifier: str | None = None
    idle_timeout: float | None = None
    wake_threshold: float = DEFAULT_WAKE_THRESHOLD
    turn_marks: bool = False

    def changed(self, change: "LiveChange") -> "LiveConfig":
        """These settings with what an update names."""
        config = self
        if change.delegation is not None:
            config = replace(config, delegation=change.delegation)
        if change.triggers is not None:
            config = replace(config, triggers=change.triggers)
        return config


@dataclass(frozen=True, slots=True)
class LiveChange:
    """An update, already merged with what it leaves alone; ``None`` for no change."""

    delegation: Delegation | None = None
    triggers: tuple[Trigger, ...] | None = None
