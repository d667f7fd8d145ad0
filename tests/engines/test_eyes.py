"""What a session sees."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import numpy as np
import pytest

from duologue.engines.engine import ImagePart, Message, ResponseRequest, See, TextPart
from duologue.engines.eyes import ELSEWHERE, UNREADABLE, Eyes, Gaze
from duologue.engines.pulse import Pulse

pytestmark = pytest.mark.anyio

PICTURES = Path(__file__).parent.parent / "data" / "pictures"
CUP = (PICTURES / "coffee.jpg").read_bytes()
FACE = (PICTURES / "astronaut.jpg").read_bytes()
CUP_URL = f"data:image/jpeg;base64,{base64.b64encode(CUP).decode()}"


class Describer:
    """Tells of a picture's size, when it is let."""

    def __init__(self) -> None:
        self.seen = 0
        self.blind = False
        self.may: Callable[[], Any] = lambda: None

    def describe(self, pixels: np.ndarray) -> str:
        self.may()
        self.seen += 1
        if self.blind:
            raise RuntimeError("blind")
        return f"{pixels.shape[1]} pixels"


class Sight:
    def __init__(self, *, sees: bool = False) -> None:
        self.describer = Describer()
        self.loaded = 0
        self.now = 10.0
        self.gaze = None if sees else Gaze(self.load, Pulse())
        self.eyes = Eyes(self.gaze, lambda: self.now)

    def load(self) -> Describer:
        self.loaded += 1
        return self.describer

    async def look(self, *pictures: bytes) -> None:
        async with anyio.create_task_group() as tasks:
            for picture in pictures:
                self.eyes.see(See(session="s", jpeg=picture), tasks)

    async def prompt(self, *parts: TextPart | ImagePart) -> str:
        shown = await self.eyes.shown(asking(*parts))
        return texts(shown)


def asking(*parts: TextPart | ImagePart) -> ResponseRequest:
    said = parts or (TextPart("What do you see?"),)
    return ResponseRequest(instructions="", messages=(Message("user", said),))


def texts(request: ResponseRequest) -> str:
    return " ".join(
        part.text if isinstance(part, TextPart) else "PICTURE"
        for message in request.messages
        for part in message.parts
    )


async def test_without_a_camera_the_request_stays_and_nothing_is_loaded() -> None:
    at = Sight()
    assert await at.eyes.shown(asking()) == asking()
    assert at.loaded == 0


async def test_what_is_in_view_stands_behind_the_users_words_with_its_age() -> None:
    at = Sight()
    await at.look(CUP)
    at.now += 1.5
    assert await at.prompt() == (
        "What do you see? (You see through the user's camera, 1.5 seconds ago: 512 pixels.)"
    )
    assert at.loaded == 1


async def test_of_several_pictures_the_newest_is_looked_at() -> None:
    at = Sight()
    await at.look(FACE, FACE, FACE, CUP)
    assert at.describer.seen == 1
    await at.look(FACE)
    assert at.describer.seen == 2


async def test_a_camera_that_is_off_is_not_spoken_of() -> None:
    at = Sight()
    await at.look(CUP)
    await at.look(b"")
    assert await at.prompt() == "What do you see?"


async def test_a_camera_that_goes_off_while_it_is_looked_at_is_not_spoken_of() -> None:
    at = Sight()
    await at.look(CUP, b"")
    assert await at.prompt() == "What do you see?"


async def test_an_answer_waits_for_the_first_picture() -> None:
    at = Sight()
    let = anyio.Event()
    at.describer.may = lambda: anyio.from_thread.run(let.wait)
    prompts: list[str] = []

    async def ask() -> None:
        prompts.append(await at.prompt())

    async with anyio.create_task_group() as tasks:
        at.eyes.see(See(session="s", jpeg=CUP), tasks)
        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        let.set()
    assert "512 pixels" in prompts[0]


@pytest.mark.parametrize("broken", ["picture", "model"])
async def test_what_can_not_be_looked_at_breaks_nothing(broken: str) -> None:
    at = Sight()
    at.describer.blind = broken == "model"
    await at.look(b"\xff\xd8\xffnothing" if broken == "picture" else CUP)
    assert await at.prompt() == "What do you see?"
    at.describer.blind = False
    await at.look(CUP)
    assert "512 pixels" in await at.prompt()


async def test_a_picture_in_a_message_is_put_into_words_once() -> None:
    at = Sight()
    part = ImagePart(CUP_URL)
    for _ in range(2):
        words = await at.prompt(part, TextPart("What is it?"))
        assert words == "(The user shows a picture of 512 pixels.) What is it?"
    assert at.describer.seen == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://example.org/a.png", ELSEWHERE),
        ("data:image/png;base64,!!!", UNREADABLE),
        (f"data:image/png;base64,{base64.b64encode(b'#EXTM3U').decode()}", UNREADABLE),
    ],
)
async def test_the_model_is_told_of_pictures_that_can_not_be_shown(url: str, words: str) -> None:
    assert await Sight().prompt(ImagePart(url)) == words


async def test_a_prompt_is_warmed_up_to_a_picture_that_is_not_known_yet() -> None:
    at = Sight()
    request = asking(TextPart("Look:"), ImagePart(CUP_URL))
    assert at.eyes.known(request).messages == ()
    shown = await at.eyes.shown(request)
    assert at.eyes.known(request) == shown


async def test_a_model_that_sees_gets_the_newest_picture_itself() -> None:
    at = Sight(sees=True)
    assert await at.prompt(ImagePart(CUP_URL)) == "PICTURE"
    await at.look(FACE, CUP)
    shown = await at.eyes.shown(asking())
    assert texts(shown).startswith("What do you see? (You see through the user's camera, 0.0")
    assert shown.messages[-1].parts[-1] == ImagePart(CUP_URL)
    await at.look(b"")
    assert await at.eyes.shown(asking()) == asking()
