"""What happens on a Live session: a client's commands, and what is said to a client.

Times are milliseconds on the session's timeline, which begins when the session does and has a frame
of output for each of its moments. ``event_id`` is the client's own, so that an answer can name it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from duologue.codecs.media import Int16Samples
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import Item
from duologue.sessions.live_config import LiveChange, LiveConfig, TranscriptEvent

ContextKind = Literal["instructions", "thinking", "commentary"]
CloseReason = Literal["close_requested", "expired", "content", "remote_hangup", "connection_lost"]
Speaker = Literal["user", "assistant"]

# -- from the client ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """The first event of a WebSocket."""

    event_id: str | None
    config: LiveConfig


@dataclass(frozen=True, slots=True)
class Update:
    event_id: str | None
    change: LiveChange


@dataclass(frozen=True, slots=True)
class AppendAudio:
    """Sound of the microphone, in the session's format."""

    event_id: str | None
    data: bytes


@dataclass(frozen=True, slots=True)
class Mute:
    event_id: str | None


@dataclass(frozen=True, slots=True)
class Unmute:
    event_id: str | None


@dataclass(frozen=True, slots=True)
class PlayFixture:
    """Say this to the user: mono int16 at 24 kHz."""

    event_id: str | None
    samples: Int16Samples


@dataclass(frozen=True, slots=True)
class AppendContext:
    """Tell the model something; ``commentary`` is for it to pass on to the user."""

    event_id: str | None
    kind: ContextKind
    content: str
    delegation_id: str | None = None


@dataclass(frozen=True, slots=True)
class CreateDecision:
    event_id: str


@dataclass(frozen=True, slots=True)
class CreateDecisionItem:
    """``shown`` is the item as it was sent, ``text`` what there is to read in it."""

    event_id: str | None
    shown: Mapping[str, object]
    text: str


@dataclass(frozen=True, slots=True)
class DeleteDecisionItem:
    event_id: str | None
    item_id: str


@dataclass(frozen=True, slots=True)
class CreateResponseItem:
    event_id: str | None
    item: Item


@dataclass(frozen=True, slots=True)
class CreateResponse:
    event_id: str | None


@dataclass(frozen=True, slots=True)
class Close:
    event_id: str | None


@dataclass(frozen=True, slots=True)
class Refused:
    """Something that could not be read, or is not allowed where it came from."""

    error: ProtocolError


Command = (
    Start
    | Update
    | AppendAudio
    | Mute
    | Unmute
    | PlayFixture
    | AppendContext
    | CreateDecision
    | CreateDecisionItem
    | DeleteDecisionItem
    | CreateResponseItem
    | CreateResponse
    | Close
    | Refused
)

# -- to the client --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LiveUsage:
    """Whole seconds so far; ``paused`` only where a session can rest."""

    seconds: int
    active: int | None = None
    paused: int | None = None


@dataclass(frozen=True, slots=True)
class Started:
    config: LiveConfig
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Updated:
    config: LiveConfig
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Resumed:
    pass


@dataclass(frozen=True, slots=True)
class Paused:
    pass


@dataclass(frozen=True, slots=True)
class Muted:
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class Unmuted:
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class FixturePlaying:
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class FixturePlayed:
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class ContextAppended:
    kind: ContextKind
    start_ms: int
    end_ms: int
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class InputTranscript:
    delta: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class OutputTranscript:
    delta: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class DelegationCreated:
    delegation_id: str
    target: Literal["client", "responses", "decisions"]
    offset_ms: int
    response_id: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionMade:
    """``decision`` as the Decision API shows it."""

    decision: Mapping[str, object]
    delegation_id: str | None = None
    source_event_type: TranscriptEvent | None = None
    trigger_id: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionItemCreated:
    item: Mapping[str, object]
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class DecisionItemDeleted:
    item_id: str
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class ResponseTold:
    """An event of the model that tasks are delegated to, as the Responses API shows it."""

    event: Mapping[str, object]
    delegation_id: str | None = None
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class UsageUpdated:
    usage: LiveUsage


@dataclass(frozen=True, slots=True)
class Closed:
    reason: CloseReason
    usage: LiveUsage
    config: LiveConfig
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class LiveError:
    error: ProtocolError


@dataclass(frozen=True, slots=True)
class Info:
    code: str
    message: str
    client_event_id: str | None = None


@dataclass(frozen=True, slots=True)
class OutputAudio:
    """A frame of what the user hears: mono int16 at 24 kHz."""

    samples: Int16Samples
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class InputAudio:
    """What the user's microphone heard, for those beside: mono int16 at 24 kHz."""

    samples: Int16Samples


@dataclass(frozen=True, slots=True)
class TurnMarked:
    """Where a turn begins or ends: an extension that a client has to ask for."""

    speaker: Speaker
    state: Literal["started", "ended"]
    offset_ms: int


LiveEvent = (
    Started
    | Updated
    | Resumed
    | Paused
    | Muted
    | Unmuted
    | FixturePlaying
    | FixturePlayed
    | ContextAppended
    | InputTranscript
    | OutputTranscript
    | DelegationCreated
    | DecisionMade
    | DecisionItemCreated
    | DecisionItemDeleted
    | ResponseTold
    | UsageUpdated
    | Closed
    | LiveError
    | Info
    | OutputAudio
    | InputAudio
    | TurnMarked
)
