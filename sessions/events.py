"""Everything that can happen to a session.

Client events carry the id that the client gave them, so that an error can name it. Positions are
samples at 16 kHz since the session's first sample. Engine outputs (``duologue.engines.engine``)
are events too, as they are.
"""

from dataclasses import dataclass

from duologue.engines.engine import (
    PictureGenerated,
    ResponseEnded,
    SpeechAligned,
    SpeechGenerated,
    SpeechOffered,
    TextGenerated,
    ToolCallDelta,
    ToolCallEnded,
    ToolCallStarted,
    TranscriptDelta,
    TranscriptFailed,
    TranscriptFinal,
    TurnJudged,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import Item
from duologue.sessions.session_config import (
    UNSET,
    AudioFormat,
    FunctionTool,
    Modality,
    SessionPatch,
    Unset,
)


@dataclass(frozen=True, slots=True)
class ItemReference:
    """An item of the conversation, by id, as input of a response."""

    id: str


@dataclass(frozen=True, slots=True)
class ResponseParams:
    """What a client asks of one response; what it leaves out comes from the session.

    ``conversation`` is false for an out-of-band response. ``input`` replaces the history.
    """

    conversation: bool = True
    input: tuple[Item | ItemReference, ...] | None = None
    instructions: str | None = None
    modality: Modality | None = None
    voice: str | None = None
    output_format: AudioFormat | None = None
    tools: tuple[FunctionTool, ...] | None = None
    tool_choice: str | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None | Unset = UNSET
    metadata: dict[str, str] | None = None


# -- from the client ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UpdateSession:
    event_id: str | None
    patch: SessionPatch


@dataclass(frozen=True, slots=True)
class CommitAudio:
    event_id: str | None


@dataclass(frozen=True, slots=True)
class ClearAudio:
    event_id: str | None


@dataclass(frozen=True, slots=True)
class ClearOutput:
    event_id: str | None


@dataclass(frozen=True, slots=True)
class CreateItem:
    """``previous_item_id``: ``None`` for the end, ``"root"`` for the beginning, or an item's id.

    The item's id is empty when the server is to choose it. ``audio`` is the audio of a user
    message in the session's input format, or ``None``.
    """

    event_id: str | None
    item: Item
    previous_item_id: str | None = None
    audio: bytes | None = None


@dataclass(frozen=True, slots=True)
class DeleteItem:
    event_id: str | None
    item_id: str


@dataclass(frozen=True, slots=True)
class RetrieveItem:
    event_id: str | None
    item_id: str


@dataclass(frozen=True, slots=True)
class TruncateItem:
    event_id: str | None
    item_id: str
    content_index: int
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class CreateResponse:
    event_id: str | None
    params: ResponseParams


@dataclass(frozen=True, slots=True)
class CancelResponse:
    event_id: str | None
    response_id: str | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """Something the client sent could not be read; it gets its error in its turn."""

    error: ProtocolError


# -- from the client's media ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AudioReceived:
    """The input buffer now reaches to ``end``."""

    end: int


@dataclass(frozen=True, slots=True)
class VoiceProbability:
    """Probability (0 to 1) of speech in the frame of 512 samples that ends at ``end``."""

    end: int
    probability: float


@dataclass(frozen=True, slots=True)
class PictureSeen:
    """The newest picture of the user's camera as JPEG; ``None``: the camera is off."""

    jpeg: bytes | None


@dataclass(frozen=True, slots=True)
class PlaybackReported:
    """The listener's side has played ``played_ms`` of an item's audio."""

    item_id: str
    played_ms: float


# -- from the connection and the engine -----------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attached:
    """A client has taken the session up, first or again."""


@dataclass(frozen=True, slots=True)
class Detached:
    """The client is gone; the session waits for it when it may be resumed."""

    resumable: bool = False


@dataclass(frozen=True, slots=True)
class CloseRequested:
    """End the session with a WebSocket close code and a reason that may be shown."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """Everything the session held elsewhere was given back, or could not be."""

    ok: bool


@dataclass(frozen=True, slots=True)
class EngineLost:
    """The session's worker is gone, with all that it was doing."""


@dataclass(frozen=True, slots=True)
class EngineReady:
    """The session has a place on a worker (again)."""


ClientEvent = (
    UpdateSession
    | CommitAudio
    | ClearAudio
    | ClearOutput
    | CreateItem
    | DeleteItem
    | RetrieveItem
    | TruncateItem
    | CreateResponse
    | CancelResponse
    | Rejected
)
MediaEvent = AudioReceived | VoiceProbability | PictureSeen | PlaybackReported
ConnectionEvent = Attached | Detached | CloseRequested | CleanedUp | EngineLost | EngineReady
EngineEvent = (
    TranscriptDelta
    | TranscriptFinal
    | TranscriptFailed
    | TurnJudged
    | TextGenerated
    | SpeechGenerated
    | PictureGenerated
    | ToolCallStarted
    | ToolCallDelta
    | ToolCallEnded
    | ResponseEnded
    | SpeechAligned
    | SpeechOffered
)
Event = ClientEvent | MediaEvent | ConnectionEvent | EngineEvent
