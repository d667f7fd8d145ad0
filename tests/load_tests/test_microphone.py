from collections.abc import Awaitable, Callable

import anyio
import numpy as np
import pytest

from load_tests.microphone import FRAME, Clip, Microphone, frames_of, room_noise
from load_tests.recordings import RATE, Recording, Samples


def clip(seconds: float) -> Clip:
    samples = np.full(int(seconds * RATE), 1_000, np.int16)
    samples[: RATE // 10] = 0
    return Clip.of(Recording("a", samples, (RATE // 10, len(samples) - 1)))


def test_sound_becomes_a_frame_for_every_20_ms() -> None:
    frames = frames_of(np.full(3 * FRAME + 1, 5_000, np.int16))
    assert [len(frame) for frame in frames] == [FRAME] * 4
    assert abs(int(frames[0].mean()) - 5_000) < 20
    assert abs(int(frames[3][1:].mean())) < 20


def test_a_clip_for_a_microphone_of_another_rate_lasts_as_long() -> None:
    recording = Recording("a", np.full(RATE // 10, 5_000, np.int16), (0, 1))
    frames = Clip.of(recording, 48_000).frames
    assert [len(frame) for frame in frames] == [960] * 5
    assert abs(int(frames[2].mean()) - 5_000) < 20


def test_the_room_is_quiet_but_not_silent() -> None:
    noise = room_noise(RATE).astype(float)
    level = 20 * np.log10(np.sqrt((noise**2).mean()) / 32768)
    assert level == pytest.approx(-66, abs=0.5)


def test_loud_sound_is_clipped_not_wrapped() -> None:
    [frame] = frames_of(np.full(FRAME, 32_767, np.int16))
    assert frame.min() > 32_000


def test_a_sample_is_spoken_before_the_frame_that_carries_it_is_sent() -> None:
    microphone = Microphone()
    utterance = microphone.say(clip(0.5))
    microphone.next_frame(1, due=100.0)
    assert utterance.spoken_at(0) == pytest.approx(99.98)
    assert utterance.first_voiced_at == pytest.approx(100.08)
    assert utterance.last_voiced_at == pytest.approx(99.98 + 0.5, abs=0.001)


def test_clips_are_said_one_after_the_other_without_a_break() -> None:
    microphone = Microphone()
    first, second = clip(0.06), clip(0.04)
    microphone.say(first)
    later = microphone.say(second)
    sent = [microphone.next_frame(n, due=n * 0.02) for n in range(1, 6)]
    assert [id(frame) for frame in sent] == [id(f) for f in first.frames + second.frames]
    assert later.started == pytest.approx(0.06)


def test_who_falls_silent_is_followed_by_the_room() -> None:
    microphone = Microphone()
    microphone.say(clip(1.0))
    microphone.next_frame(1, due=0.02)
    microphone.fall_silent()
    assert np.abs(microphone.next_frame(2, due=0.04)).max() < 200


def test_frames_are_sent_until_the_microphone_is_stopped() -> None:
    sent: list[Samples] = []

    async def listen() -> None:
        microphone = Microphone()
        async with anyio.create_task_group() as tasks:

            async def send(frame: Samples) -> None:
                sent.append(frame)
                if len(sent) == 3:
                    tasks.cancel_scope.cancel()

            sender: Callable[[Samples], Awaitable[None]] = send
            await microphone.run(sender)
        assert len(microphone.late) == 3

    anyio.run(listen)
    assert len(sent) == 3
