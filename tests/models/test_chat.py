from dataclasses import FrozenInstanceError

import pytest

from duologue.models.chat import ChatMessage


def test_a_message_cannot_be_changed() -> None:
    message = ChatMessage("user", "Hello.")
    with pytest.raises(FrozenInstanceError):
        message.text = "Bye."  # type: ignore[misc]


def test_messages_that_say_the_same_are_equal() -> None:
    assert ChatMessage("user", "Hello.") == ChatMessage("user", "Hello.")
