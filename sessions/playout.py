"""What follows from being heard: items cut down to it, words looked up, playout told.

Where the client plays audio out, it says itself where it stopped; until it does, our estimate
holds. Where the server does, the client is told when a response is heard, cleared and truncated.
"""

import math
from collections.abc import Callable, Container
from dataclasses import replace

from duologue.engines.engine import AlignSpeech, SpeechAligned
from duologue.sessions.effects import (
    DuckPlayout,
    Effect,
    FlushPlayout,
    ItemTruncated,
    PlaybackCleared,
    PlaybackStarted,
    PlaybackStopped,
    RestorePlayout,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.history import History
from duologue.sessions.items import MessageItem, OutputAudio
from duologue.sessions.playback import Playback, SpokenItem

LONGEST_LEAD = 60.0
"""Seconds of audio that our own playout holds at most."""
OVERRUN_MS = 500
"""How far beyond an item's audio a client's own count may be."""


class Playout:
    """One session's answers on their way to the ear. ``tell`` takes what goes to the engine."""

    def __init__(
        self,
        session_id: str,
        history: History,
        effects: list[Effect],
        tell: Callable[[AlignSpeech], None],
        plays_out: bool,
    ) -> None:
        self._session_id = session_id
        self._history = history
        self._effects = effects
        self._tell = tell
        self._plays_out = plays_out
        self._told: str | None = None
        self._ducked = False
        self._settled_at = 0.0
        self.playback = Playback(by_report=plays_out)

    # -- being heard ------------------------------------------------------------------------

    def silent(self, now: float) -> bool:
        """Whether all that was sent has been heard."""
        return self.playback.end <= now

    def settle(self, now: float, unfinished: Container[str | None]) -> None:
        """Tell which response is heard; one that is ``unfinished`` may pause for more."""
        self._settled_at = now
        self.playback.tidy(now)
        if not self._plays_out:
            return
        heard = self.playback.response_at(now)
        if heard == self._told or (heard is None and self._told in unfinished):
            return
        if self._told is not None:
            self._effects.append(PlaybackStopped(self._told))
        if heard is not None:
            self._effects.append(PlaybackStarted(heard))
        self._told = heard

    def begin(self, now: float) -> None:
        """Audio was sent: tell which response begins to be heard with it, if one does."""
        heard = self.playback.response_at(now)
        if self._plays_out and self._told is None and heard is not None:
            self._effects.append(PlaybackStarted(heard))
            self._told = heard

    def next_deadline(self) -> float:
        """When another response begins to be heard, or none is any more."""
        return self.playback.next_edge(self._settled_at) if self._plays_out else math.inf

    def duck(self) -> bool:
        """Hold back what is being said for a while, if playout is ours."""
        if self._plays_out and not self._ducked:
            self._ducked = True
            self._effects.append(DuckPlayout())
        return self._plays_out

    def restore(self) -> None:
        """Go on, if it was held back."""
        if self._ducked:
            self._ducked = False
            self._effects.append(RestorePlayout())

    def lead(self, wanted: float) -> float:
        """Seconds that sent audio may run ahead of the listener."""
        return min(wanted, LONGEST_LEAD) if self._plays_out else wanted

    # -- not being heard any more -----------------------------------------------------------

    def stop(self, now: float) -> None:
        """The listener hears nothing more of what was said so far."""
        cut = []
        for spoken in self.playback.unheard(now):
            if spoken.cut(spoken.played_ms(now), by_client=False):
                self.keep_heard(spoken)
                cut.append(spoken)
        self.playback.flush(now)
        if not self._plays_out:
            return
        self._ducked = False
        self._effects.append(FlushPlayout())
        if self._told is not None:
            self._effects.append(PlaybackCleared(self._told))
            self._told = None
        self._effects += [ItemTruncated(item.item_id, 0, int(item.cut_ms or 0.0)) for item in cut]

    def truncate(self, item_id: str, content_index: int, audio_end_ms: int, now: float) -> None:
        """The client says how much of an item was heard.

        Raises ProtocolError for an item without audio or a position far beyond its end.
        """
        item = self._history.get(item_id)
        spoken = self.playback.item(item_id)
        if item is None or spoken is None:
            said = (
                f"the item with ID '{item_id}' does not exist."
                if item is None
                else "only an assistant's audio can be truncated."
            )
            raise ProtocolError(
                "item_truncate_invalid_item_id", f"Error truncating item: {said}", "item_id"
            )
        if content_index != 0:
            raise ProtocolError(
                "invalid_value", "The item has one content part, at index 0.", "content_index"
            )
        length = int(spoken.sent_ms)
        if audio_end_ms > length + OVERRUN_MS:
            raise ProtocolError(
                "item_truncate_invalid_audio_end",
                f"Audio content of {length}ms is already shorter than {audio_end_ms}ms",
                "audio_end_ms",
            )
        end = min(audio_end_ms, length)
        if not self._plays_out and spoken.ends_at > now:
            # It plays out itself, and has stopped: what we thought to be waiting is not.
            self.playback.flush(now)
        spoken.cut(end, by_client=True)
        self.keep_heard(spoken)
        self._effects.append(ItemTruncated(item_id, content_index, end))

    def keep_heard(self, spoken: SpokenItem) -> None:
        """Cut an item of the conversation down to what was heard, and find out the words of it."""
        self.shorten(spoken)
        clause = spoken.cut_clause()
        if clause is not None and spoken.item_id in self._history:
            clause.asked = True
            self._tell(
                AlignSpeech(
                    session=self._session_id,
                    reference=f"{spoken.item_id}@{int(clause.start_ms)}",
                    text=clause.text,
                    pcm=clause.pcm,
                )
            )

    def aligned(self, output: SpeechAligned) -> None:
        """The words of a clause that was cut have their times."""
        item_id, _, start = output.reference.rpartition("@")
        spoken = self.playback.item(item_id)
        if spoken is None:
            return
        text = "".join(word.text for word in output.words)
        for clause in spoken.clauses:
            if str(int(clause.start_ms)) == start and clause.text == text:
                clause.words = output.words
        self.shorten(spoken)

    def shorten(self, spoken: SpokenItem) -> None:
        """Keep of an item of the conversation what was heard, as far as that is known."""
        item = self._history.get(spoken.item_id)
        if not isinstance(item, MessageItem) or spoken.cut_ms is None:
            return
        heard = spoken.heard()
        status = item.status if heard == spoken.transcript else "incomplete"
        self._history.replace(replace(item, content=(OutputAudio(heard),), status=status))
