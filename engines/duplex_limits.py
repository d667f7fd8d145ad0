"""How many sessions a frame-locked model takes, and how patient it is with them."""

import msgspec


class DuplexLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions, and with how much patience.

    ``slots``: sessions in the model at once, of which only so many are let in as a tick has time
    for. ``parked``: sessions beyond those, in host memory. ``idle_s``: without a frame for so long,
    a session is parked. ``slow``: as many sessions as there are slots are let in, whatever a tick
    takes; where it takes too long, they stutter. ``warm_ticks``: ticks of each size before the
    first session. The others are :class:`duologue.engines.tick_scheduler.TickRules`'.
    """

    slots: int = 4
    parked: int = 16
    idle_s: float = 60.0
    lateness_s: float = 0.04
    gather_s: float = 0.01
    load: float = 0.8
    slow: bool = False
    retry_after_s: float = 5.0
    warm_ticks: int = 4
