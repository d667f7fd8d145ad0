"""The conversation as messages, and what is left of it when it is too long."""

import pytest
from hypothesis import given, strategies as st

from duologue.engines.engine import (
    ImagePart,
    Message,
    TextPart,
    ToolInvocation,
    UtterancePart,
)
from duologue.sessions.errors import ProtocolError
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
from duologue.sessions.prompting import (
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    NO_OUTPUT,
    UTTERANCE_TOKENS,
    fitted,
    messages,
    tokens,
)
from duologue.sessions.session_config import Truncation

AUTO = Truncation()
DISABLED = Truncation("disabled")


def user(text, item_id="u"):
    return MessageItem(item_id, "user", (InputText(text),))


def heard(transcript, item_id="u"):
    return MessageItem(item_id, "user", (InputAudio(transcript),))


def assistant(text, item_id="a"):
    return MessageItem(item_id, "assistant", (OutputAudio(text),))


def call(call_id, status="completed"):
    return FunctionCallItem(f"f-{call_id}", call_id, "get", "{}", status)


def output(call_id, text):
    return FunctionOutputItem(f"o-{call_id}", call_id, text)


def said(message):
    return [part.text for part in message.parts]


# -- joining --------------------------------------------------------------------------------


def test_items_become_messages_in_their_order():
    history = [
        MessageItem("s", "system", (InputText("Be kind."),)),
        user("Hi"),
        MessageItem("t", "assistant", (OutputText("Hello."),)),
    ]
    assert messages(history) == (
        Message("system", (TextPart("Be kind."),)),
        Message("user", (TextPart("Hi"),)),
        Message("assistant", (TextPart("Hello."),)),
    )


def test_what_the_user_says_in_a_row_is_one_message():
    (message,) = messages([user("Where is "), heard(" the museum?"), user("Please.")])
    assert said(message) == ["Where is the museum? Please."]


def test_an_answer_that_nobody_heard_leaves_and_what_is_around_it_joins():
    history = [user("One"), assistant(""), assistant("  "), user("two")]
    assert messages(history) == (Message("user", (TextPart("One two"),)),)


def test_answers_and_instructions_in_a_row_stay_apart():
    history = [assistant("One."), assistant("Two."), user("x")]
    assert [m.role for m in messages(history)] == ["assistant", "assistant", "user"]


def test_words_that_are_not_known_yet_stand_as_their_utterance():
    (message,) = messages([user("Look:"), heard(None, "h"), user("Well?")])
    assert message.parts == (TextPart("Look:"), UtterancePart("h"), TextPart("Well?"))


def test_silence_and_empty_text_say_nothing():
    assert messages([heard(""), user(" "), MessageItem("e", "user", ())]) == ()


def test_pictures_keep_their_detail():
    item = MessageItem("i", "user", (InputText("What?"), InputImage("data:x", "low")))
    (message,) = messages([item])
    assert message.parts == (TextPart("What?"), ImagePart("data:x", "low"))


def test_a_turn_that_is_not_over_comes_last_and_joins():
    pending = UtterancePart("p", 16_000)
    assert messages([user("Hi")], pending)[-1].parts == (TextPart("Hi"), pending)
    assert messages([assistant("Hi")], pending)[-1] == Message("user", (pending,))


# -- tools ----------------------------------------------------------------------------------


def test_a_call_is_followed_by_its_output_wherever_that_stands():
    history = [user("x"), call("c"), assistant("Wait."), output("c", "42")]
    assert messages(history)[1:] == (
        Message("assistant", (), (ToolInvocation("c", "get", "{}"),)),
        Message("tool", (TextPart("42"),), (), "c"),
        Message("assistant", (TextPart("Wait."),)),
    )


def test_a_call_without_an_output_says_so():
    assert said(messages([call("c")])[1]) == [NO_OUTPUT]


def test_an_output_without_its_call_is_left_out():
    assert messages([output("c", "42")]) == ()


@pytest.mark.parametrize("status", ["incomplete", "in_progress"])
def test_a_call_that_was_not_finished_is_left_out_with_its_output(status):
    assert messages([call("c", status), output("c", "42")]) == ()


def test_of_two_outputs_the_later_one_counts():
    assert said(messages([call("c"), output("c", "1"), output("c", "2")])[1]) == ["2"]


# -- how much it is -------------------------------------------------------------------------


def test_every_kind_of_part_is_counted():
    plain = Message("user", (TextPart("x" * 30),))
    assert tokens(plain) == MESSAGE_TOKENS + 11
    rich = Message("user", (ImagePart("data:x"), UtterancePart("u")))
    assert tokens(rich) == MESSAGE_TOKENS + IMAGE_TOKENS + UTTERANCE_TOKENS
    asking = Message("assistant", (), (ToolInvocation("c", "get", "{}" * 13),))
    assert tokens(asking) > MESSAGE_TOKENS + 9


# -- retention ------------------------------------------------------------------------------


def turns(count, role="user", letters=60):
    """Messages of 27 tokens each, numbered."""
    return [Message(role, (TextPart(f"{n:03d}".ljust(letters, "x")),)) for n in range(count)]


def numbers(kept):
    return [int(message.parts[0].text[:3]) for message in kept]


def test_what_fits_stays_whole():
    history = turns(4)
    assert fitted(history, 4 * 27, AUTO) == tuple(history)
    assert fitted((), 0, AUTO) == ()


def test_the_oldest_messages_go_first_and_no_more_than_needed():
    assert numbers(fitted(turns(6), 4 * 27, AUTO)) == [2, 3, 4, 5]


def test_system_messages_stay():
    history = [*turns(1, "system"), *turns(6)]
    kept = fitted(history, 4 * 27, AUTO)
    assert [message.role for message in kept] == ["system", "user", "user", "user"]
    late = [*turns(6), *turns(1, "system")]
    assert [m.role for m in fitted(late, 2 * 27, AUTO)] == ["user", "system"]


def test_with_truncation_disabled_a_long_conversation_is_refused():
    assert fitted(turns(4), 4 * 27, DISABLED)
    with pytest.raises(ProtocolError) as caught:
        fitted(turns(5), 4 * 27, DISABLED)
    assert caught.value.code == "context_too_long"


def test_a_newest_message_that_is_too_long_is_refused():
    with pytest.raises(ProtocolError) as caught:
        fitted([*turns(2), *turns(1, letters=600)], 100, AUTO)
    assert caught.value.code == "context_too_long"


def test_instructions_that_leave_no_room_are_refused():
    with pytest.raises(ProtocolError):
        fitted((), -1, AUTO)


def test_a_client_may_set_the_limit_lower():
    assert len(fitted(turns(9), 10_000, Truncation("retention_ratio", 1.0, 4 * 27))) == 4
    assert len(fitted(turns(9), 4 * 27, Truncation("retention_ratio", 1.0, 10_000))) == 4


def test_with_a_ratio_more_is_dropped_at_once():
    half = Truncation("retention_ratio", 0.5)
    assert numbers(fitted(turns(9), 8 * 27, half)) == [5, 6, 7, 8]


def test_with_a_ratio_the_beginning_then_stays_for_longer():
    half = Truncation("retention_ratio", 0.5)
    begins = [numbers(fitted(turns(count), 8 * 27, half))[0] for count in range(9, 20)]
    assert begins == [5, 5, 5, 5, 5, 10, 10, 10, 10, 10, 15]


def test_with_a_ratio_of_nothing_the_newest_message_stays():
    assert numbers(fitted(turns(5), 4 * 27, Truncation("retention_ratio", 0.0))) == [4]


def ask_and_answer(text="x" * 60):
    return [
        Message("assistant", (), (ToolInvocation("c", "get", "{}"),)),
        Message("tool", (TextPart(text),), (), "c"),
    ]


def test_a_call_goes_together_with_its_output():
    history = [*ask_and_answer(), *turns(3)]
    kept = fitted(history, 4 * 27, AUTO)
    assert [message.role for message in kept] == ["user", "user", "user"]


def test_an_output_that_fits_only_without_its_call_is_refused():
    history = [*turns(2), *ask_and_answer("x" * 290)]
    assert tokens(history[-1]) <= 104 < tokens(history[-1]) + tokens(history[-2])
    with pytest.raises(ProtocolError):
        fitted(history, 104, AUTO)


MESSAGES = st.lists(
    st.one_of(
        st.integers(0, 300).map(lambda n: [Message("user", (TextPart("x" * n),))]),
        st.integers(0, 300).map(lambda n: [Message("assistant", (TextPart("x" * n),))]),
        st.integers(0, 300).map(lambda n: ask_and_answer("x" * n)),
        st.integers(0, 30).map(lambda n: [Message("system", (TextPart("x" * n),))]),
    ),
    max_size=12,
).map(lambda groups: [message for group in groups for message in group])


@given(history=MESSAGES, limit=st.integers(0, 500), ratio=st.floats(0, 1))
def test_what_is_kept_fits_is_newest_and_breaks_no_call(history, limit, ratio):
    try:
        kept = fitted(history, limit, Truncation("retention_ratio", ratio))
    except ProtocolError as error:
        assert error.code == "context_too_long"
        return
    assert sum(map(tokens, kept)) <= limit
    spoken = [message for message in history if message.role != "system"]
    left = [message for message in kept if message.role != "system"]
    assert left == spoken[len(spoken) - len(left) :]
    assert [m for m in kept if m.role == "system"] == [m for m in history if m.role == "system"]
    assert not left or left[0].role != "tool"
