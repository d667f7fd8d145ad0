"""What a camera shows, as part of a prompt.

It goes behind the user's last words: what stands before it stays as it was, so that a prompt that
was warmed stays warm.
"""

from dataclasses import dataclass

import msgspec
import numpy as np

from duologue.codecs.media import MalformedDataError
from duologue.codecs.picture import decode_picture
from duologue.engines.engine import ImagePart, Message, ResponseRequest, TextPart

_COLOURS = {
    "black": (20, 20, 20),
    "grey": (128, 128, 128),
    "white": (235, 235, 235),
    "red": (200, 40, 40),
    "green": (40, 180, 60),
    "blue": (40, 60, 200),
    "yellow": (220, 210, 50),
}


@dataclass(frozen=True, slots=True)
class View:
    """What was in view at a time (seconds of the caller's clock)."""

    description: str
    taken: float

    def note(self, now: float) -> str:
        """The view as the prompt has it, with its age."""
        age = max(0.0, now - self.taken)
        return f"(You see through the user's camera, {age:.1f} seconds ago: {self.description}.)"


def with_note(request: ResponseRequest, *parts: str | ImagePart) -> ResponseRequest:
    """The request with more of the last thing that the user said; with a message of its own at
    the end where the user has said nothing."""
    added = tuple(TextPart(part) if isinstance(part, str) else part for part in parts)
    messages = list(request.messages)
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "user":
            message = messages[index]
            messages[index] = msgspec.structs.replace(message, parts=(*message.parts, *added))
            break
    else:
        messages.append(Message("user", added))
    return msgspec.structs.replace(request, messages=tuple(messages))


def describe_colour(picture: bytes) -> str:
    """What can be said of a picture without a model: its size and the colour of most of it."""
    try:
        pixels = decode_picture(picture)
    except MalformedDataError:
        return "nothing that could be read"
    mean = pixels.reshape(-1, 3).mean(axis=0)
    nearest = min(_COLOURS, key=lambda name: float(np.abs(mean - _COLOURS[name]).sum()))
    return f"{nearest}, {pixels.shape[1]} x {pixels.shape[0]} pixels"
