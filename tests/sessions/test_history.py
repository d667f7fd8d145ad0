"""Items in order, within bounds."""

import pytest
from hypothesis import given, strategies as st

from duologue.sessions.errors import ProtocolError
from duologue.sessions.history import ROOT, History, text_size
from duologue.sessions.items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputAudio,
    InputImage,
    InputText,
    MessageItem,
    OutputAudio,
    OutputText,
)


def item(item_id, text="x"):
    return MessageItem(item_id, "user", (InputText(text),))


def holding(*ids, max_items=10, max_text=100):
    history = History(max_items, max_text)
    for item_id in ids:
        history.add(item(item_id))
    return history


def order(history):
    return [item.id for item in history]


def refused(call, *what, **more):
    with pytest.raises(ProtocolError) as caught:
        call(*what, **more)
    return caught.value


def test_items_go_to_the_end_the_beginning_or_behind_another():
    history = holding("b")
    history.add(item("d"))
    history.add(item("a"), ROOT)
    history.add(item("c"), "b")
    assert order(history) == ["a", "b", "c", "d"]
    assert (len(history), history.last_id) == (4, "d")


def test_an_empty_conversation_has_no_last_item():
    assert holding().last_id is None
    assert holding().get("a") is None


def test_each_item_knows_the_one_before_it():
    history = holding("a", "b")
    assert history.before("a") is None
    assert history.before("b") == "a"


def test_an_id_is_taken_once():
    error = refused(holding("a").add, item("a"))
    assert (error.code, error.param) == ("item_create_duplicate_item_id", "item.id")


def test_an_item_can_not_follow_one_that_is_not_there():
    history = holding("a")
    error = refused(history.add, item("b"), "nowhere")
    assert error.code == "item_create_invalid_previous_item_id"
    assert "b" not in history and history.version == 1


def test_items_and_text_are_bounded():
    history = holding("a", "b", max_items=2)
    assert refused(history.add, item("c")).code == "item_create_limit_reached"
    history = holding("a", max_text=5)
    assert refused(history.add, item("b", "hello")).code == "item_create_limit_reached"
    history.add(item("b", "hell"))


def test_what_is_said_is_never_refused():
    history = holding("a", max_items=1)
    history.add(item("b"), bounded=False)
    assert len(history) == 2


def test_deleting_makes_room():
    history = holding("a", "b", max_items=2)
    history.delete("a")
    history.add(item("c"))
    assert order(history) == ["b", "c"]
    assert refused(history.delete, "a").code == "item_delete_invalid_item_id"


def test_a_newer_state_takes_the_place_of_the_older():
    history = holding("a", "b", max_text=10)
    history.replace(item("a", "longer"))
    assert order(history) == ["a", "b"]
    assert history.get("a") == item("a", "longer")
    assert refused(history.add, item("c", "1234")).code == "item_create_limit_reached"


def test_a_deleted_item_stays_deleted():
    history = holding("a")
    history.delete("a")
    history.replace(item("a", "again"))
    assert "a" not in history


def test_the_version_grows_with_every_change_and_with_nothing_else():
    history = holding("a")
    assert history.version == 1
    history.replace(item("a"))
    history.replace(item("nothing"))
    assert history.version == 1
    history.replace(item("a", "y"))
    history.delete("a")
    assert history.version == 3


def test_a_transcript_fills_in_what_was_said():
    history = History(10, 100)
    said = (InputText("see"), InputAudio(None), InputAudio("known"))
    history.add(MessageItem("a", "user", said))
    history.transcribed("a", "words")
    assert history.get("a").content == (
        InputText("see"),
        InputAudio("words"),
        InputAudio("known"),
    )


def test_a_transcript_of_what_is_not_there_or_no_message_changes_nothing():
    history = History(10, 100)
    history.add(FunctionOutputItem("f", "c", "out"))
    history.transcribed("f", "words")
    history.transcribed("gone", "words")
    assert history.version == 1


@pytest.mark.parametrize(
    ("thing", "size"),
    [
        (MessageItem("m", "user", (InputText("abc"), InputImage("data:"))), 8),
        (MessageItem("m", "user", (InputAudio(None), InputAudio("abc"))), 3),
        (MessageItem("m", "assistant", (OutputText("abc"), OutputAudio("de"))), 5),
        (FunctionCallItem("f", "c", "get", "{}"), 5),
        (FunctionOutputItem("o", "c", "out"), 3),
    ],
)
def test_the_text_of_every_kind_of_item_is_counted(thing, size):
    assert text_size(thing) == size


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "delete", "replace", "transcribed"]),
        st.sampled_from("abcd"),
        st.text("x", max_size=9),
        st.sampled_from([None, ROOT, "a", "b"]),
    ),
    max_size=40,
)


@given(steps=STEPS)
def test_what_it_holds_is_what_it_counts(steps):
    history = History(3, 20)
    for kind, item_id, text, previous in steps:
        try:
            match kind:
                case "add":
                    history.add(item(item_id, text), previous)
                case "delete":
                    history.delete(item_id)
                case "replace":
                    history.replace(MessageItem(item_id, "user", (InputAudio(None),)))
                case _:
                    history.transcribed(item_id, text)
        except ProtocolError:
            continue
        assert len(set(order(history))) == len(history) <= 3
        for entry in history:
            assert history.get(entry.id) is entry
    room = 20 - sum(map(text_size, history))
    history.add(item("filler", "x" * max(0, room)), bounded=False)
    assert refused(history.add, item("more", "x")).code == "item_create_limit_reached"
