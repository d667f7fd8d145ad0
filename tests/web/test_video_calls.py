"""Calls with pictures, as callers meet them."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import msgspec
import pytest
from aiortc import RTCSessionDescription

from duologue.codecs.video_pattern import read_pattern
from duologue.engines.engine import ResponseRequest, TextPart
from duologue.engines.script import Clause, Reply
from duologue.realtime.ice_agent import IceSettings
from duologue.realtime.rtc_peer import PeerSettings
from duologue.realtime.video_receiver import CameraSettings
from tests.caller import Caller, Camera, calling

pytestmark = pytest.mark.anyio

OpenHouse = Callable[..., AbstractAsyncContextManager[Any]]

HOME = IceSettings(addresses=("127.0.0.1",))
QUICK = PeerSettings(HOME, camera=CameraSettings(rate=20.0))
RED, BLUE = (200, 40, 40), (40, 60, 200)


def prompt_text(request: ResponseRequest) -> str:
    return " ".join(
        part.text
        for message in request.messages
        for part in message.parts
        if isinstance(part, TextPart)
    )


async def asked(caller: Caller) -> str:
    """The prompt that a question comes to."""
    count = len(caller.all("response.done"))
    caller.ask("Repeat the prompt as JSON. What do you see?")
    done = await caller.event("response.done", count + 1)
    text = done["response"]["output"][0]["content"][0]["transcript"]
    return prompt_text(msgspec.json.decode(text, type=ResponseRequest))


async def seen(caller: Caller, word: str) -> str:
    """The prompt, once the camera's picture in it is of this kind."""
    for _ in range(60):
        prompt = await asked(caller)
        if word in prompt:
            return prompt
    raise AssertionError(f"{word!r} never came: {prompt}")


@pytest.mark.parametrize("codec", ["video/VP8", "video/H264"])
async def test_what_the_camera_shows_is_in_the_prompt(open_house: OpenHouse, codec: str) -> None:
    camera = Camera(RED)
    async with open_house(peers=QUICK) as house, house.http() as http:
        async with calling(camera=camera, codec=codec) as caller:
            response = await caller.dial(http)
            name = codec.removeprefix("video/")
            assert f"{name}/90000" in response.text
            prompt = await seen(caller, "red, 320 x 240 pixels")
            assert "seconds ago" in prompt
            camera.colour, camera.size = BLUE, (160, 120)
            await seen(caller, "blue, 160 x 120 pixels")


async def test_a_camera_that_stops_leaves_the_prompt(open_house: OpenHouse) -> None:
    camera = Camera(RED)
    async with open_house(peers=QUICK) as house, house.http() as http:
        async with calling(camera=camera) as caller:
            await caller.dial(http)
            await seen(caller, "red")
            camera.still = True
            while "camera" in await asked(caller):
                pass
            camera.move()
            await seen(caller, "red")


async def test_without_a_camera_nothing_is_said_of_one(open_house: OpenHouse) -> None:
    async with open_house(peers=QUICK) as house, house.http() as http, calling() as caller:
        await caller.dial(http)
        assert "camera" not in await asked(caller)


@pytest.mark.parametrize("why", ["blind", "off"])
async def test_a_camera_that_nobody_looks_at_is_not_sent(open_house: OpenHouse, why: str) -> None:
    peers = PeerSettings(HOME, camera=CameraSettings(rate=0)) if why == "off" else QUICK
    async with open_house(peers=peers, sees=why != "blind") as house, house.http() as http:
        async with calling(camera=Camera(RED)) as caller:
            response = await caller.dial(http)
            video = response.text.partition("m=video")[2]
            assert "a=inactive" in video
            assert "camera" not in await asked(caller)


# -- pictures of the model's ----------------------------------------------------------------

RATE = 10
SPEECH = Reply(
    clauses=(Clause("Look at this. ", 1000), Clause("And at that.", 1000)), first_ms=0, pace=0
)


def numbers(caller: Caller) -> list[int]:
    """What the pictures that came say of themselves."""
    return [read_pattern(frame.to_ndarray(format="gray8")) for _, frame in caller.pictures]


@pytest.mark.parametrize("codec", ["video/VP8", "video/H264"])
async def test_an_answers_pictures_are_seen_in_time_with_its_speech(
    open_house: OpenHouse, codec: str
) -> None:
    async with open_house(peers=QUICK, picture_rate=RATE, replies=(SPEECH,)) as house:
        async with house.http() as http, calling(screen=True, codec=codec) as caller:
            response = await caller.dial(http)
            assert "a=sendonly" in response.text.partition("m=video")[2]
            caller.ask("Hello")
            await caller.event("output_audio_buffer.stopped")
            await caller.until(lambda: bool(caller.pictures) and len(numbers(caller)) >= 4)
            shown = numbers(caller)
            assert shown == sorted(shown)
            assert set(shown) <= set(range(20))
            assert len(set(shown)) >= 4
            # Timestamps are of the clock of the sound, and skip where that does.
            skipped = 0.02 * house.service.calls.pacer.skipped
            first = caller.pictures[0][1]
            for (_, frame), number in zip(caller.pictures, shown, strict=True):
                apart = float((frame.pts - first.pts) * frame.time_base)
                assert apart == pytest.approx((number - shown[0]) / RATE, abs=0.02 + skipped)


async def test_an_interruption_ends_the_pictures(open_house: OpenHouse) -> None:
    long = Reply(clauses=(Clause("On and on. ", 8000),), first_ms=0, pace=0)
    async with open_house(peers=QUICK, picture_rate=RATE, replies=(long,)) as house:
        async with house.http() as http, calling(screen=True) as caller:
            await caller.dial(http)
            caller.ask("Hello")
            await caller.until(lambda: len(caller.pictures) > 3)
            caller.send("response.cancel")
            caller.send("output_audio_buffer.clear")
            await caller.event("output_audio_buffer.cleared")
            last = max(numbers(caller))
            caller.ask("Again")
            await caller.event("output_audio_buffer.started", 2)
            await caller.until(lambda: 0 < numbers(caller)[-1] < last)
            assert max(numbers(caller)) < last + 15


async def test_a_client_that_shows_nothing_is_sent_no_pictures(open_house: OpenHouse) -> None:
    async with open_house(peers=QUICK, picture_rate=RATE, replies=(SPEECH,)) as house:
        async with house.http() as http, calling() as caller:
            await caller.dial(http)
            caller.ask("Hello")
            await caller.event("output_audio_buffer.stopped")
            assert not caller.pictures


def told(caller: Caller) -> list[str]:
    """What a Live session's answers say."""
    events = [event["event"] for event in caller.all("response.event")]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    return [event["item"]["content"][0]["text"] for event in done]


async def test_what_a_live_sessions_camera_shows_is_in_the_prompt(open_house: OpenHouse) -> None:
    async with open_house(peers=QUICK) as house, house.http() as http:
        async with calling(camera=Camera(RED)) as caller:
            body = {
                "session": {
                    "model": "m",
                    "delegation": {"type": "responses", "responses": {"model": "m"}},
                },
                "transport": {"type": "webrtc", "sdp": await caller.offer()},
            }
            made = (await http.post("/v1/live/sessions", json=body)).json()
            answer = RTCSessionDescription(made["transport"]["sdp"], "answer")
            assert "a=inactive" not in answer.sdp.partition("m=video")[2]
            await caller.connection.setRemoteDescription(answer)
            await caller.event("session.started")
            question = {"role": "user", "content": "Repeat the prompt as JSON. What do you see?"}
            for count in range(60):
                caller.send("response.item.create", item=question)
                caller.send("response.create")
                await caller.until(lambda asked=count: len(told(caller)) > asked)
                if "red, 320 x 240 pixels" in told(caller)[count]:
                    return
            raise AssertionError("no picture came")
