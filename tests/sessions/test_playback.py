"""The ledger: what was generated, sent, played and cut, and the words that this leaves."""

import math

import pytest
from hypothesis import given, settings, strategies as st

from duologue.engines.engine import WordTime
from duologue.sessions.playback import (
    BYTES_PER_MS,
    LINGER,
    MS_PER_LETTER,
    Clause,
    Playback,
    SpokenItem,
    words_before,
)


def pcm(ms):
    return bytes(BYTES_PER_MS * ms)


def said(*clauses, whole=True):
    """An item of clauses (text, ms), all of it made."""
    item = SpokenItem("i", "r")
    for text, ms in clauses:
        item.generate(text, pcm(ms))
    item.whole = whole
    return item


def cut_at(item, ms, by_client=False):
    item.cut(ms, by_client=by_client)
    return item


def held(item):
    return sum(len(clause.pcm) for clause in item.clauses)


# -- clauses --------------------------------------------------------------------------------


def test_text_begins_a_clause_and_sound_without_text_goes_on_with_it():
    item = said(("One. ", 100), ("", 200), ("Two.", 300))
    assert [(c.text, c.start_ms, c.end_ms) for c in item.clauses] == [
        ("One. ", 0, 300),
        ("Two.", 300, 600),
    ]
    assert item.clauses[0].pcm == pcm(300)
    assert item.transcript == "One. Two."
    assert item.generated_ms == 600


def test_sound_before_any_text_is_a_clause_of_its_own():
    item = said(("", 100), ("One.", 100))
    assert [clause.text for clause in item.clauses] == ["", "One."]


# -- playing --------------------------------------------------------------------------------


def test_what_was_sent_plays_in_real_time():
    item = said(("One.", 1000))
    item.send(10.0, 600)
    assert item.played_ms(9.0) == 0
    assert item.played_ms(10.25) == pytest.approx(250)
    assert item.played_ms(99.0) == 600
    assert (item.begins_at, item.ends_at) == (10.0, 10.6)


def test_a_gap_between_two_stretches_is_not_played():
    item = said(("One.", 1000))
    item.send(10.0, 400)
    item.send(12.0, 400)
    assert item.played_ms(11.0) == 400
    assert item.played_ms(12.1) == pytest.approx(500)
    assert item.sent_ms == 800


def test_stretches_that_touch_are_one():
    item = said(("One.", 1000))
    item.send(10.0, 400)
    item.send(10.4, 400)
    assert item.begins_at == 10.0
    assert item.played_ms(10.5) == pytest.approx(500)


def test_what_the_server_reports_outweighs_the_clock_and_never_goes_back():
    item = said(("One.", 1000))
    item.send(0.0, 1000)
    item.report(300)
    assert item.played_ms(0.9) == 300
    item.report(200)
    assert item.played_ms(0.9) == 300
    item.report(5000)
    assert item.played_ms(0.9) == 1000


def test_flushed_audio_is_never_played():
    item = said(("One.", 1000))
    item.send(10.0, 1000)
    item.flush(10.3)
    assert item.played_ms(99.0) == pytest.approx(300)
    assert item.ends_at == pytest.approx(10.3)


def test_audio_that_was_flushed_before_its_turn_is_not_played_at_all():
    item = said(("One.", 1000))
    item.send(20.0, 1000)
    item.flush(10.0)
    assert item.played_ms(99.0) == 0
    assert item.ends_at == 10.0


def test_nothing_behind_a_cut_counts_as_played():
    item = said(("One.", 1000))
    item.send(0.0, 1000)
    item.cut(300, by_client=False)
    assert item.played_ms(0.2) == pytest.approx(200)
    assert item.played_ms(0.9) == 300


# -- cutting --------------------------------------------------------------------------------


def test_a_later_estimate_cuts_off_more_but_gives_nothing_back():
    item = said(("One.", 1000))
    assert item.cut(500, by_client=False)
    assert not item.cut(800, by_client=False)
    assert item.cut_ms == 500
    assert item.cut(300, by_client=False)
    assert item.cut_ms == 300


def test_a_clients_word_outweighs_every_estimate():
    item = said(("One.", 1000))
    item.cut(300, by_client=False)
    assert item.cut(700, by_client=True)
    assert not item.cut(100, by_client=False)
    assert item.cut_ms == 700
    assert item.cut(200, by_client=True)
    assert not item.cut(200, by_client=True)
    assert item.cut_ms == 200


def test_an_item_that_was_not_cut_was_heard():
    assert said(("One. ", 500), ("Two. ", 500)).heard() == "One. Two. "


def test_an_item_that_was_cut_at_its_end_was_heard():
    assert cut_at(said(("One. ", 500), ("Two. ", 500)), 1000).heard() == "One. Two. "


def test_of_an_item_that_was_cut_at_its_beginning_nothing_was_heard():
    assert cut_at(said(("One.", 500)), 0).heard() == ""
    assert cut_at(said(("…", 0), ("One.", 500)), 0).heard() == ""


def test_clauses_before_the_cut_were_heard_and_those_behind_were_not():
    item = said(("One. ", 500), ("Two. ", 500), ("Three.", 500))
    assert cut_at(item, 1000).heard() == "One. Two."


def test_text_without_a_sound_goes_along_with_what_was_heard_before_it():
    item = said(("One. ", 500), ("(laughs) ", 0), ("Two.", 500))
    assert cut_at(item, 500).heard() == "One. (laughs)"


@pytest.mark.parametrize(
    ("cut", "heard"),
    [
        (10, ""),
        (50, "One"),
        (250, "One"),
        (270, "One two"),
        (700, "One two three"),
        (820, "One two three four."),
    ],
)
def test_inside_a_clause_time_is_spread_over_the_letters(cut, heard):
    assert cut_at(said(("One two three four.", 1000)), cut).heard() == heard


def test_inside_a_clause_an_aligned_word_counts_once_some_of_it_was_heard():
    item = said(("One two three.", 1000))
    item.clauses[0].words = (WordTime("One ", 700), WordTime("two ", 800), WordTime("three.", 990))
    assert cut_at(item, 209).heard() == ""
    assert cut_at(item, 211, by_client=True).heard() == "One"
    assert cut_at(item, 729, by_client=True).heard() == "One"
    assert cut_at(item, 731, by_client=True).heard() == "One two"
    assert cut_at(item, 900, by_client=True).heard() == "One two three."


def test_words_out_of_order_never_skip_one():
    item = said(("One two three.", 1000))
    item.clauses[0].words = (WordTime("One ", 100), WordTime("two ", 900), WordTime("three.", 300))
    assert cut_at(item, 320).heard() == "One"


def test_a_clause_that_was_not_made_to_its_end_was_not_heard_to_its_end():
    text = "This sentence has only just begun."
    item = cut_at(said((text, 60), whole=False), 60)
    assert item.heard() == ""
    item = cut_at(said((text, int(6 * MS_PER_LETTER)), whole=False), 6 * MS_PER_LETTER)
    assert item.heard() == "This"


def test_a_clause_whose_length_is_told_needs_no_guess():
    text = "This sentence is said by a fast voice."
    item = SpokenItem("i", "r")
    item.generate(text, pcm(600), 1000)
    cut_at(item, 500)
    assert item.heard() == "This sentence is said"
    assert item.cut_clause() is None
    item.generate("", pcm(400))
    assert item.cut_clause() is item.clauses[0]
    assert cut_at(item, 1000, by_client=True).heard() == text
    assert item.cut_clause() is None


def test_a_told_length_is_that_of_its_own_clause():
    item = SpokenItem("i", "r")
    item.generate("One two. ", pcm(100), 300)
    item.generate("Three four.", pcm(300), 300)
    assert cut_at(item, 100).heard() == "One two."
    assert cut_at(item, 400, by_client=True).heard() == "One two. Three four."


def test_a_clause_that_was_not_made_to_its_end_is_measured_by_those_before_it():
    slow = cut_at(said(("abcdefghi ", 2000), ("abcd efgh ijkl", 550), whole=False), 2550)
    assert slow.heard() == "abcdefghi abcd"
    fast = cut_at(said(("abcdefghi ", 500), ("abcd efgh ijkl", 550), whole=False), 1050)
    assert fast.heard() == "abcdefghi abcd efgh"


def test_a_clause_of_about_the_expected_length_is_all_there():
    assert cut_at(said(("Hi.", 5000), whole=False), 5000).heard() == "Hi."
    text = "One two three four."
    nearly = int(len(text) * MS_PER_LETTER * 0.85)
    item = cut_at(said((text, nearly), whole=False), nearly)
    assert item.heard() == text
    assert cut_at(said((text, nearly), whole=False), nearly / 2).cut_clause() is not None


def test_nothing_before_a_clause_was_heard_of_it():
    assert words_before(Clause("One.", 500, 1000), 500, 1000) == ""


@given(
    clauses=st.lists(
        st.tuples(st.text("ab .", max_size=20), st.integers(0, 900)), min_size=1, max_size=5
    ),
    cuts=st.lists(st.floats(0, 5000), min_size=2, max_size=2),
    whole=st.booleans(),
)
def test_what_was_heard_begins_the_transcript_and_grows_with_the_cut(clauses, cuts, whole):
    item = said(*clauses, whole=whole)
    heard = []
    for cut in sorted(cuts):
        item.cut(cut, by_client=True)
        heard.append(item.heard())
    assert item.transcript.startswith(heard[1])
    assert heard[1].startswith(heard[0])


WORDS = st.lists(
    st.tuples(st.text("abc", min_size=1, max_size=9), st.integers(40, 900)), min_size=1, max_size=9
)


@given(words=WORDS, share=st.floats(0, 1), piece=st.integers(1, 900))
def test_aligned_words_are_kept_to_one_word_however_the_clause_came(words, share, piece):
    text = "".join(f"{word} " for word, _ in words)
    total = sum(ms for _, ms in words)
    item = SpokenItem("i", "r")
    for at in range(0, total, piece):
        item.generate("" if at else text, pcm(min(piece, total - at)), 0 if at else total)
    ends = [sum(ms for _, ms in words[: index + 1]) for index in range(len(words))]
    item.clauses[0].words = tuple(
        WordTime(f"{word} ", end) for (word, _), end in zip(words, ends, strict=True)
    )
    cut = share * total
    kept = len(cut_at(item, cut).heard().split())
    begun = sum(end - ms < cut for (_, ms), end in zip(words, ends, strict=True))
    whole = sum(end <= cut for end in ends)
    assert whole <= kept <= begun <= whole + 1


@given(
    letters=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    pace=st.integers(30, 120),
    share=st.floats(0, 1),
)
def test_an_even_voice_is_kept_to_one_word_without_its_words_being_aligned(letters, pace, share):
    text = " ".join("a" * count for count in letters)
    item = SpokenItem("i", "r")
    item.generate(text, pcm(len(text) * pace), len(text) * pace)
    cut = share * len(text) * pace
    kept = len(cut_at(item, cut).heard().split())
    ends = [(sum(letters[: index + 1]) + index) * pace for index in range(len(letters))]
    whole = sum(end <= cut for end in ends)
    assert whole <= kept <= whole + 1


# -- asking for words -----------------------------------------------------------------------


def test_the_clause_of_a_cut_is_asked_about_until_its_words_are_known():
    item = said(("One two. ", 500), ("Three four.", 500))
    assert item.cut_clause() is None
    item.cut(700, by_client=False)
    clause = item.cut_clause()
    assert clause is item.clauses[1]
    clause.words = (WordTime("Three ", 200), WordTime("four.", 500))
    assert item.cut_clause() is None


def test_a_clause_is_asked_about_once():
    item = cut_at(said(("One two.", 500)), 200)
    item.cut_clause().asked = True
    assert item.cut_clause() is None


def test_a_cut_between_clauses_asks_about_none():
    assert cut_at(said(("One. ", 500), ("Two.", 500)), 500).cut_clause() is None
    assert cut_at(said(("One. ", 500), ("Two.", 500)), 1000).cut_clause() is None


def test_a_clause_without_its_audio_can_not_be_asked_about():
    item = cut_at(said(("One two.", 500)), 200)
    item.forget_audio()
    assert item.cut_clause() is None


def test_a_clause_that_was_not_made_to_its_end_is_not_asked_about():
    assert cut_at(said(("One two three four.", 500), whole=False), 200).cut_clause() is None


# -- the listener's clock -------------------------------------------------------------------


def playing(*items):
    """A playback to which items of (name, ms) were sent at 0, all made and closed."""
    playback = Playback()
    for name, ms in items:
        item = playback.open(name, f"r-{name}", True)
        item.generate(f"{name}.", pcm(ms))
        item.whole = item.closed = True
        playback.sent(item, ms, 0.0)
    return playback


def test_items_play_one_after_the_other():
    playback = playing(("a", 1000), ("b", 1000))
    assert playback.end == 2.0
    assert playback.lead(0.5) == 1.5
    assert playback.lead(5.0) == 0.0
    assert playback.item("a").played_ms(1.5) == 1000
    assert playback.item("b").played_ms(1.5) == pytest.approx(500)


def test_what_is_heard_and_what_is_not_is_told_for_every_item():
    playback = playing(("a", 1000), ("b", 1000), ("c", 1000), ("d", 1000), ("e", 1000), ("f", 1000))
    assert [item.item_id for item in playback.unheard(0.5)] == ["a", "b", "c", "d", "e", "f"]
    assert [item.item_id for item in playback.unheard(4.5)] == ["e", "f"]
    assert playback.unheard(6.0) == []


def test_an_item_of_which_more_may_come_is_not_heard_to_its_end():
    playback = playing(("a", 1000))
    playback.item("a").whole = False
    assert playback.unheard(1.0) == [playback.item("a")]


def test_the_response_that_is_heard_is_known_and_when_that_changes():
    playback = playing(("a", 1000), ("b", 1000))
    assert playback.response_at(0.0) == "r-a"
    assert playback.response_at(1.0) == "r-b"
    assert playback.response_at(2.0) is None
    assert playback.next_edge(0.0) == 1.0
    assert playback.next_edge(1.0) == 2.0
    assert playback.next_edge(2.0) == math.inf


def test_a_flush_ends_what_is_heard():
    playback = playing(("a", 1000), ("b", 1000))
    playback.flush(0.5)
    assert playback.lead(0.5) == 0.0
    assert playback.response_at(0.6) is None
    assert playback.item("a").played_ms(9.0) == pytest.approx(500)
    assert playback.item("b").played_ms(9.0) == 0


def test_an_item_outside_the_conversation_plays_but_is_not_cut_or_found():
    playback = Playback()
    item = playback.open("x", "r", False)
    item.generate("One.", pcm(1000))
    playback.sent(item, 1000, 0.0)
    assert playback.unheard(0.5) == []
    assert playback.item("x") is None
    assert playback.response_at(0.5) == "r"


def test_a_deleted_item_plays_on_but_is_not_cut():
    playback = playing(("a", 1000))
    playback.forget("a")
    playback.forget("nothing")
    assert playback.item("a") is None
    assert playback.unheard(0.5) == []
    assert playback.lead(0.0) == 1.0


# -- memory ---------------------------------------------------------------------------------


def test_audio_is_let_go_of_some_time_after_it_was_heard():
    playback = Playback()
    item = playback.open("a", "r", True)
    for _ in range(4):
        item.generate("One. ", pcm(1000))
    playback.sent(item, 4000, 0.0)
    playback.tidy(1.0 + LINGER - 0.01)
    assert held(item) == 4000 * BYTES_PER_MS
    playback.tidy(1.0 + LINGER)
    assert held(item) == 3000 * BYTES_PER_MS


def test_when_an_item_is_over_nothing_of_its_audio_is_kept():
    playback = playing(("a", 1000))
    item = playback.item("a")
    playback.tidy(1.0 + LINGER - 0.01)
    assert held(item)
    playback.tidy(1.0 + LINGER)
    assert held(item) == 0
    assert playback.item("a") is item
    assert playback.unheard(0.0) == []


def test_an_item_that_may_go_on_stays():
    playback = playing(("a", 1000))
    playback.item("a").closed = False
    playback.tidy(100.0)
    assert playback.next_edge(0.5) == 1.0


def test_audio_that_was_never_sent_can_be_let_go_of_by_itself():
    item = said(("One. ", 500), ("Two. ", 500), ("Three.", 500))
    item.forget_audio(before_ms=0.0, after_ms=700)
    assert [bool(clause.pcm) for clause in item.clauses] == [True, True, False]


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["send", "new", "flush", "wait"]), st.floats(0, 3)), max_size=40
    )
)
def test_generated_sent_and_played_never_overtake_each_other(steps):
    playback, now = Playback(), 1.0
    items = [playback.open("0", "r", True)]
    for kind, amount in steps:
        if kind == "wait":
            now += amount
        elif kind == "flush":
            playback.flush(now)
        elif kind == "new":
            items[-1].whole = items[-1].closed = True
            items.append(playback.open(str(len(items)), "r", True))
        else:
            ms = int(amount * 1000)
            items[-1].generate("x", pcm(ms))
            playback.sent(items[-1], ms, now)
        playback.tidy(now)
        for item in items:
            assert item.generated_ms >= item.sent_ms >= item.played_ms(now) - 1e-6 >= -1e-6
        assert playback.end >= 0.0
        assert playback.next_edge(now) > now


# -- where playout is reported --------------------------------------------------------------


def reported(*items):
    """As `playing`, by a playout that reports."""
    playback = Playback(by_report=True)
    for name, ms in items:
        item = playback.open(name, f"r-{name}", True)
        item.generate(f"{name}.", pcm(ms))
        item.whole = item.closed = True
        playback.sent(item, ms, 0.0)
    return playback


def test_an_item_that_was_reported_of_plays_until_its_last_sample_was():
    playback = reported(("a", 1000))
    playback.report("a", 400.0, 0.5)
    assert playback.response_at(9.0) == "r-a"
    assert playback.end == math.inf
    assert playback.next_edge(9.0) == math.inf
    playback.report("a", 1000.0, 1.3)
    assert playback.response_at(1.3) is None
    assert playback.end == 1.3


def test_what_waits_behind_a_late_item_is_late_too():
    playback = reported(("a", 1000), ("b", 1000))
    playback.report("a", 400.0, 0.9)
    assert playback.lead(0.9) == pytest.approx(1.6)
    playback.report("a", 1000.0, 1.5)
    assert playback.response_at(1.6) == "r-b"
    assert playback.response_at(2.6) is None


def test_what_was_flushed_is_not_waited_for():
    playback = reported(("a", 1000))
    playback.report("a", 400.0, 0.4)
    playback.flush(0.4)
    assert playback.response_at(0.4) is None
    assert playback.lead(0.4) == 0.0
    assert playback.item("a").played_ms(9.0) == 400


def test_playout_that_reports_nothing_more_is_given_up_in_the_end():
    playback = reported(("a", 1000))
    playback.report("a", 400.0, 0.4)
    playback.tidy(5.0)
    assert playback.response_at(5.0) == "r-a"
    playback.tidy(20.0)
    assert playback.response_at(20.0) is None


def test_where_the_client_plays_out_a_report_moves_nothing_else():
    playback = playing(("a", 1000), ("b", 1000))
    playback.report("a", 400.0, 0.9)
    assert playback.end == 2.0
    assert playback.item("a").played_ms(0.9) == 400
    playback.report("nothing", 400.0, 0.9)
