"""A Live session over the session core, without sockets, tasks or clocks."""

import itertools
from typing import Any

import numpy as np

from duologue.engines.engine import EngineSpec
from duologue.sessions import effects, live_events as live
from duologue.sessions.core import Session
from duologue.sessions.events import AudioReceived, Event, PlaybackReported, VoiceProbability
from duologue.sessions.live_cascade import CascadeVoice, cascade_config
from duologue.sessions.live_config import LiveConfig
from duologue.sessions.live_session import LiveSession
from duologue.sessions.live_voice import LivePace
from duologue.sessions.session_config import SessionConfig, SessionLimits

SPEC = EngineSpec(model="m", voices=("v",), default_voice="v", context_tokens=8000)
BASE = SessionConfig(model="m", voice="v", instructions="Be brief.")


class LiveBench:
    """``events`` holds all that was said, ``commands`` what went to the engine."""

    def __init__(
        self,
        config: LiveConfig | None = None,
        *,
        wake: Any = None,
        limits: SessionLimits | None = None,
        pace: LivePace | None = None,
    ) -> None:
        self.now = 100.0
        self.events: list[live.LiveEvent] = []
        self.commands: list[Any] = []
        self.heard = 0
        self.ended = False
        counter = itertools.count(1)
        config = config or LiveConfig(model="m", voice="v")
        limits = limits or SessionLimits()
        self.core = Session(
            "sess_1",
            cascade_config(config, BASE, "r"),
            SPEC,
            limits,
            lambda prefix: f"{prefix}_{next(counter)}",
            self.now,
            plays_out=True,
        )
        self.session = LiveSession(
            config,
            pace or LivePace(),
            self.now,
            self.now + limits.max_duration,
            lambda prefix: f"{prefix}_live{next(counter)}",
            wake,
        )
        self.voice = CascadeVoice(self.session, BASE, lambda: self.now, self._hear, self._report)
        self.session.voice = self.voice
        self.settle()

    # -- what happens -----------------------------------------------------------------------

    def command(self, command: live.Command) -> None:
        self.session.receive(command, self.now)
        self.settle()

    def tell(self, event: Event) -> None:
        """The core hears of something: an output of the engine, for example."""
        self._happen(event)
        self.settle()

    def sound(self, ms: int, probability: float) -> None:
        """The microphone hears something, in real time, 32 ms at a time."""
        for _ in range(ms // 32):
            self.pass_time(0.032)
            self.probability = probability
            self.session.hear(np.ones(512, np.int16), np.ones(512, np.int16), self.now)
            self.settle()

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        for _ in range(100_000):
            deadline = min(self.session.next_deadline(), self.core.next_deadline())
            if deadline > end:
                break
            self.now = max(self.now, deadline)
            self.session.handle_timer(self.now)
            self.core.handle_timer(self.now)
            self.settle()
        else:
            raise AssertionError("time stands still")
        self.now = end

    # -- what follows -----------------------------------------------------------------------

    probability = 0.0

    def _hear(self, pcm: bytes) -> None:
        self.heard += len(pcm) // 2
        self._happen(AudioReceived(self.heard))
        self._happen(VoiceProbability(self.heard, self.probability))

    def _report(self, item_id: str, played_ms: float) -> None:
        self._happen(PlaybackReported(item_id, played_ms))

    def _happen(self, event: Event) -> None:
        self.core.receive(event, self.now)
        self._perform()

    def _perform(self) -> None:
        for effect in self.core.take_effects():
            match effect:
                case effects.ToEngine():
                    self.commands.append(effect.command)
                case effects.FlushPlayout() | effects.DuckPlayout() | effects.RestorePlayout():
                    self.voice.steer(effect)
                case effects.CloseTransport():
                    self.ended = True
                case (
                    effects.CleanUp()
                    | effects.OpenUtterance()
                    | effects.CloseUtterance()
                    | effects.DropUtterance()
                    | effects.SupplyUtterance()
                    | effects.ShowPicture()
                ):
                    pass
                case _:
                    self.voice.told(effect)

    def settle(self) -> None:
        for _ in range(1000):
            self._perform()
            if not self.voice.pending:
                break
            self._happen(self.voice.pending.popleft())
            if self.session.closed is None:
                self.voice.settle(self.now)
        else:
            raise AssertionError("it goes on for ever")
        self.events += self.session.take_events()

    # -- what was said ----------------------------------------------------------------------

    def all(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def told(self) -> list[live.LiveEvent]:
        """All that was said but sound."""
        return [e for e in self.events if not isinstance(e, live.OutputAudio)]

    def requests(self) -> list[Any]:
        """Answers that the engine was asked for."""
        return [c for c in self.commands if type(c).__name__ == "Respond"]

    def sounding(self) -> list[bool]:
        return [bool(frame.samples.any()) for frame in self.all(live.OutputAudio)]
