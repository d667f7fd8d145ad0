"""What a session asks of an engine and what it hears back.

Commands go to the worker that owns the session, outputs come from it. Both are frozen structs,
encoded with msgpack between processes. Every message names its session; everything that belongs
to one answer carries that answer's *generation*, a number that is never used twice in a session,
so that whatever arrives late can be told apart and dropped.

There are two lanes. A session of the realtime lane is a conversation; one of the batch lane is a
client that asks for answers in text and waits for the whole of them. It hears nothing, and its
answers run when nothing of the realtime lane wants what they need.

Audio is mono, signed 16-bit little-endian. What is heard is at :data:`HEARD_RATE`, what is spoken
at :data:`SPOKEN_RATE`. Positions of heard audio are samples since the session began.
"""

from typing import Literal, Protocol

import msgspec

from duologue.engines.duplex import DuplexSpec

HEARD_RATE = 16_000
"""Sample rate of audio that goes to an engine, in Hz."""

SPOKEN_RATE = 24_000
"""Sample rate of audio that comes from an engine, in Hz."""


class _Message(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    session: str


# -- what an answer is made from ------------------------------------------------------------


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ImagePart(msgspec.Struct, frozen=True, tag="image"):
    """A picture: a ``data:`` or ``https:`` URL; ``detail`` is ``auto``, ``low`` or ``high``."""

    url: str
    detail: str = "auto"


class UtterancePart(msgspec.Struct, frozen=True, tag="utterance"):
    """What the user said in an utterance up to a position: the engine has its audio.

    A model that hears takes the audio; a cascade takes the transcript, and waits for it.
    ``until`` is a sample position, or ``None`` for all of a closed utterance.
    """

    utterance: str
    until: int | None = None


class ToolInvocation(msgspec.Struct, frozen=True):
    call_id: str
    name: str
    arguments: str
    """The arguments as the JSON text that the model wrote."""


class Message(msgspec.Struct, frozen=True):
    """One entry of the history. ``call_id`` is set for role ``tool`` alone."""

    role: Literal["system", "user", "assistant", "tool"]
    parts: tuple[TextPart | ImagePart | UtterancePart, ...] = ()
    tool_calls: tuple[ToolInvocation, ...] = ()
    call_id: str = ""


class Tool(msgspec.Struct, frozen=True):
    """A function that the model may call; ``parameters`` is a JSON Schema as JSON text."""

    name: str
    description: str = ""
    parameters: str = "{}"


class ResponseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides an answer.

    ``tool_choice`` is ``auto``, ``none``, ``required`` or ``function:NAME``. ``speed`` is a factor
    from 0.25 to 1.5. ``max_output_tokens`` is ``None`` for no limit but the model's own.
    ``temperature`` (0 to 2), ``top_p`` (above 0, to 1) and ``seed`` are ``None`` for the model's
    default; the answer ends before the first of the texts in ``stop``. An engine honours those of
    these that its :class:`EngineSpec` lists. ``whole``: a history that is too long is an error,
    instead of being cut at its beginning.
    """

    instructions: str
    messages: tuple[Message, ...]
    modality: Literal["audio", "text"] = "audio"
    voice: str = ""
    speed: float = 1.0
    tools: tuple[Tool, ...] = ()
    tool_choice: str = "auto"
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    temperature: float | None = None
    speculative: bool = False
    """The turn may not be over: an answer that was asked for goes first."""
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    whole: bool = False


# -- commands -------------------------------------------------------------------------------


class OpenSession(_Message, frozen=True, tag=True):
    """Take a session in. ``language`` is an ISO 639-1 code; hints bias the recogniser.

    ``batch``: of the batch lane. It takes Respond, in the text modality, and CancelResponse.
    """

    language: str = "en"
    hint: str = ""
    batch: bool = False


class CloseSession(_Message, frozen=True, tag=True):
    """Free everything the session holds. Nothing is answered."""


class ConfigureListening(_Message, frozen=True, tag=True):
    """How utterances are recognised from now on. ``partials``: send :class:`TranscriptDelta`."""

    language: str = "en"
    hint: str = ""
    partials: bool = True


class Hear(_Message, frozen=True, tag=True):
    """Audio of an utterance; the first one opens it. Pieces arrive in order without gaps."""

    utterance: str
    start: int
    pcm: bytes


class EndUtterance(_Message, frozen=True, tag=True):
    """The utterance is over at ``end`` (samples); answered by a final transcript or a failure."""

    utterance: str
    end: int


class DropUtterance(_Message, frozen=True, tag=True):
    """Forget the utterance; nothing more is said about it."""

    utterance: str


class JudgeTurn(_Message, frozen=True, tag=True):
    """Is the speaker done, judged on the audio up to ``at``? Answered by :class:`TurnJudged`."""

    utterance: str
    at: int


class See(_Message, frozen=True, tag=True):
    """The newest picture of the user's camera, as JPEG; empty: the camera is off.

    What is in view belongs to every prompt from now on, with its age. Only to an engine that sees.
    """

    jpeg: bytes


class Prepare(_Message, frozen=True, tag=True):
    """An answer to this history will be asked for soon: warm what can be warmed."""

    request: ResponseRequest


class Respond(_Message, frozen=True, tag=True):
    """Answer. Outputs follow, and exactly one :class:`ResponseEnded`.

    ``trace``: the span that asks (W3C traceparent), where turns are traced.
    """

    generation: int
    request: ResponseRequest
    trace: str = ""


class CancelResponse(_Message, frozen=True, tag=True):
    """Stop the answer; free its slot at the next step. Still answered by its one end."""

    generation: int


class Acknowledge(_Message, frozen=True, tag=True):
    """The listener has been sent ``sent_ms`` of this answer's audio: the window moves on."""

    generation: int
    sent_ms: int


class AlignSpeech(_Message, frozen=True, tag=True):
    """When is each word of ``text`` heard in ``pcm`` (24 kHz)? Answered by :class:`SpeechAligned`.

    ``reference`` comes back unchanged.
    """

    reference: str
    text: str
    pcm: bytes


Command = (
    OpenSession
    | CloseSession
    | ConfigureListening
    | Hear
    | EndUtterance
    | DropUtterance
    | JudgeTurn
    | See
    | Prepare
    | Respond
    | CancelResponse
    | Acknowledge
    | AlignSpeech
)


# -- outputs --------------------------------------------------------------------------------


class TokenLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the model's own tokenizer counts them, audio as its duration."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class WordTime(msgspec.Struct, frozen=True):
    """A word as it stands in the text (with what follows it up to the next) and when it ends."""

    text: str
    end_ms: int


class TranscriptDelta(_Message, frozen=True, tag=True):
    """More words of an utterance that will not change."""

    utterance: str
    delta: str


class TranscriptFinal(_Message, frozen=True, tag=True):
    """The whole transcript. ``seconds``: audio recognised. Empty text: nothing was said."""

    utterance: str
    text: str
    seconds: float
    logprobs: tuple[TokenLogprob, ...] = ()


class TranscriptFailed(_Message, frozen=True, tag=True):
    utterance: str
    message: str


class TurnJudged(_Message, frozen=True, tag=True):
    """Probability (0 to 1) that the speaker is done, judged on the audio up to ``at``."""

    utterance: str
    at: int
    probability: float


class ResponseQueued(_Message, frozen=True, tag=True):
    """An answer of the batch lane waits: the next one has ``position`` 1. 0: it begins.

    Sent when the answer is asked for and whenever the position changes; the last one is 0, unless
    the answer ends before it began.
    """

    generation: int
    position: int


class TextGenerated(_Message, frozen=True, tag=True):
    """Text of an answer in the text modality."""

    generation: int
    text: str


class SpeechGenerated(_Message, frozen=True, tag=True):
    """A stretch of speech and the text it says, verbatim with its spaces.

    A clause may come in several pieces: the first has its text, the others have none.
    ``clause_ms``: how long the clause whose text this is will be in all, 0 where that is not known.
    """

    generation: int
    pcm: bytes
    text: str = ""
    clause_ms: float = 0.0


class PictureGenerated(_Message, frozen=True, tag=True):
    """A picture of the video that goes with an answer's speech.

    It is shown when ``at_ms`` of the answer's speech has been played; of generation 0, which is no
    answer's, at once. ``pixels`` are planes of YUV 4:2:0 (I420) of an even width and height:
    ``width * height * 3 / 2`` bytes. Late or too many, older pictures give way to newer ones. Only
    from an engine that shows.
    """

    generation: int
    at_ms: float
    width: int
    height: int
    pixels: bytes


class ToolCallStarted(_Message, frozen=True, tag=True):
    generation: int
    call_id: str
    name: str


class ToolCallDelta(_Message, frozen=True, tag=True):
    generation: int
    call_id: str
    delta: str


class ToolCallEnded(_Message, frozen=True, tag=True):
    generation: int
    call_id: str
    arguments: str


class EngineFailure(msgspec.Struct, frozen=True):
    """Why an answer failed, in words that may be shown to a client.

    ``code`` is one of ``engine_unavailable``, ``engine_overloaded``, ``context_too_long``,
    ``upstream_error``, ``engine_error``.
    """

    code: str
    message: str


class ResponseEnded(_Message, frozen=True, tag=True):
    """The last message of a generation."""

    generation: int
    reason: Literal["completed", "max_output_tokens", "content_filter", "cancelled", "failed"]
    usage: Usage = Usage()
    failure: EngineFailure | None = None


class SpeechOffered(_Message, frozen=True, tag=True):
    """A model that decides for itself has begun to speak: what it says is the answer to the next
    :class:`Respond`. Repeated while nobody asks for it."""


class SpeechAligned(_Message, frozen=True, tag=True):
    """Words whose texts join to the text that was asked about; empty when it could not be told."""

    reference: str
    words: tuple[WordTime, ...]


Output = (
    TranscriptDelta
    | TranscriptFinal
    | TranscriptFailed
    | TurnJudged
    | ResponseQueued
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


# -- the contract ---------------------------------------------------------------------------


class EngineError(Exception):
    """An engine can't do what was asked."""


class EngineFull(EngineError):
    """No room for one more session. ``retry_after`` is in seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"all places are taken; try again in {retry_after:.0f} s")
        self.retry_after = retry_after


class EngineUnavailable(EngineError):
    """No worker is ready. ``retry_after`` is in seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__("the engine is not ready")
        self.retry_after = retry_after


class EngineLost(EngineError):
    """The worker died or its connection broke; what it held is gone."""


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine serves. ``context_tokens`` bounds prompt and answer together.

    ``recognizer`` names what writes down speech, "" where the model hears by itself.
    ``sees``: it takes pictures, in messages and of a camera. ``shows``: its answers have video.
    ``calls_tools``: it can be told of tools. ``batch``: answers of the batch lane that run at the
    same time; 0: there is no such lane.
    ``sampling``: what it honours of a request's ``temperature``, ``top_p``, ``seed``, ``stop``.
    ``duplex``: it is frame-locked, and takes the commands of :mod:`duologue.engines.duplex` instead
    of those here.
    ``stage``: it is one stage of a pipeline, and takes the commands of
    :mod:`duologue.engines.stage_messages` instead.
    """

    model: str
    voices: tuple[str, ...]
    default_voice: str
    context_tokens: int
    sees: bool = False
    shows: bool = False
    description: str = ""
    recognizer: str = ""
    calls_tools: bool = True
    batch: int = 0
    sampling: tuple[str, ...] = ()
    duplex: DuplexSpec | None = None
    stage: str = ""


class EngineStream(Protocol):
    """One session's place on one worker."""

    def send(self, command: Command) -> None:
        """Queue a command; never waits. Raises EngineLost when the worker is gone."""

    async def receive(self) -> Output:
        """The next output. Raises EngineLost once, when the worker is gone."""

    async def aclose(self) -> None:
        """Give the place back. Idempotent; bounded; never raises EngineError."""


class Engine(Protocol):
    """A model deployment that sessions can be opened on."""

    @property
    def spec(self) -> EngineSpec: ...

    @property
    def ready(self) -> bool: ...

    async def open(self, session: str) -> EngineStream:
        """A place for the session, kept until closed. Raises EngineFull, EngineUnavailable."""


class BatchEngine(Engine, Protocol):
    """An engine that has a batch lane too, where its spec says so."""

    async def open_batch(self, session: str) -> EngineStream:
        """A place in the batch lane, kept until closed. Raises EngineFull, EngineUnavailable."""
