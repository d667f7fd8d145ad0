import base64
import json
from collections.abc import Awaitable, Callable

import anyio
import numpy as np
import pytest

from load_tests.microphone import FRAME, Clip, Microphone, append_events, room_noise
from load_tests.recordings import RATE, Recording


def clip(seconds: float) -> Clip:
    samples = np.full(int(seconds * RATE), 1_000, np.int16)
    samples[: RATE // 10] = 0
    return Clip.of(Recording("a", samples, (RATE // 10, len(samples) - 1)))


def heard(event: str) -> np.ndarray:
    fields = json.loads(event)
    assert fields["type"] == "input_audio_buffer.append"
    return np.frombuffer(base64.b64decode(fields["audio"]), "<i2")


def test_sound_becomes_an_append_for_every_20_ms() -> None:
    events = append_events(np.full(3 * FRAME + 1, 5_000, np.int16))
    frames = [heard(event) for event in events]
    assert [len(frame) for frame in frames] == [FRAME] * 4
    assert abs(int(frames[0].mean()) - 5_000) < 20
    assert abs(int(frames[3][1:].mean())) < 20


def test_the_room_is_quiet_but_not_silent() -> None:
    noise = room_noise(RATE).astype(float)
    level = 20 * np.log10(np.sqrt((noise**2).mean()) / 32768)
    assert level == pytest.approx(-66, abs=0.5)


def test_loud_sound_is_clipped_not_wrapped() -> None:
    [event] = append_events(np.full(FRAME, 32_767, np.int16))
    assert heard(event).min() > 32_000


def test_a_sample_is_spoken_before_the_frame_that_carries_it_is_sent() -> None:
    microphone = Microphone()
    utterance = microphone.say(clip(0.5))
    microphone.next_event(1, due=100.0)
    assert utterance.spoken_at(0) == pytest.approx(99.98)
    assert utterance.first_voiced_at == pytest.approx(100.08)
    assert utterance.last_voiced_at == pytest.approx(99.98 + 0.5, abs=0.001)


def test_clips_are_said_one_after_the_other_without_a_break() -> None:
    microphone = Microphone()
    first, second = clip(0.06), clip(0.04)
    microphone.say(first)
    later = microphone.say(second)
    sent = [microphone.next_event(n, due=n * 0.02) for n in range(1, 6)]
    assert sent == first.events + second.events
    assert later.started == pytest.approx(0.06)


def test_who_falls_silent_is_followed_by_the_room() -> None:
    microphone = Microphone()
    microphone.say(clip(1.0))
    microphone.next_event(1, due=0.02)
    microphone.fall_silent()
    assert np.abs(heard(microphone.next_event(2, due=0.04))).max() < 200


def test_frames_are_sent_until_the_microphone_is_stopped() -> None:
    sent: list[str] = []

    async def listen() -> None:
        microphone = Microphone()
        async with anyio.create_task_group() as tasks:

            async def send(event: str) -> None:
                sent.append(event)
                if len(sent) == 3:
                    tasks.cancel_scope.cancel()

            sender: Callable[[str], Awaitable[None]] = send
            await microphone.run(sender)
        assert len(microphone.late) == 3

    anyio.run(listen)
    assert len(sent) == 3
