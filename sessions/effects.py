"""Everything a session can ask for.

The first part is said to the client: one class an event, named as it is understood, with the
wire's field names. The second part goes to the media path and to the engine.
"""

from dataclasses import dataclass
from typing import Literal

from duologue.engines.engine import Command, PictureGenerated, TokenLogprob, Usage
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import Item
from duologue.sessions.session_config import AudioFormat, Modality, SessionConfig

ResponseStatus = Literal["in_progress", "completed", "cancelled", "failed", "incomplete"]
EndReason = Literal["turn_detected", "client_cancelled", "max_output_tokens", "content_filter"]


@dataclass(frozen=True, slots=True)
class AudioUsage:
    """Tokens of a response; audio at 10 tokens a second heard and 20 a second spoken."""

    text: Usage = Usage()
    input_audio_tokens: int = 0
    output_audio_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ResponseView:
    """A response as it is shown. ``output`` is empty until it is done."""

    id: str
    status: ResponseStatus
    conversation_id: str | None
    modality: Modality
    voice: str
    output_format: AudioFormat
    max_output_tokens: int | None
    metadata: dict[str, str] | None
    output: tuple[Item, ...] = ()
    reason: EndReason | None = None
    error: ProtocolError | None = None
    usage: AudioUsage | None = None


# -- to the client --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionCreated:
    config: SessionConfig


@dataclass(frozen=True, slots=True)
class SessionUpdated:
    config: SessionConfig


@dataclass(frozen=True, slots=True)
class ErrorReported:
    error: ProtocolError


@dataclass(frozen=True, slots=True)
class SpeechStarted:
    audio_start_ms: int
    item_id: str


@dataclass(frozen=True, slots=True)
class SpeechStopped:
    audio_end_ms: int
    item_id: str


@dataclass(frozen=True, slots=True)
class InputCommitted:
    item_id: str
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class InputCleared:
    pass


@dataclass(frozen=True, slots=True)
class InputTimedOut:
    audio_start_ms: int
    audio_end_ms: int
    item_id: str


@dataclass(frozen=True, slots=True)
class ItemAdded:
    item: Item
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ItemDone:
    item: Item
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class ItemDeleted:
    item_id: str


@dataclass(frozen=True, slots=True)
class ItemRetrieved:
    """The media path adds the audio of a user's item (24 kHz int16) where it still has it."""

    item: Item
    audio: bytes | None = None


@dataclass(frozen=True, slots=True)
class ItemTruncated:
    item_id: str
    content_index: int
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class TranscriptionDelta:
    item_id: str
    content_index: int
    delta: str


@dataclass(frozen=True, slots=True)
class TranscriptionCompleted:
    """``logprobs`` is ``None`` unless the session asked for them."""

    item_id: str
    content_index: int
    transcript: str
    seconds: float
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class TranscriptionFailed:
    item_id: str
    content_index: int
    error: ProtocolError


@dataclass(frozen=True, slots=True)
class ResponseCreated:
    response: ResponseView


@dataclass(frozen=True, slots=True)
class ResponseDone:
    response: ResponseView


@dataclass(frozen=True, slots=True)
class OutputItemAdded:
    response_id: str
    output_index: int
    item: Item


@dataclass(frozen=True, slots=True)
class OutputItemDone:
    response_id: str
    output_index: int
    item: Item


@dataclass(frozen=True, slots=True)
class ContentPartAdded:
    response_id: str
    item_id: str
    output_index: int
    content_index: int
    modality: Modality


@dataclass(frozen=True, slots=True)
class ContentPartDone:
    """``text`` is the part's text, or the transcript of its audio."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    modality: Modality
    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    response_id: str
    item_id: str
    output_index: int
    content_index: int
    delta: str


@dataclass(frozen=True, slots=True)
class TextDone:
    response_id: str
    item_id: str
    output_index: int
    content_index: int
    text: str


@dataclass(frozen=True, slots=True)
class TranscriptDeltaSaid:
    """``start_ms``: where in the item's audio these words begin; not for the wire of Realtime."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    delta: str
    start_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class TranscriptSaid:
    response_id: str
    item_id: str
    output_index: int
    content_index: int
    transcript: str


@dataclass(frozen=True, slots=True)
class AudioDelta:
    """Speech to be played: 24 kHz mono int16 little-endian; the wire encodes it as ``format``."""

    response_id: str
    item_id: str
    output_index: int
    content_index: int
    pcm: bytes
    format: AudioFormat


@dataclass(frozen=True, slots=True)
class AudioDone:
    response_id: str
    item_id: str
    output_index: int
    content_index: int


@dataclass(frozen=True, slots=True)
class ArgumentsDelta:
    response_id: str
    item_id: str
    output_index: int
    call_id: str
    delta: str


@dataclass(frozen=True, slots=True)
class ArgumentsDone:
    response_id: str
    item_id: str
    output_index: int
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class PlaybackStarted:
    """The listener's side has begun to hear a response (where the server plays it out)."""

    response_id: str


@dataclass(frozen=True, slots=True)
class PlaybackStopped:
    response_id: str


@dataclass(frozen=True, slots=True)
class PlaybackCleared:
    response_id: str


# -- to the media path ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenUtterance:
    """Give the engine everything heard from ``start`` on, until the utterance is closed."""

    utterance: str
    start: int


@dataclass(frozen=True, slots=True)
class CloseUtterance:
    """The utterance ends at ``end``; ``audio_end`` is what belongs to the item."""

    utterance: str
    end: int
    audio_end: int


@dataclass(frozen=True, slots=True)
class DropUtterance:
    utterance: str


@dataclass(frozen=True, slots=True)
class SupplyUtterance:
    """A whole utterance that came with an item, in the session's input format."""

    utterance: str
    audio: bytes


@dataclass(frozen=True, slots=True)
class FlushPlayout:
    """Fade out and forget all audio that waits to be played (where the server plays it out).

    What comes next plays at full level.
    """


@dataclass(frozen=True, slots=True)
class DuckPlayout:
    """Fade out and hold the rest back while an overlap is judged (where the server plays out)."""


@dataclass(frozen=True, slots=True)
class RestorePlayout:
    """Fade in and go on where it was held back: nobody took the floor."""


@dataclass(frozen=True, slots=True)
class ShowPicture:
    """Show it when so much of its response's audio has been played (where the server plays out).

    Of no response (""): at once.
    """

    response_id: str
    picture: PictureGenerated


# -- to the engine and the connection -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToEngine:
    command: Command


@dataclass(frozen=True, slots=True)
class CloseTransport:
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class CleanUp:
    """Give back everything the session holds; answered by ``CleanedUp``."""


ServerEvent = (
    SessionCreated
    | SessionUpdated
    | ErrorReported
    | SpeechStarted
    | SpeechStopped
    | InputCommitted
    | InputCleared
    | InputTimedOut
    | ItemAdded
    | ItemDone
    | ItemDeleted
    | ItemRetrieved
    | ItemTruncated
    | TranscriptionDelta
    | TranscriptionCompleted
    | TranscriptionFailed
    | ResponseCreated
    | ResponseDone
    | OutputItemAdded
    | OutputItemDone
    | ContentPartAdded
    | ContentPartDone
    | TextDelta
    | TextDone
    | TranscriptDeltaSaid
    | TranscriptSaid
    | AudioDelta
    | AudioDone
    | ArgumentsDelta
    | ArgumentsDone
    | PlaybackStarted
    | PlaybackStopped
    | PlaybackCleared
)
MediaEffect = (
    OpenUtterance
    | CloseUtterance
    | DropUtterance
    | SupplyUtterance
    | FlushPlayout
    | DuckPlayout
    | RestorePlayout
    | ShowPicture
)
Effect = ServerEvent | MediaEffect | ToEngine | CloseTransport | CleanUp
