"""A Live session, whatever speaks in it: commands in, events out, time as an argument.

The caller's loop: ``receive`` what a client commands and ``hear`` its microphone, ``handle_timer``
when ``next_deadline`` has come, and after each say what ``take_events`` gives. Nothing here waits,
reads a clock or raises for anything a client does. What speaks is a :class:`LiveVoice`; it adds to
``events`` itself.

Output goes on for as long as the session: frame ``k`` is said from ``k`` frames after the beginning
on, and there are zeros where there is nothing to hear.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from duologue.codecs.media import Int16Samples
from duologue.sessions.errors import ProtocolError
from duologue.sessions.live_config import LiveConfig
from duologue.sessions.live_events import (
    AppendContext,
    Close,
    Closed,
    CloseReason,
    Command,
    CreateDecision,
    CreateDecisionItem,
    CreateResponse,
    CreateResponseItem,
    DecisionItemCreated,
    DecisionItemDeleted,
    DeleteDecisionItem,
    FixturePlayed,
    FixturePlaying,
    LiveError,
    LiveEvent,
    LiveUsage,
    Mute,
    Muted,
    OutputAudio,
    Paused,
    PlayFixture,
    Refused,
    Resumed,
    Start,
    Started,
    Unmute,
    Unmuted,
    Update,
    Updated,
    UsageUpdated,
)
from duologue.sessions.live_mixer import LiveMixer
from duologue.sessions.live_voice import LivePace, LiveVoice

MOST_BEHIND: Final = 1.0
"""Seconds of output that are made up for when the server was held up; what is more is left out."""
MOST_OWED: Final = 4
"""Frames of the model that are left out because their moment has passed; one that is slower than
that has fallen behind, and stays there."""
STEADY_FRAMES: Final = 25
"""Frames in time after which one more may be left out again, up to as many."""
USAGE_SECONDS: Final = 10.0
MOST_DECISION_ITEMS: Final = 256
MOST_DECISION_TEXT: Final = 262_144


class LiveSession:
    """See the module for how to drive it. ``say`` and ``voice`` are its voice's to use."""

    def __init__(
        self,
        config: LiveConfig,
        pace: LivePace,
        now: float,
        expires_at: float,
        new_id: Callable[[str], str],
        wake: Callable[[Int16Samples], float] | None = None,
        client_event_id: str | None = None,
    ) -> None:
        """``wake``: the probability of speech in samples at 16 kHz, where the session can rest.

        ``client_event_id``: of the event that started it.
        """
        self.config = config
        self.events: list[LiveEvent] = []
        self.mixer = LiveMixer(pace.frame_samples)
        self.new_id = new_id
        self.began = now
        self.expires_at = expires_at
        self.closed: Closed | None = None
        self.muted = False
        self.paused = False
        self.late_frames = 0
        """Frames of the model that were not there in time; zeros were said instead."""
        self._pace = pace
        self._wake = wake if config.idle_timeout is not None else None
        self._voice: LiveVoice | None = None
        self._frame = 0
        self._owed = 0
        self._sparable = MOST_OWED
        self._steady = 0
        self._speaks = False
        self._fixture_event: str | None = None
        self._decision_items: dict[str, str] = {}
        self._active_at = now
        self._paused_at = now
        self._rested = 0.0
        self._usage_at = now + USAGE_SECONDS
        self.events.append(Started(config, client_event_id))

    @property
    def voice(self) -> LiveVoice:
        assert self._voice is not None
        return self._voice

    @voice.setter
    def voice(self, voice: LiveVoice) -> None:
        self._voice = voice

    @property
    def decision_texts(self) -> tuple[str, ...]:
        """What there is to read in the items for decisions."""
        return tuple(self._decision_items.values())

    def place(self, now: float) -> int:
        """Where on the timeline a moment lies, in ms."""
        return max(0, round((now - self.began) * 1000))

    def take_events(self) -> list[LiveEvent]:
        """What is to be said now, in order; each is given once."""
        events, self.events[:] = list(self.events), ()
        return events

    def fail(self, error: ProtocolError) -> None:
        """Tell the client."""
        self.events.append(LiveError(error))

    # -- the client -------------------------------------------------------------------------

    def receive(self, command: Command, now: float) -> None:
        """A client commands something. Sound goes to :meth:`hear`."""
        if self.closed is not None:
            return
        try:
            _HANDLERS[type(command)](self, command, now)
        except ProtocolError as error:
            self.fail(error.answering(command.event_id))  # type: ignore[union-attr]
        if self.closed is None:
            self.voice.settle(now)

    def hear(self, samples: Int16Samples, narrow: Int16Samples | None, now: float) -> None:
        """Sound of the microphone: int16 at the voice's rate; ``narrow``: the same at 16 kHz."""
        if self.closed is not None or not len(samples):
            return
        quiet = self.muted or self.mixer.fixture
        if self.paused:
            if quiet or self._wake is None or narrow is None:
                return
            if self._wake(narrow) < self.config.wake_threshold:
                return
            self._resume(now)
        if quiet:
            samples = np.zeros(len(samples), np.int16)
        self.voice.hear(samples, now)

    def _start(self, command: Start, now: float) -> None:
        raise ProtocolError("session_already_started", "The session has started already.")

    def _update(self, command: Update, now: float) -> None:
        self.config = self.config.changed(command.change)
        self.voice.configure(self.config)
        self.events.append(Updated(self.config, command.event_id))

    def _mute(self, command: Mute, now: float) -> None:
        self.muted = True
        self.events.append(Muted(command.event_id))

    def _unmute(self, command: Unmute, now: float) -> None:
        self.muted = False
        self.events.append(Unmuted(command.event_id))

    def _play_fixture(self, command: PlayFixture, now: float) -> None:
        self._refuse_during_fixture()
        self.awake(now)
        self.voice.interrupt()
        self.mixer.flush()
        self.mixer.play_fixture(command.samples)
        self._fixture_event = command.event_id
        self.events.append(FixturePlaying(command.event_id))

    def _append(self, command: AppendContext, now: float) -> None:
        self._refuse_during_fixture()
        if command.kind == "commentary":
            self.awake(now)
        self.voice.append(command, now)

    def _refuse_during_fixture(self) -> None:
        if self.mixer.fixture:
            raise ProtocolError("fixture_active", "A fixture is playing: wait until it was played.")

    def _create_decision(self, command: CreateDecision, now: float) -> None:
        self.voice.decide(command, self.decision_texts)

    def _create_decision_item(self, command: CreateDecisionItem, now: float) -> None:
        given = command.shown.get("id")
        item_id = given if isinstance(given, str) and given else self.new_id("item")
        if item_id in self._decision_items:
            message = f"An item with the id '{item_id}' exists already."
            raise ProtocolError("item_create_duplicate_item_id", message, "item.id")
        held = sum(map(len, self._decision_items.values())) + len(command.text)
        if len(self._decision_items) >= MOST_DECISION_ITEMS or held > MOST_DECISION_TEXT:
            message = "There are as many items for decisions as there may be; delete some first."
            raise ProtocolError("item_create_limit_reached", message)
        self._decision_items[item_id] = command.text
        self.events.append(DecisionItemCreated({**command.shown, "id": item_id}, command.event_id))

    def _delete_decision_item(self, command: DeleteDecisionItem, now: float) -> None:
        if self._decision_items.pop(command.item_id, None) is None:
            message = f"There is no item with the id '{command.item_id}'."
            raise ProtocolError("item_delete_invalid_item_id", message, "item_id")
        self.events.append(DecisionItemDeleted(command.item_id, command.event_id))

    def _create_response_item(self, command: CreateResponseItem, now: float) -> None:
        self.voice.add_item(command)

    def _create_response(self, command: CreateResponse, now: float) -> None:
        self.awake(now)
        self.voice.respond(command)

    def _close(self, command: Close, now: float) -> None:
        self.close("close_requested", now, command.event_id)

    def _refuse(self, command: Refused, now: float) -> None:
        self.fail(command.error)

    # -- time -------------------------------------------------------------------------------

    def handle_timer(self, now: float) -> None:
        """Time has passed. Afterwards ``next_deadline() > now``."""
        if self.closed is not None:
            return
        self._skip(now)
        while now >= self._frame_deadline():
            self._emit()
        if self._idle_at() <= now:
            self._pause(now)
        if now >= self._usage_at:
            self._usage_at = now + USAGE_SECONDS
            self.events.append(UsageUpdated(self.usage(now)))
        if now >= self.expires_at:
            self.close("expired", now)
            return
        self.voice.settle(now)

    def next_deadline(self) -> float:
        """When :meth:`handle_timer` must be called at the latest."""
        if self.closed is not None:
            return math.inf
        return min(self._frame_deadline(), self._idle_at(), self._usage_at, self.expires_at)

    def _due(self) -> float:
        return self.began + self._frame * self._pace.frame_ms / 1000

    def _frame_deadline(self) -> float:
        if not self._pace.patience or not self._speaks or self.mixer.fixture:
            return self._due()
        if self.mixer.waiting_ms >= self._pace.frame_ms:
            return self._due() - self._pace.frame_ms / 1000
        return self._due() + self._pace.patience

    def _skip(self, now: float) -> None:
        behind = now - self._due() - self._pace.patience
        if behind > MOST_BEHIND:
            self._frame += int(behind * 1000 / self._pace.frame_ms)

    def _emit(self) -> None:
        if self._speaks and not self.mixer.fixture:
            if self.mixer.waiting_ms < self._pace.frame_ms:
                self._owed = min(self._owed + 1, MOST_OWED)
                self.late_frames += 1
                self._steady = 0
            else:
                self._keep_steady()
        frame = self.mixer.next_frame()
        start = self._frame * self._pace.frame_ms
        end = start + self._pace.frame_ms
        self._frame += 1
        self.events.append(OutputAudio(frame.samples, start, end))
        if frame.heard:
            self._active_at = max(self._active_at, self.began + end / 1000)
            self.voice.heard(frame.heard, start, end)
        if frame.fixture_over:
            self.events.append(FixturePlayed(self._fixture_event))
            self._fixture_event = None

    def next_place(self) -> int:
        """Where on the timeline the model's next frame will be said, in ms."""
        waiting = int(self.mixer.waiting_ms // self._pace.frame_ms)
        return (self._frame + waiting) * self._pace.frame_ms

    def began_to_speak(self) -> None:
        """The model has said its first frame: from now on one is expected in each one's time."""
        self._speaks = True

    def stopped_speaking(self) -> None:
        """The model rests: nothing of it is expected."""
        self._speaks = False
        self._owed = 0

    def too_late(self) -> bool:
        """Whether the model's frame that has come now was missed: then it is not said.

        A model that is too slow would never be heard: it stutters instead, and stays behind.
        """
        if not self._owed:
            return False
        if not self._sparable:
            self._owed = 0
            return False
        self._owed -= 1
        self._sparable -= 1
        return True

    def _keep_steady(self) -> None:
        self._steady += 1
        if self._steady >= STEADY_FRAMES:
            self._steady = 0
            self._sparable = min(self._sparable + 1, MOST_OWED)

    # -- rest -------------------------------------------------------------------------------

    def _idle_at(self) -> float:
        if self.paused or self.config.idle_timeout is None or self.mixer.fixture:
            return math.inf
        return self._active_at + self.config.idle_timeout

    def awake(self, now: float) -> None:
        """Somebody speaks, or something is to be said."""
        self._active_at = max(self._active_at, now)
        if self.paused:
            self._resume(now)

    def _pause(self, now: float) -> None:
        self.paused = True
        self._paused_at = now
        self.events.append(Paused())

    def _resume(self, now: float) -> None:
        self.paused = False
        self._rested += now - self._paused_at
        self._active_at = now
        self.events.append(Resumed())

    # -- the end ----------------------------------------------------------------------------

    def usage(self, now: float) -> LiveUsage:
        seconds = math.ceil(max(0.0, now - self.began))
        if self.config.idle_timeout is None:
            return LiveUsage(seconds)
        rested = int(self._rested + (now - self._paused_at if self.paused else 0.0))
        return LiveUsage(seconds, seconds - rested, rested)

    def close(self, reason: CloseReason, now: float, client_event_id: str | None = None) -> None:
        """End the session: its last event is said. Idempotent."""
        if self.closed is None:
            self.closed = Closed(reason, self.usage(now), self.config, client_event_id)
            self.events.append(self.closed)


_HANDLERS: Mapping[type, Callable[[LiveSession, Any, float], None]] = {
    Start: LiveSession._start,
    Update: LiveSession._update,
    Mute: LiveSession._mute,
    Unmute: LiveSession._unmute,
    PlayFixture: LiveSession._play_fixture,
    AppendContext: LiveSession._append,
    CreateDecision: LiveSession._create_decision,
    CreateDecisionItem: LiveSession._create_decision_item,
    DeleteDecisionItem: LiveSession._delete_decision_item,
    CreateResponseItem: LiveSession._create_response_item,
    CreateResponse: LiveSession._create_response,
    Close: LiveSession._close,
    Refused: LiveSession._refuse,
}
