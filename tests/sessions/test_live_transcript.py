"""Words as they are heard."""

from duologue.sessions.live_transcript import HeardTimeline, SpokenWords


def heard(words: SpokenWords, upto: float, step: int = 40) -> list[str]:
    pieces = []
    for played in range(step, int(upto) + 1, step):
        fragment = words.advance("a", played, 1000 + played - step, 1000 + played)
        if fragment is not None:
            pieces.append(fragment.text)
    return pieces


def test_words_come_as_their_sound_leaves_and_add_up() -> None:
    words = SpokenWords()
    words.say("a", "One two three.", 0)
    words.sent("a", 1000)
    words.say("a", " Four.", 1000)
    words.sent("a", 400)
    words.finish("a")
    pieces = heard(words, 1400)
    assert "".join(pieces) == "One two three. Four."
    assert len(pieces) > 2


def test_of_what_was_cut_off_nothing_is_written() -> None:
    words = SpokenWords()
    words.say("a", "One two three four five six.", 0)
    words.sent("a", 2000)
    words.finish("a")
    before = "".join(heard(words, 1000))
    words.forget()
    assert "One two three four five six.".startswith(before)
    assert "six" not in before
    assert words.advance("a", 2000, 0, 40) is None


def test_pieces_lie_one_after_the_other() -> None:
    words = SpokenWords()
    words.say("a", "One two three four five six seven eight.", 0)
    words.sent("a", 3000)
    words.finish("a")
    last = 0
    for played in range(40, 3001, 40):
        fragment = words.advance("a", played, played - 40, played)
        if fragment is not None:
            assert last <= fragment.start_ms < fragment.end_ms
            last = fragment.end_ms


def test_an_unknown_item_says_nothing() -> None:
    assert SpokenWords().advance("x", 10, 0, 40) is None


def test_input_without_pauses_lies_without_gaps_however_it_arrives() -> None:
    timeline = HeardTimeline()
    for now in (100, 220, 290, 410):
        timeline.hear(100, now)
    assert timeline.place(250) == 250


def test_after_a_pause_input_lies_where_it_came() -> None:
    timeline = HeardTimeline()
    timeline.hear(100, 100)
    timeline.hear(100, 2000)
    assert timeline.place(50) == 50
    assert timeline.place(150) == 1950
