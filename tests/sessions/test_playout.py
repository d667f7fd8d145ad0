"""What a client, a model and a listener learn from what was heard."""

import math

import pytest

from duologue.engines.engine import AlignSpeech, SpeechAligned, WordTime
from duologue.sessions.effects import (
    DuckPlayout,
    FlushPlayout,
    ItemTruncated,
    PlaybackCleared,
    PlaybackStarted,
    PlaybackStopped,
    RestorePlayout,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.history import History
from duologue.sessions.items import InputText, MessageItem, OutputAudio
from duologue.sessions.playback import BYTES_PER_MS
from duologue.sessions.playout import LONGEST_LEAD, Playout


class Said:
    """A playout and everything it said."""

    def __init__(self, plays_out=False) -> None:
        self.history = History(100, 10_000)
        self.effects = []
        self.asked: list[AlignSpeech] = []
        self.playout = Playout("s", self.history, self.effects, self.asked.append, plays_out)

    def say(self, item_id, *clauses, now=0.0, conversation=True, sent=None):
        """An item of the clauses (text, ms), all made, and sent unless it is told otherwise."""
        spoken = self.playout.playback.open(item_id, f"r-{item_id}", conversation)
        for text, ms in clauses:
            spoken.generate(text, bytes(BYTES_PER_MS * ms))
        spoken.whole = spoken.closed = True
        if conversation:
            self.history.add(MessageItem(item_id, "assistant", (OutputAudio(spoken.transcript),)))
        self.playout.playback.sent(spoken, spoken.generated_ms if sent is None else sent, now)
        return spoken

    def text(self, item_id):
        return self.history.get(item_id).content[0].transcript

    def truncate(self, item_id, at, now=0.5, index=0):
        self.playout.truncate(item_id, index, at, now)

    def refused(self, *what, **more):
        with pytest.raises(ProtocolError) as caught:
            self.truncate(*what, **more)
        return caught.value


# -- stopping -------------------------------------------------------------------------------


def test_what_was_not_heard_leaves_the_conversation():
    said = Said()
    said.say("a", ("One. ", 1000), ("Two. ", 1000))
    said.say("b", ("Three.", 1000))
    said.playout.stop(1.0)
    assert (said.text("a"), said.text("b")) == ("One.", "")
    assert said.history.get("a").status == "incomplete"
    assert said.playout.silent(1.0)


def test_what_was_heard_to_its_end_stays_as_it_is():
    said = Said()
    said.say("a", ("One. ", 1000))
    said.playout.stop(1.0)
    assert said.history.get("a") == MessageItem("a", "assistant", (OutputAudio("One. "),))


def test_stopping_again_takes_nothing_back_of_the_first_time():
    said = Said()
    said.say("a", ("One. ", 1000), ("Two. ", 1000), ("Three.", 1000))
    said.playout.stop(1.0)
    said.playout.stop(2.5)
    assert said.text("a") == "One."


def test_an_answer_outside_the_conversation_is_neither_cut_nor_asked_about():
    said = Said(plays_out=True)
    said.say("a", ("One two three.", 1000), conversation=False)
    said.playout.stop(0.5)
    assert said.asked == []
    assert ItemTruncated not in map(type, said.effects)


def test_a_deleted_answer_is_neither_cut_nor_asked_about():
    said = Said(plays_out=True)
    said.say("a", ("One two three.", 1000))
    said.history.delete("a")
    said.playout.playback.forget("a")
    said.playout.stop(0.5)
    assert said.asked == []
    assert ItemTruncated not in map(type, said.effects)


# -- the client's word ----------------------------------------------------------------------


def test_a_client_may_say_that_more_was_heard_than_we_thought():
    said = Said()
    said.say("a", ("One. ", 1000), ("Two. ", 1000), ("Three.", 1000))
    said.playout.stop(1.0)
    said.truncate("a", 2000, now=1.2)
    assert said.text("a") == "One. Two."
    assert said.effects[-1] == ItemTruncated("a", 0, 2000)


def test_an_item_that_was_heard_to_its_end_may_be_truncated_there_and_stays_whole():
    said = Said()
    said.say("a", ("One. ", 1000))
    said.truncate("a", 1000, now=3.0)
    assert said.history.get("a") == MessageItem("a", "assistant", (OutputAudio("One. "),))


def test_a_client_that_truncates_has_stopped_playing():
    said = Said()
    said.say("a", ("One. ", 1000), ("Two.", 4000))
    said.truncate("a", 1000, now=1.0)
    assert said.playout.silent(1.0)


def test_a_client_that_truncates_what_it_heard_long_ago_plays_on():
    said = Said()
    said.say("a", ("One. ", 1000))
    said.say("b", ("Two.", 4000))
    said.truncate("a", 500, now=2.0)
    assert not said.playout.silent(2.0)


def test_where_the_server_plays_out_a_truncate_stops_nothing():
    said = Said(plays_out=True)
    said.say("a", ("One. ", 1000))
    said.truncate("a", 500)
    assert not said.playout.silent(0.5)


def test_only_what_was_sent_can_have_been_heard():
    said = Said()
    said.say("a", ("One. ", 1000), ("Two.", 1000), sent=1200)
    said.truncate("a", 1700)
    assert said.effects[-1] == ItemTruncated("a", 0, 1200)
    error = said.refused("a", 1701)
    assert error.code == "item_truncate_invalid_audio_end"
    assert "Audio content of 1200ms is already shorter than 1701ms" in error.message


def test_what_can_not_be_truncated_says_why():
    said = Said()
    said.say("a", ("One.", 1000))
    said.history.add(MessageItem("u", "user", (InputText("Hi"),)))
    said.history.add(MessageItem("seeded", "assistant", (OutputAudio("Hi"),)))
    assert "does not exist" in said.refused("nothing", 0).message
    assert "only an assistant's audio" in said.refused("u", 0).message
    assert "only an assistant's audio" in said.refused("seeded", 0).message
    assert said.refused("a", 0, index=1).code == "invalid_value"
    assert said.effects == []


# -- words ----------------------------------------------------------------------------------

WORDS = (WordTime("One ", 500), WordTime("two ", 600), WordTime("three.", 1000))


def test_the_clause_of_a_cut_is_looked_up_once():
    said = Said()
    said.say("a", ("Zero. ", 1000), ("One two three.", 1000))
    said.playout.stop(1.7)
    said.truncate("a", 1650, now=1.8)
    (asked,) = said.asked
    assert asked == AlignSpeech(
        session="s", reference="a@1000", text="One two three.", pcm=bytes(BYTES_PER_MS * 1000)
    )


def test_words_with_their_times_replace_the_estimate():
    said = Said()
    said.say("a", ("One two three.", 1000))
    said.playout.stop(0.7)
    assert said.text("a") == "One two three."
    said.playout.aligned(SpeechAligned(session="s", reference="a@0", words=WORDS))
    assert said.text("a") == "One two"
    said.truncate("a", 520, now=0.8)
    assert said.text("a") == "One"


def test_words_that_are_not_those_of_the_clause_change_nothing():
    said = Said()
    said.say("a", ("One two three.", 1000))
    said.playout.stop(0.7)
    before = said.text("a")
    for reference, words in (("a@0", ()), ("a@7", WORDS), ("b@0", WORDS), ("nonsense", WORDS)):
        said.playout.aligned(SpeechAligned(session="s", reference=reference, words=words))
    assert said.text("a") == before


def test_words_are_remembered_for_a_cut_that_comes_later():
    said = Said()
    said.say("a", ("One two three.", 1000))
    said.playout.aligned(SpeechAligned(session="s", reference="a@0", words=WORDS))
    assert said.text("a") == "One two three."
    said.playout.stop(0.5)
    assert said.text("a") == "One"
    assert said.asked == []


# -- where the server plays out -------------------------------------------------------------


def test_one_response_after_the_other_begins_and_ends():
    said = Said(plays_out=True)
    said.say("a", ("One.", 1000))
    said.say("b", ("Two.", 1000))
    for now in (0.0, 0.5, 1.0, 1.5, 2.0):
        said.playout.settle(now, [])
    assert said.effects == [
        PlaybackStarted("r-a"),
        PlaybackStopped("r-a"),
        PlaybackStarted("r-b"),
        PlaybackStopped("r-b"),
    ]


def test_the_next_change_has_a_deadline():
    said = Said(plays_out=True)
    said.say("a", ("One.", 1000))
    said.playout.settle(0.0, [])
    assert said.playout.next_deadline() == 1.0
    said.playout.settle(1.0, [])
    assert said.playout.next_deadline() == math.inf


def test_a_response_that_waits_for_more_has_not_stopped():
    said = Said(plays_out=True)
    said.say("a", ("One.", 1000))
    said.playout.settle(0.0, ["r-a"])
    said.playout.settle(1.5, ["r-a"])
    assert said.effects == [PlaybackStarted("r-a")]
    said.playout.settle(1.5, [])
    assert said.effects[-1] == PlaybackStopped("r-a")


def test_stopping_flushes_clears_and_truncates():
    said = Said(plays_out=True)
    said.say("a", ("One. ", 1000), ("Two.", 1000))
    said.playout.settle(0.0, [])
    said.playout.stop(1.0)
    assert said.effects[1:] == [FlushPlayout(), PlaybackCleared("r-a"), ItemTruncated("a", 0, 1000)]
    said.playout.settle(1.5, [])
    assert len(said.effects) == 4


def test_stopping_what_nobody_hears_yet_clears_nothing():
    said = Said(plays_out=True)
    said.playout.stop(1.0)
    assert said.effects == [FlushPlayout()]


def test_ducking_and_restoring_are_told_to_our_own_playout():
    said = Said(plays_out=True)
    assert said.playout.duck()
    said.playout.restore()
    assert said.effects == [DuckPlayout(), RestorePlayout()]


def test_where_the_client_plays_out_it_is_told_nothing():
    said = Said()
    said.say("a", ("One.", 1000))
    assert not said.playout.duck()
    said.playout.settle(0.5, [])
    assert said.playout.next_deadline() == math.inf
    said.playout.stop(0.5)
    assert said.effects == []


def test_playout_is_held_back_once_and_let_go_once():
    said = Said(plays_out=True)
    assert said.playout.duck()
    assert said.playout.duck()
    said.playout.restore()
    said.playout.restore()
    assert said.effects == [DuckPlayout(), RestorePlayout()]
    said.playout.duck()
    said.playout.stop(1.0)
    said.playout.restore()
    assert said.effects[2:] == [DuckPlayout(), FlushPlayout()]


def test_what_begins_to_be_heard_is_told_at_once():
    said = Said(plays_out=True)
    said.playout.begin(0.0)
    said.say("a", ("One.", 1000))
    said.playout.begin(0.0)
    said.playout.begin(0.1)
    assert said.effects == [PlaybackStarted("r-a")]


def test_our_own_playout_holds_only_so_much():
    assert Said(plays_out=True).playout.lead(math.inf) == LONGEST_LEAD
    assert Said(plays_out=True).playout.lead(5.0) == 5.0
    assert Said().playout.lead(math.inf) == math.inf
