"""A frame into the socket to a frame out of it, with many frame-locked sessions at once.

The scripted model says what it hears, a frame late. Frames are told apart by how loud they are, so
what was lost on the way is known, and what it took is that of the frame that came back, less the
period by which it is late.
"""

import math
from collections import deque
from dataclasses import dataclass, field

import anyio
import httpx
import numpy as np
from numpy.typing import NDArray

from duologue.codecs.ogg_opus import OggOpusReader, OggOpusWriter
from duologue.codecs.opus import OpusDecoder, OpusEncoder, OpusSettings
from load_tests.binary_socket import BinarySocket, SocketClosed, frame_of, open_binary
from load_tests.clock import now
from load_tests.report import Json, percentile, spread
from load_tests.server import Server

RATE = 24_000
FRAME = 1920
FRAME_SECONDS = FRAME / RATE
PACKET = 480
LEVELS = 8
"""How many frames in a row are told apart."""

QUIETEST, STEP = 500.0, 1.5
"""Peak of the quietest, and the factor from each to the next."""

SETTLE = 1.0
"""Seconds at the beginning that are not counted."""

LAST_SECONDS = 1.0
"""How long the last frames may take to come back; then they are lost."""

TRANSPORT_MS = 15.0
"""What sockets, Opus and two processes may add to a tick and its period."""


@dataclass(slots=True)
class Talker:
    """One session: when its frames went, and how long each took to come back."""

    number: int
    sent: deque[tuple[int, float]] = field(default_factory=deque)
    took: list[float] = field(default_factory=list)
    frames: int = 0
    _heard: bool = False
    _back: anyio.Event = field(default_factory=anyio.Event)
    lost: int = 0
    """Frames that did not come back."""
    silent: int = 0
    """Frames that came back for none of ours: the model was fed silence. What it says before our
    first one comes back is none of them."""

    async def talk(self, socket: BinarySocket, frames: list[bytes], start: float) -> None:
        """Each frame in its time, which never drifts; until the last has come back."""
        for index, frame in enumerate(frames):
            await anyio.sleep(max(0.0, start + index * FRAME_SECONDS - now()))
            self.sent.append((index % LEVELS, now()))
            self.frames += 1
            await socket.send(frame)
        self._back = anyio.Event()
        with anyio.move_on_after(LAST_SECONDS):
            while self.sent:
                await self._back.wait()
        self.lost += len(self.sent)

    async def listen(self, socket: BinarySocket, from_time: float) -> None:
        pages, decoder = OggOpusReader(), OpusDecoder(RATE)
        while True:
            for message in await socket.receive():
                if message[0] != 1:
                    continue
                came = now()
                packets = [decoder.decode(packet) for packet in pages.feed(message[1:])]
                sent = self._matched(level_of(np.concatenate(packets)))
                if sent is not None and sent >= from_time:
                    self.took.append(1000 * (came - sent - FRAME_SECONDS))

    def _matched(self, level: int | None) -> float | None:
        """When the frame of this level was sent."""
        if level is None or all(level != one for one, _ in self.sent):
            self.silent += self._heard
            return None
        self._heard = True
        while True:
            one, sent = self.sent.popleft()
            if one == level:
                if not self.sent:
                    self._back.set()
                return sent
            self.lost += 1


def level_of(samples: NDArray[np.int16]) -> int | None:
    """Which level the middle of a frame has; ``None`` for silence."""
    middle = samples[len(samples) // 2 :][:PACKET].astype(np.float64)
    peak = math.sqrt(2 * float(np.mean(middle**2))) if len(middle) else 0.0
    if peak < QUIETEST / 2:
        return None
    return max(0, min(LEVELS - 1, round(math.log(peak / QUIETEST, STEP))))


def spoken(seconds: float) -> list[bytes]:
    """A tone, as the messages of Moshi's own client in their frames.

    Without DTX, to which a tone is noise: it would leave out some of the frames.
    """
    encoder, pages = OpusEncoder(RATE, OpusSettings(dtx=False)), OggOpusWriter(RATE, serial=1)
    times = np.arange(int(seconds / FRAME_SECONDS) * FRAME) / RATE
    peaks = QUIETEST * STEP ** (np.arange(len(times)) // FRAME % LEVELS)
    sound = (peaks * np.sin(2 * np.pi * 330 * times)).astype(np.int16)
    messages: list[bytes] = []
    for start in range(0, len(sound), FRAME):
        message = b"\x01" + (b"" if messages else pages.begin())
        for packet in range(start, start + FRAME, PACKET):
            message += pages.packet(encoder.encode(sound[packet : packet + PACKET]))
        messages.append(frame_of(message))
    return messages


async def run_frames(
    server: Server, sessions: int, seconds: float
) -> tuple[dict[str, Json], list[str]]:
    """Talk on all of them at once, their frames spread over a period."""
    frames = spoken(seconds)
    talkers = [Talker(number) for number in range(sessions)]
    problems: list[str] = []
    ready = 0
    begin = anyio.Event()
    start = 0.0

    async def run(talker: Talker) -> None:
        nonlocal ready
        try:
            async with open_binary(f"{server.url}/api/chat", server.key) as socket:
                await socket.receive()
                ready += 1
                if ready == sessions:
                    everybody.set()
                await begin.wait()
                own = start + talker.number * FRAME_SECONDS / sessions
                async with anyio.create_task_group() as group:
                    group.start_soon(talker.listen, socket, start + SETTLE)
                    await talker.talk(socket, frames, own)
                    group.cancel_scope.cancel()
        except* SocketClosed as errors:
            problems.append(f"session {talker.number}: {errors.exceptions[0]}")

    usage = server.usage()
    everybody = anyio.Event()
    async with anyio.create_task_group() as group:
        for talker in talkers:
            group.start_soon(run, talker)
        with anyio.move_on_after(60):
            await everybody.wait()
        start = now() + 0.2
        begin.set()
    after = server.usage()
    took = [value for talker in talkers for value in talker.took]
    tick_ms = await _tick_ms(server)
    limit = 1000 * FRAME_SECONDS + tick_ms + TRANSPORT_MS
    p95 = percentile(took, 0.95) if took else None
    if p95 is None or p95 > limit:
        problems.append(f"p95 is {p95} ms, and may be {limit:.1f}")
    figures: dict[str, Json] = {
        "sessions": sessions,
        "frames": sum(talker.frames for talker in talkers),
        "frame_ms": spread(took),
        "limit_ms": round(limit, 1),
        "tick_p50_ms": round(tick_ms, 2),
        "frames_lost": sum(talker.lost for talker in talkers),
        "frames_of_silence": sum(talker.silent for talker in talkers),
    }
    if usage is not None and after is not None:
        figures["cores_of_server"] = round((after.cpu_seconds - usage.cpu_seconds) / seconds, 2)
    return figures, problems


async def _tick_ms(server: Server) -> float:
    """The median tick, as the server's own figures tell it; 0 where they don't."""
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    async with httpx.AsyncClient(trust_env=False, headers=headers) as client:
        text = (await client.get(f"{server.url}/metrics")).text
    values = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("duologue_worker_tick_median_seconds{")
    ]
    return 1000 * max(values, default=0.0)
