"""What a client can set about a session, as typed values, and how updates merge."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, Literal


class Unset(Enum):
    """The one value of a field that a patch leaves alone."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET

LOGPROBS: Final = "item.input_audio_transcription.logprobs"
"""In ``include``: transcripts with the probabilities of their tokens."""

Modality = Literal["audio", "text"]
Eagerness = Literal["low", "medium", "high", "auto"]
Kind = Literal["realtime", "transcription"]


class AudioFormat(Enum):
    """Formats of audio on the wire: 16-bit little-endian PCM at 24 kHz, or G.711 at 8 kHz."""

    PCM = "audio/pcm"
    PCMU = "audio/pcmu"
    PCMA = "audio/pcma"

    @property
    def rate(self) -> int:
        """Samples a second."""
        return 24_000 if self is AudioFormat.PCM else 8_000

    @property
    def sample_bytes(self) -> int:
        return 2 if self is AudioFormat.PCM else 1


@dataclass(frozen=True, slots=True)
class ServerVad:
    """The turn is over after a fixed silence. Milliseconds; threshold 0 to 1."""

    threshold: float = 0.5
    prefix_padding_ms: int = 300
    silence_duration_ms: int = 500
    idle_timeout_ms: int | None = None
    create_response: bool = True
    interrupt_response: bool = True


@dataclass(frozen=True, slots=True)
class SemanticVad:
    """The turn is over when the turn detector thinks so, or the patience of ``eagerness`` ends."""

    eagerness: Eagerness = "auto"
    create_response: bool = True
    interrupt_response: bool = True


TurnDetection = ServerVad | SemanticVad


@dataclass(frozen=True, slots=True)
class TurnDetectionPatch:
    """Fields of one kind of turn detection; those not given stay, or are the kind's defaults."""

    kind: type[ServerVad] | type[SemanticVad]
    changes: Mapping[str, object]

    def applied_to(self, current: TurnDetection | None) -> TurnDetection:
        base = current if isinstance(current, self.kind) else self.kind()
        return replace(base, **self.changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Transcription:
    """Ask for transcripts of what the user says; the names of models are taken as they come."""

    model: str = ""
    language: str = ""
    prompt: str = ""
    extra: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FunctionTool:
    """A function the model may call; ``parameters`` is a JSON Schema as JSON text."""

    name: str
    description: str = ""
    parameters: str = "{}"


@dataclass(frozen=True, slots=True)
class Truncation:
    """What happens when the history outgrows the model's context.

    ``auto`` drops the oldest messages; ``disabled`` lets the response fail; ``retention_ratio``
    drops down to that share of the limit at once, so that the prefix stays the same for longer.
    """

    kind: Literal["auto", "disabled", "retention_ratio"] = "auto"
    retention_ratio: float = 1.0
    post_instructions: int | None = None


class TurnPolicy(Enum):
    """Who yields when both speak.

    MANUAL: nobody; the client says when turns end. BARGE_IN: the assistant, at once.
    BACKCHANNEL_AWARE: the assistant, once the overlap has proved to be more than an "mm-hm".
    OVERLAP: the model decides for itself.
    """

    MANUAL = "manual"
    BARGE_IN = "barge_in"
    BACKCHANNEL_AWARE = "backchannel_aware"
    OVERLAP = "overlap"


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Everything about a session that a client can see.

    ``tool_choice`` is ``auto``, ``none``, ``required`` or ``function:NAME``.
    ``max_output_tokens`` is ``None`` for no limit. ``echoed`` holds fields that are shown back
    without effect here (for example ``tracing``). ``turn_policy`` is ``None`` for the server's own.
    """

    kind: Kind = "realtime"
    model: str = ""
    instructions: str = ""
    modality: Modality = "audio"
    input_format: AudioFormat = AudioFormat.PCM
    output_format: AudioFormat = AudioFormat.PCM
    voice: str = ""
    speed: float = 1.0
    turn_detection: TurnDetection | None = ServerVad()
    transcription: Transcription | None = None
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    truncation: Truncation = Truncation()
    include: tuple[str, ...] = ()
    turn_policy: TurnPolicy | None = None
    """``None`` for the operator's choice."""
    echoed: Mapping[str, object] = field(default_factory=dict)

    def merged(self, patch: "SessionPatch") -> "SessionConfig":
        """This configuration with the fields that the patch names changed."""
        changes = dict(patch.changes)
        if isinstance(patch.turn_detection, TurnDetectionPatch):
            changes["turn_detection"] = patch.turn_detection.applied_to(self.turn_detection)
        elif patch.turn_detection is None:
            changes["turn_detection"] = None
        if patch.echoed:
            changes["echoed"] = {**self.echoed, **patch.echoed}
        return replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class SessionPatch:
    """The fields that a client's update names: ``changes`` by field name of SessionConfig."""

    changes: Mapping[str, object] = field(default_factory=dict)
    turn_detection: TurnDetectionPatch | None | Unset = UNSET
    echoed: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """What the operator allows; clients can't raise any of it. Seconds unless said otherwise."""

    audio_lead: float = 5.0
    """How far sent audio may run ahead of the listener."""
    delta_ms: int = 200
    """Longest stretch of audio in one delta, in milliseconds."""
    idle_timeout: float = 300.0
    """A session without any event from its client or its model for this long is closed."""
    grace: float = 30.0
    """How long a detached session waits for its client."""
    max_duration: float = 3600.0
    """The longest a session lasts."""
    max_items: int = 2_000
    """Items in a conversation."""
    max_text: int = 4_000_000
    """Characters of all items together."""
    max_buffer_seconds: float = 600.0
    """Audio in the input buffer that is not committed."""
    max_out_of_band: int = 4
    """Out-of-band responses at a time."""
    overlap_judgement: float = 0.4
    """BACKCHANNEL_AWARE: an overlap longer than this is an interruption."""
    speculation_after: float = 0.2
    """Silence after which an answer is drafted."""
    release_after: float = 0.45
    """The least silence before an answer is released when the turn detector is sure."""
    turn_threshold: float = 0.5
    """The turn detector is sure from this probability on."""
    turn_policy: TurnPolicy = TurnPolicy.BARGE_IN
