from hypothesis import given, strategies as st

from duologue.engines.context_window import letters, only_older_gone, shortened, turns
from duologue.engines.engine import Message, TextPart, ToolInvocation


def say(role: str, text: str) -> Message:
    return Message(role, (TextPart(text),))  # type: ignore[arg-type]


CALL = Message("assistant", (), (ToolInvocation("call_1", "look", "{}"),))
RESULT = Message("tool", (TextPart("found"),), (), "call_1")
HISTORY = [
    say("system", "note"),
    say("user", "one"),
    say("assistant", "two"),
    say("user", "three"),
    CALL,
    RESULT,
    say("assistant", "four"),
    say("user", "five"),
]


def test_a_turn_begins_with_the_user_and_keeps_calls_with_their_results() -> None:
    assert [len(turn) for turn in turns(HISTORY)] == [1, 2, 4, 1]


def test_the_oldest_turn_goes_first_and_system_messages_stay() -> None:
    assert shortened(HISTORY, 0.1) == (HISTORY[0], *HISTORY[3:])


def test_as_much_goes_as_was_asked_for_but_never_the_last_turn() -> None:
    assert shortened(HISTORY, 1.0) == (HISTORY[0], HISTORY[-1])


def test_nothing_can_be_left_out_of_a_single_turn() -> None:
    assert shortened([say("system", "x"), say("user", "y")], 0.5) is None


def test_calls_count_as_letters() -> None:
    assert letters(CALL) > letters(Message("assistant"))


def test_a_history_that_lost_its_beginning_is_known_again() -> None:
    users = HISTORY[1:]
    assert only_older_gone(users, users[2:])
    assert only_older_gone(users, [*users[2:], say("assistant", "six"), say("user", "seven")])
    assert only_older_gone(users, [*users[2:-1], say("user", "five, said otherwise")])


def test_a_history_that_only_grew_or_changed_is_not() -> None:
    users = HISTORY[1:]
    assert not only_older_gone(users, users)
    assert not only_older_gone(users, [*users, say("user", "more")])
    assert not only_older_gone(users, [users[2], users[6], users[3]])
    assert not only_older_gone([], users)
    assert not only_older_gone(users, [say("system", "new"), *users[2:]])


MESSAGES = st.lists(
    st.builds(say, st.sampled_from(["system", "user", "assistant"]), st.text(max_size=30)),
    min_size=1,
    max_size=12,
)


@given(MESSAGES, st.floats(0, 1))
def test_shortening_ends_and_keeps_order_and_the_last_turn(
    history: list[Message], excess: float
) -> None:
    kept: tuple[Message, ...] | None = tuple(history)
    while kept is not None:
        last = kept
        kept = shortened(last, excess)
        if kept is not None:
            assert len(kept) < len(last)
            assert turns(kept)[-1] == turns(last)[-1]
            rest = iter(last)
            assert all(message in rest for message in kept)
