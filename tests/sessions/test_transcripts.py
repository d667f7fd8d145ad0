"""Transcripts that are being made: each is completed or fails, once."""

from duologue.engines.engine import TokenLogprob, TranscriptFinal
from duologue.sessions.effects import (
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
)
from duologue.sessions.errors import ProtocolError
from duologue.sessions.history import History
from duologue.sessions.items import InputAudio, MessageItem
from duologue.sessions.session_config import LOGPROBS, SessionConfig, Transcription
from duologue.sessions.transcripts import LOST, Transcripts

WANTED = SessionConfig(transcription=Transcription("any"))
TOKENS = (TokenLogprob("Hi", -0.1),)


def final(item_id, text="Hi"):
    return TranscriptFinal(item_id, text, 1.5, TOKENS, session="s")


def of(config, *item_ids):
    """Transcripts of user's items that are awaited, their history, and what the client hears."""
    history, told = History(100, 10_000), []
    made = Transcripts(config, history, told)
    for item_id in item_ids:
        history.add(MessageItem(item_id, "user", (InputAudio(None),)))
        made.expect(item_id)
    return made, history, told


def words(history, item_id):
    return history.get(item_id).content[0].transcript


def test_a_transcript_is_written_down_and_told_once():
    made, history, told = of(WANTED, "u")
    made.complete(final("u"))
    made.complete(final("u", "Ho"))
    assert words(history, "u") == "Hi"
    assert told == [TranscriptionCompleted("u", 0, "Hi", 1.5, None)]
    assert not made.awaits("u")


def test_a_client_that_wants_none_hears_nothing_and_the_history_has_it():
    made, history, told = of(SessionConfig(), "u", "v")
    made.add_words("u", "H")
    made.complete(final("u"))
    made.fail("v", LOST)
    assert (words(history, "u"), words(history, "v"), told) == ("Hi", "", [])


def test_probabilities_are_told_where_they_are_included():
    made, _, told = of(WANTED, "u")
    made.configure(SessionConfig(transcription=Transcription("any"), include=(LOGPROBS,)))
    made.complete(final("u"))
    assert told[0].logprobs == TOKENS


def test_one_that_fails_has_no_words_and_can_not_come_any_more():
    made, history, told = of(WANTED, "u")
    error = ProtocolError("engine_error", "words")
    made.fail("u", error)
    made.fail("u", error)
    made.complete(final("u"))
    assert words(history, "u") == ""
    assert told == [TranscriptionFailed("u", 0, error)]


def test_with_the_engine_all_that_it_was_making_are_lost():
    made, history, told = of(WANTED, "b", "a", "c")
    made.complete(final("c"))
    made.lost()
    made.lost()
    assert told[1:] == [TranscriptionFailed(name, 0, LOST) for name in ("a", "b")]
    assert words(history, "c") == "Hi"


def test_nothing_is_said_of_an_item_that_is_forgotten():
    made, history, told = of(WANTED, "u")
    made.forget("u")
    made.forget("never there")
    made.complete(final("u"))
    made.fail("u", LOST)
    assert (words(history, "u"), told) == (None, [])


def test_words_are_told_as_they_come():
    made, _, told = of(WANTED, "u")
    made.add_words("u", "Hi")
    assert told == [TranscriptionDelta("u", 0, "Hi")]
