from hypothesis import given, strategies as st

from duologue.models.partials import StableTranscript


def deltas(*decodes: str, final: str) -> list[str]:
    transcript = StableTranscript()
    return [*[transcript.update(text) for text in decodes], transcript.finish(final)]


def test_a_word_is_emitted_once_two_decodes_agree_on_it() -> None:
    assert deltas("Good", "Good morning", "Good morning how", final="Good morning how are you") == [
        "",
        "Good",
        " morning",
        " how are you",
    ]


def test_punctuation_waits_for_the_word_behind_it() -> None:
    got = deltas("Good morning.", "Good morning.", "Good morning, how", "Good morning, how are",
                 final="Good morning, how are you?")  # fmt: skip
    assert got == ["", "Good morning", "", ", how", " are you?"]


def test_a_first_decode_emits_nothing() -> None:
    assert StableTranscript().update("Hello there") == ""


def test_a_word_that_only_one_decode_heard_is_not_emitted() -> None:
    assert deltas("I scream", "Ice cream", "Ice cream is", final="Ice cream is good") == [
        "", "", "Ice cream", " is good",
    ]  # fmt: skip


def test_an_empty_decode_takes_nothing_back() -> None:
    transcript = StableTranscript()
    transcript.update("one two")
    assert transcript.update("one two three") == "one two"
    assert transcript.update("") == ""
    assert transcript.finish("") == ""
    assert transcript.emitted == "one two"


def test_without_partials_the_final_text_is_one_delta() -> None:
    assert deltas(final="Yes, please.") == ["Yes, please."]


def test_a_word_that_changes_after_all_leaves_the_rest_in_place() -> None:
    got = deltas("the cat sat on", "the cat sat on", final="the bat sat on the mat")
    assert got == ["", "the cat sat on", " the mat"]


def test_a_word_that_vanishes_leaves_the_rest_in_place() -> None:
    got = deltas("so the cat sat", "so the cat sat", final="The cat sat down.")
    assert got == ["", "so the cat sat", " down."]


def test_a_final_text_that_shares_nothing_is_kept_apart() -> None:
    assert deltas("one two", "one two", final="Completely other words here") == [
        "", "one two", " words here",
    ]  # fmt: skip


WORDS = st.lists(st.sampled_from("the a cat sat. on, mat Mat 3.5 — yes! no".split()), max_size=8)
TEXTS = WORDS.map(" ".join)


@given(st.lists(TEXTS, max_size=6), TEXTS)
def test_what_was_emitted_is_never_taken_back(decodes: list[str], final: str) -> None:
    transcript = StableTranscript()
    joined = ""
    for text in decodes:
        joined += transcript.update(text)
        assert transcript.emitted == joined
    joined += transcript.finish(final)
    assert transcript.emitted == joined


@given(TEXTS, st.lists(st.integers(0, 40), max_size=6))
def test_a_recogniser_that_only_adds_words_is_shown_exactly(text: str, ends: list[int]) -> None:
    words = text.split(" ")
    transcript = StableTranscript()
    for end in sorted(ends):
        transcript.update(" ".join(words[:end]))
    transcript.finish(text)
    assert transcript.emitted == text
