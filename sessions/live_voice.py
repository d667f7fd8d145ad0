"""What speaks in a Live session, and how its output keeps time."""

from dataclasses import dataclass
from typing import Protocol

from duologue.codecs.media import Int16Samples
from duologue.sessions.live_config import LiveConfig
from duologue.sessions.live_events import (
    AppendContext,
    CreateDecision,
    CreateResponse,
    CreateResponseItem,
)
from duologue.sessions.live_mixer import RATE


class LiveVoice(Protocol):
    """What speaks in a session. Every method may raise ProtocolError for its command."""

    @property
    def rate(self) -> int:
        """Of what it hears: 16,000 or 24,000 Hz."""

    def configure(self, config: LiveConfig) -> None:
        """Delegation or triggers have changed."""

    def append(self, command: AppendContext, now: float) -> None:
        """Take it in, and acknowledge it with ``ContextAppended``."""

    def add_item(self, command: CreateResponseItem) -> None: ...

    def respond(self, command: CreateResponse) -> None: ...

    def decide(self, command: CreateDecision, texts: tuple[str, ...]) -> None:
        """Answer the delegation's questions; ``texts``: the items for decisions."""

    def interrupt(self) -> None:
        """A fixture begins: say nothing more of what was being said."""

    def hear(self, samples: Int16Samples, now: float) -> None:
        """What the user says, at its rate; zeros while muted."""

    def heard(self, items: tuple[tuple[str, float], ...], start_ms: int, end_ms: int) -> None:
        """A frame was played, with these items up to so many ms of them."""

    def settle(self, now: float) -> None:
        """Do what was waiting for its moment."""


@dataclass(frozen=True, slots=True)
class LivePace:
    """How output keeps time.

    ``patience`` in seconds: for how long a frame of a model that makes each in its time is waited
    for; it may leave a frame early. 0 for a mixer's own.
    """

    frame_ms: int = 40
    patience: float = 0.0

    @property
    def frame_samples(self) -> int:
        return self.frame_ms * RATE // 1000
