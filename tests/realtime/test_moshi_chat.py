"""A client of Moshi's that sends more, or more often, than anybody who talks."""

import math
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from duologue.codecs.ogg_opus import OggOpusWriter
from duologue.engines.duplex import DuplexSpec, FrameHeard, FrameSpoken, ResetDuplex
from duologue.realtime import moshi_chat
from duologue.realtime.moshi_chat import CONTROLS, MESSAGES, MoshiChat
from duologue.realtime.moshi_wire import MOST_AHEAD, Lead

pytestmark = pytest.mark.anyio

SPEC = DuplexSpec(sample_rate=24_000, frame_samples=1920)
SILENCE = b"\xf8\xff\xfe"
"""20 ms."""


class Socket:
    """Says what it was given, then goes."""

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages

    async def receive(self) -> dict[str, Any]:
        await anyio.lowlevel.checkpoint()
        if not self._messages:
            return {"type": "websocket.disconnect"}
        return {"type": "websocket.receive", "bytes": self._messages.pop(0)}

    async def send_bytes(self, message: bytes) -> None:
        await anyio.lowlevel.checkpoint()


class Stream:
    """A model that says nothing."""

    def __init__(self) -> None:
        self.given: list[Any] = []

    def send(self, command: Any) -> None:
        self.given.append(command)

    async def receive(self) -> Any:
        await anyio.sleep_forever()


class Watch:
    """Stands still, but for what is slept."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await anyio.lowlevel.checkpoint()


async def chat(
    messages: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> tuple[tuple[int, str], Stream, Watch]:
    watch, stream = Watch(), Stream()
    monkeypatch.setattr(moshi_chat.anyio, "sleep", watch.sleep)
    talking: Any = MoshiChat(Socket(messages), stream, SPEC, watch)  # type: ignore[arg-type]
    return await talking.talk(), stream, watch


def sound(seconds: int) -> list[bytes]:
    """A message for each second."""
    pages = OggOpusWriter(24_000, serial=1)
    head = b"\x01" + pages.begin()
    return [
        head,
        *(b"\x01" + b"".join(pages.packet(SILENCE) for _ in range(50)) for _ in range(seconds)),
    ]


def test_sound_that_comes_as_it_is_said_is_never_ahead() -> None:
    lead = Lead(0.0)
    assert max(lead.add(0.08, count * 0.08) for count in range(1000)) == pytest.approx(0.08)
    assert lead.add(5.0, 80.0) < 5.1
    assert lead.add(1.0, 1000.0) == 1.0


async def test_sound_far_ahead_of_real_time_ends_the_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (code, reason), stream, _ = await chat(sound(60), monkeypatch)
    assert (code, "ahead of real time" in reason) == (1008, True)
    frames = [one for one in stream.given if isinstance(one, FrameHeard)]
    assert len(frames) == math.floor(MOST_AHEAD / 0.08)


async def test_a_recording_that_is_sent_at_once_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    farewell, stream, _ = await chat(sound(15), monkeypatch)
    assert farewell[0] == 1000
    assert len(stream.given) > 180


async def test_control_bytes_are_read_no_faster_than_they_may_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rate, burst = CONTROLS
    _, stream, watch = await chat([b"\x03\x03"] * 120, monkeypatch)
    assert stream.given == [ResetDuplex(session="")] * 120
    assert watch.time == pytest.approx((120 - burst) / rate, abs=1 / rate)


async def test_messages_without_meaning_are_read_no_faster_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rate, burst = MESSAGES
    _, _, watch = await chat([b"\x02hello"] * 2000, monkeypatch)
    assert watch.time == pytest.approx((2000 - burst) / rate, abs=1 / rate)


async def test_a_client_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deaf:
        sent = 0

        async def receive(self) -> dict[str, Any]:
            await anyio.sleep_forever()
            raise AssertionError

        async def send_bytes(self, message: bytes) -> None:
            self.sent += 1
            if self.sent == 3:
                await anyio.sleep_forever()

    class Speaking(Stream):
        async def receive(self) -> Any:
            await anyio.lowlevel.checkpoint()
            return FrameSpoken(session="", tick=0, pcm=bytes(3840))

    monkeypatch.setattr(moshi_chat, "STALL_SECONDS", 0.05)
    socket = Deaf()
    talking = MoshiChat(socket, Speaking(), SPEC)  # type: ignore[arg-type]
    assert await talking.talk() == (moshi_chat.SLOW, "too slow to read")
    assert socket.sent == 3, "the handshake, a frame, and the one that it did not take"
