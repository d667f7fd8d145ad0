"""Two hours of a Live session, in as long as its frames take."""

import gc
import itertools
import random
import sys
import tracemalloc
from collections import deque
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from duologue.engines.duplex import DuplexSpec, FrameHeard, FrameSpoken
from duologue.engines.engine import ResponseEnded, SpeechGenerated, TranscriptFinal, Usage
from duologue.sessions import live_events as live
from duologue.sessions.live_config import LiveConfig
from duologue.sessions.live_duplex import DuplexVoice, duplex_pace
from duologue.sessions.live_session import LiveSession
from duologue.sessions.live_voice import LivePace
from duologue.sessions.session_config import SessionLimits
from tests.live_bench import LiveBench

FRAMES = 7200
SPEC = DuplexSpec(frame_samples=24_000)
"""A second each: what is looked for is in the count of frames and in the clock."""
JITTER_S = 0.2
BEGAN = 50.0


def test_two_hours_of_a_model_neither_grow_nor_drift() -> None:
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


MINUTES = 120
FRAME_MS = 400
ANSWER_MS = 5000
TURN = f"One, two, three. {'x' * 40}"


class Talk(LiveBench):
    """Somebody asks once a minute and is answered; the microphone's packets come unevenly."""

    def __init__(self) -> None:
        limits = SessionLimits(max_duration=3 * 3600.0)
        super().__init__(limits=limits, pace=LivePace(FRAME_MS))
        self._rng = random.Random(1)
        self._began = self.now
        self.given_ms = 0
        self.most_held = 0

    def listen(self, ms: int, probability: float, piece_ms: int = 32) -> None:
        """The microphone goes on without a gap, each piece of it up to 20 ms late."""
        for _ in range(ms // piece_ms):
            self.given_ms += piece_ms
            comes = self._began + self.given_ms / 1000 + self._rng.uniform(0, 0.02)
            self.pass_time(comes - self.now)
            self.probability = probability
            samples = np.ones(16 * piece_ms, np.int16)
            self.session.hear(samples, samples, self.now)
            self.settle()

    def ask(self) -> tuple[int, int]:
        """A turn: where on the timeline it was said, and where it is written, in ms."""
        said = self.given_ms
        self.listen(1024, 0.9)
        utterance = self.core.listening._utterance
        assert utterance is not None
        self.listen(800, 0.0)
        final = TranscriptFinal(session="s", utterance=utterance.item_id, text=TURN, seconds=1.0)
        self.tell(final)
        [written] = self.all(live.InputTranscript)
        return said, written.start_ms

    def answer(self) -> int:
        """The model's: how many ms after it was made it is heard."""
        [request] = self.requests()
        made = self.session.place(self.now)
        where: Any = {"session": "s", "generation": request.generation}
        self.tell(SpeechGenerated(**where, pcm=b"\1\1" * (24 * ANSWER_MS), text="I see. " * 10))
        self.tell(
            ResponseEnded(**where, reason="completed", usage=Usage(input_tokens=5, output_tokens=3))
        )
        self.most_held = self.most_held or held_by(self)
        self.listen(ANSWER_MS + 1000, 0.0, 400)
        first = next(frame for frame in self.all(live.OutputAudio) if frame.samples.any())
        return int(first.start_ms - made)


def held_by(root: object) -> int:
    """Bytes of all that can be reached from it, but for code. To trace each allocation of as many
    frames would take minutes."""
    seen: set[int] = set()
    waiting: list[object] = [root]
    size = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, type | ModuleType | FunctionType):
            continue
        seen.add(id(one))
        size += sys.getsizeof(one)
        waiting += gc.get_referents(one)
        if isinstance(one, np.ndarray):
            waiting.append(one.base)
    return size


def test_two_hours_of_a_cascade_neither_grow_nor_drift() -> None:
    talk = Talk()
    frames = 0
    memory, input_drift, output_lag = [], [], []
    talk.listen(1024, 0.0)
    for minute in range(1, MINUTES + 1):
        said, written = talk.ask()
        input_drift.append(written - said)
        output_lag.append(talk.answer())
        talk.listen(60_000 * minute - talk.given_ms, 0.0, 400)
        assert abs(sum(talk.sounding()) * FRAME_MS - ANSWER_MS) <= FRAME_MS
        for frame in talk.all(live.OutputAudio):
            assert frame.start_ms == FRAME_MS * frames
            frames += 1
        assert talk.session.mixer.waiting_ms == 0
        talk.events.clear()
        talk.commands.clear()
        if minute in (MINUTES // 4, MINUTES):
            memory.append(held_by(talk))
    assert talk.session.closed is None
    # As much went out as came in, and neither came to lag behind.
    assert abs(frames * FRAME_MS - talk.given_ms) <= FRAME_MS
    assert max(input_drift) - min(input_drift) <= 32
    assert max(output_lag) <= FRAME_MS
    # The words of the conversation are kept, and nothing of its 14 MiB of answers an hour.
    assert talk.most_held > memory[0] + 48 * ANSWER_MS
    assert memory[1] - memory[0] < 2**18
