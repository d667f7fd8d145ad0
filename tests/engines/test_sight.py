"""What a camera shows, as part of a prompt."""

import numpy as np
import pytest

from duologue.codecs.picture import encode_jpeg, frame_of
from duologue.engines.engine import Message, ResponseRequest, TextPart
from duologue.engines.sight import View, describe_colour, with_note

HELLO = Message("user", (TextPart("Hello"),))
REPLY = Message("assistant", (TextPart("Hi"),))
NOTE = TextPart("(note)")


def test_a_view_has_its_age():
    assert View("a cup", 4.0).note(5.25).endswith("1.2 seconds ago: a cup.)")
    assert "0.0 seconds" in View("a cup", 4.0).note(3.0)


@pytest.mark.parametrize(
    ("messages", "noted"),
    [
        ((HELLO,), (Message("user", (TextPart("Hello"), NOTE)),)),
        ((HELLO, REPLY), (Message("user", (TextPart("Hello"), NOTE)), REPLY)),
        ((REPLY,), (REPLY, Message("user", (NOTE,)))),
        ((), (Message("user", (NOTE,)),)),
    ],
)
def test_a_note_goes_behind_the_users_last_words(messages, noted):
    request = ResponseRequest(instructions="", messages=messages)
    assert with_note(request, "(note)").messages == noted


def test_a_picture_has_a_colour_and_a_size():
    pixels = np.full((32, 48, 3), (200, 40, 40), np.uint8)
    assert describe_colour(encode_jpeg(frame_of(pixels), 48)) == "red, 48 x 32 pixels"
    assert describe_colour(b"nothing") == "nothing that could be read"
