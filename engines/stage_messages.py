"""What a pipeline says to a stage in another process, and what it hears back.

A request is begun, fed and cancelled under its generation
(:class:`duologue.engines.engine.CancelResponse`), and ends with exactly one
:class:`duologue.engines.engine.ResponseEnded`. What chunks are made of is msgpack, of the type that
:data:`PAYLOADS` has for their kind; both ends know no more of it.
"""

from collections.abc import Mapping

import msgspec

from duologue.engines.fairness import Rank
from duologue.engines.pipeline.stage_graph import Kind


class _Message(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    session: str
    generation: int


class BeginStage(_Message, frozen=True, tag=True):
    """A request comes to the stage."""


class FeedStage(_Message, frozen=True, tag=True):
    """A chunk of it; ``items`` as msgpack. ``last``: no chunk, but their end."""

    kind: str = ""
    items: tuple[bytes, ...] = ()
    last: bool = False


class StageGave(_Message, frozen=True, tag=True):
    """Something that the stage made, as msgpack."""

    kind: str
    item: bytes


class StageTook(_Message, frozen=True, tag=True):
    """The stage has done with its oldest chunk, and what it made of it has been sent."""


StageCommand = BeginStage | FeedStage
StageOutput = StageGave | StageTook


class Clause(msgspec.Struct, frozen=True):
    """Something to say. ``voice`` "" is the default one; ``speed`` is a factor from 0.25 to 1.5."""

    text: str
    voice: str = ""
    speed: float = 1.0
    rank: Rank = Rank.FIRST


class Spoken(msgspec.Struct, frozen=True):
    """A clause's speech, int16 at 24 kHz; none where there was nothing to say."""

    text: str
    pcm: bytes


PAYLOADS: Mapping[Kind, type[msgspec.Struct]] = {Kind.CLAUSE: Clause, Kind.SPEECH: Spoken}
"""What can go to another process."""
