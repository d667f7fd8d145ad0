"""What a session asks of a frame-locked model, and what it hears back.

Such a model takes a frame of sound and gives one back, for ever; it listens while it speaks. Who
speaks, and when, is the model's own business: there are no turns, no answers and nothing to be
cut off, as its own state has heard what it said.

**Frames and ticks.** A frame is :attr:`DuplexSpec.frame_samples` of mono signed 16-bit
little-endian PCM at :attr:`DuplexSpec.sample_rate` (Moshi: 1,920 at 24 kHz, 80 ms). What goes in
carries a *sequence*, the gateway's own count, which need not be without gaps. What comes out
carries a *tick*: 0 for the session's first frame, and one more each time, so tick ``k`` is heard
from ``k * frame_ms`` to ``(k + 1) * frame_ms`` of the session. A frame that is not there in time
is silence to the model, and counted; the session does not wait for it.

**A session's life.** It gets a place (:class:`duologue.engines.engine.OpenSession`), then
:class:`BeginDuplex` or :class:`ForkDuplex`, which is answered by exactly one :class:`DuplexBegun`
or :class:`DuplexFailed`. Prompts (a voice, a role) are worked through before it is answered; frames
that come before are dropped. :class:`FrameSpoken` then follows for each tick, from the first
:class:`FrameHeard` on. :class:`duologue.engines.engine.CloseSession` ends it.

Everything keeps its order in both directions, but for the close, which overtakes. The frames that
one step of the model makes for the sessions of one gateway travel as one frame of the lane.
"""

from typing import Literal, Protocol

import msgspec

ForcedKind = Literal["instructions", "thinking", "commentary"]
"""``instructions``: how to behave from now on. ``thinking``: what to know, without saying it.
``commentary``: what to say, in these words."""


class DuplexSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What frames are like, and what a session can ask for.

    ``instructions``: the model was trained to be told a role. ``recordings``: it can be told a
    voice by a recording.
    """

    sample_rate: int = 24_000
    frame_samples: int = 1920
    instructions: bool = False
    recordings: bool = False

    @property
    def frame_bytes(self) -> int:
        return 2 * self.frame_samples

    @property
    def frame_ms(self) -> float:
        return 1000 * self.frame_samples / self.sample_rate


class DuplexChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are chosen; ``None`` is the model's own default.

    Temperatures are at least 0, and 0 is greedy. ``top_k``: among how many tokens, 0 for all.
    Sessions with the same seed (0 to 2**63 - 1) and the same input say the same.
    """

    text_temperature: float | None = None
    text_top_k: int | None = None
    audio_temperature: float | None = None
    audio_top_k: int | None = None
    seed: int | None = None


class _Message(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    session: str


# -- commands -------------------------------------------------------------------------------


class BeginDuplex(_Message, frozen=True, tag=True):
    """Begin a conversation. ``voice``: one of the engine's voices, "" for its default.

    ``recording``: PCM at the model's rate, a voice to speak with in place of a named one, where
    the spec says ``recordings``; at most :data:`RECORDING_SECONDS` of it are used. ``instructions``
    is a role, where the spec says so; a model that was not trained for it is not told.
    """

    voice: str = ""
    recording: bytes = b""
    instructions: str = ""
    choice: DuplexChoice = DuplexChoice()


class ForkDuplex(_Message, frozen=True, tag=True):
    """Begin as a copy of another session of the same gateway, at its tick, with all it heard.

    ``source``: the name of that session on the wire.
    """

    source: str
    choice: DuplexChoice | None = None


class FrameHeard(_Message, frozen=True, tag=True):
    """A frame of the user's. One that is not as long as a frame has to be is answered by
    :class:`DuplexFailed`. More than a few ahead of real time are dropped, oldest first. A parked
    session is resumed by it."""

    sequence: int
    pcm: bytes


class ForceText(_Message, frozen=True, tag=True):
    """Put text into the model, after what is forced already.

    Answered by :class:`TextForced`, or by :class:`DuplexFailed` with the same reference. While
    ``instructions`` and ``thinking`` go in, the model is silent and does not listen; they take
    less time than they would to be said.
    """

    reference: str
    kind: ForcedKind
    text: str


class InterruptDuplex(_Message, frozen=True, tag=True):
    """Be silent for :data:`HUSH_TICKS` ticks and drop what is still to be said; listening goes
    on. Text that is dropped is answered with the ticks it got."""


class ResetDuplex(_Message, frozen=True, tag=True):
    """Forget what was said and heard, as after :class:`BeginDuplex`, which is answered again.
    Ticks go on counting. ``begin``: begin like this instead of as before."""

    begin: BeginDuplex | None = None


class ParkDuplex(_Message, frozen=True, tag=True):
    """Give the slot back and keep the session; answered by :class:`DuplexParked`."""


class ResumeDuplex(_Message, frozen=True, tag=True):
    """Go on; answered by :class:`DuplexResumed`, or by :class:`DuplexFailed` while all slots are
    taken."""


DuplexCommand = (
    BeginDuplex
    | ForkDuplex
    | FrameHeard
    | ForceText
    | InterruptDuplex
    | ResetDuplex
    | ParkDuplex
    | ResumeDuplex
)

RECORDING_SECONDS = 30.0
"""How much of a voice's recording is used."""

HUSH_TICKS = 6
"""For how long an interrupted model is held silent: half a second."""

FORCED_TEXT_CHARACTERS = 16_384
"""The most that may be forced at a time."""


# -- outputs --------------------------------------------------------------------------------


class DuplexBegun(_Message, frozen=True, tag=True):
    """Frames may come. ``tick``: the one that is next."""

    tick: int = 0


class FrameSpoken(_Message, frozen=True, tag=True):
    """The model's frame of a tick.

    ``heard``: the sequence of the frame that was its input, -1 for silence. ``text``: what the
    model has begun to say, a piece of a word with its leading space, often empty; it runs up to
    a few ticks ahead of the sound.
    """

    tick: int
    pcm: bytes
    text: str = ""
    heard: int = -1


class TextForced(_Message, frozen=True, tag=True):
    """The text is in: from the tick ``start`` to the tick ``end``, which is no more of it. Equal
    where it went in between two ticks."""

    reference: str
    start: int
    end: int


class DuplexParked(_Message, frozen=True, tag=True):
    """The slot is given back, at the tick that is next. ``idle``: nobody asked for it, but no
    frame has come for long."""

    tick: int
    idle: bool = False


class DuplexResumed(_Message, frozen=True, tag=True):
    tick: int


class DuplexFailed(_Message, frozen=True, tag=True):
    """What was asked for can't be done; the session is as it was.

    ``code`` is one of ``engine_overloaded`` (``retry_after_s`` says when to come again),
    ``invalid_value``, ``unknown_session``, ``engine_error``. ``message`` may be shown to a client.
    """

    code: str
    message: str
    reference: str = ""
    retry_after_s: float = 0.0


DuplexOutput = DuplexBegun | FrameSpoken | TextForced | DuplexParked | DuplexResumed | DuplexFailed


# -- the contract ---------------------------------------------------------------------------


class DuplexStream(Protocol):
    """One session with a model, on one worker. ``session`` in what is sent may be "": it is
    filled in."""

    @property
    def tick(self) -> int:
        """The tick at which it began: 0, or that of the session it was forked from."""

    def send(self, command: DuplexCommand) -> None:
        """Queue a command; never waits. Raises EngineLost when the worker is gone."""

    async def receive(self) -> DuplexOutput:
        """The next output. Raises EngineLost once, when the worker is gone."""

    async def fork(self, session: str, choice: DuplexChoice | None = None) -> "DuplexStream":
        """A second session with the same past, on the same worker. The parent goes on.

        Raises EngineFull, EngineUnavailable, EngineLost, DuplexRefused.
        """

    async def aclose(self) -> None:
        """End it. Idempotent; bounded; never raises EngineError."""


class Duplex(Protocol):
    """A deployment of a frame-locked model.

    :class:`duologue.engines.duplex_stream.RemoteDuplex` is one, over any engine whose spec has
    ``duplex``.
    """

    @property
    def spec(self) -> DuplexSpec:
        """Raises EngineUnavailable before the first worker is ready."""

    @property
    def ready(self) -> bool: ...

    async def open(self, session: str, begin: BeginDuplex) -> DuplexStream:
        """A session that has begun: its prompt is through, and frames may be sent.

        Raises EngineFull (with ``retry_after``), EngineUnavailable, EngineLost, and DuplexRefused
        for a voice or a choice that the model does not have.
        """
