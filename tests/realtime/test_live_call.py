"""What a fork of a Live session begins with."""

from types import SimpleNamespace
from typing import Any

from duologue.realtime.live_call import history_of
from duologue.sessions.items import InputAudio, InputText, MessageItem, OutputAudio


def conversation_of(*items: MessageItem) -> Any:
    return SimpleNamespace(session=SimpleNamespace(history=items))


def test_what_is_not_known_of_a_conversation_is_left_out_of_its_fork() -> None:
    typed = MessageItem("a", "user", (InputText("Hello."),))
    heard = MessageItem("b", "user", (InputAudio("Hello."),))
    said = MessageItem("c", "assistant", (OutputAudio("Good morning."),))
    unknown = MessageItem("d", "user", (InputAudio(None),))
    growing = MessageItem("e", "assistant", (OutputAudio("Good"),), "in_progress")
    assert history_of(conversation_of(typed, heard, said, unknown, growing)) == (typed, heard, said)


def test_of_a_conversation_of_nothing_nothing_is_left() -> None:
    assert history_of(conversation_of()) == ()
