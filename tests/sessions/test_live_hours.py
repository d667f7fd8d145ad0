"""Two hours of a Live session with a frame-locked model, in as long as its frames take."""

import gc
import itertools
import random
import tracemalloc
from collections import deque
from typing import Any

import numpy as np

from duologue.engines.duplex import DuplexSpec, FrameHeard, FrameSpoken
from duologue.sessions import live_events as live
from duologue.sessions.live_config import LiveConfig
from duologue.sessions.live_duplex import DuplexVoice, duplex_pace
from duologue.sessions.live_session import LiveSession

FRAMES = 7200
SPEC = DuplexSpec(frame_samples=24_000)
"""A second each: what is looked for is in the count of frames and in the clock."""
JITTER_S = 0.2
BEGAN = 50.0


def test_two_hours_neither_grow_nor_drift() -> None:
    rng, ids = random.Random(1), itertools.count()
    sent: deque[Any] = deque(maxlen=1)
    said: list[live.OutputAudio] = []
    session = LiveSession(
        LiveConfig(model="m"),
        duplex_pace(SPEC),
        BEGAN,
        BEGAN + 2 * FRAMES,
        lambda prefix: f"{prefix}_{next(ids)}",
    )
    session.voice = DuplexVoice(session, SPEC, sent.append)
    frames, sounding, words, memory = 0, 0, 0, []
    tracemalloc.start()
    try:
        for second in range(FRAMES):
            comes = BEGAN + second + rng.uniform(0, JITTER_S)
            while session.next_deadline() < comes:
                session.handle_timer(session.next_deadline())
            session.hear(np.full(24_000, 500, np.int16), None, comes)
            pcm = np.full(24_000, 100 + second, "<i2").tobytes()
            session.voice.told(FrameSpoken(session="", tick=second, pcm=pcm, text=" w"), comes)
            session.handle_timer(comes)
            events = session.take_events()
            said = [event for event in events if isinstance(event, live.OutputAudio)] or said
            for event in events:
                if isinstance(event, live.OutputAudio):
                    assert event.start_ms == 1000 * frames
                    frames += 1
                    sounding += bool(event.samples.any())
                words += isinstance(event, live.OutputTranscript)
            if second in (FRAMES // 4, FRAMES - 1):
                gc.collect()
                memory.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    heard = sent[-1]
    assert isinstance(heard, FrameHeard)
    # The model has heard every frame, and the one with which its clock begins.
    assert heard.sequence == FRAMES
    assert words == FRAMES
    # At most a frame is early, and none has piled up.
    assert FRAMES - 1 <= frames <= FRAMES + 1
    assert sounding >= FRAMES - 2
    assert session.mixer.waiting_ms <= SPEC.frame_ms
    assert session.late_frames <= 1
    assert int(said[-1].samples[0]) >= 100 + FRAMES - 3
    assert memory[1] - memory[0] < 2**18
