"""How many calls one core carries, 50 packets a second each way: stock aiortc against ours.

The server is pinned to one core and echoes; a cheap client (packets prepared once) on another core
sends, and watches when each packet comes back. Calls are added until packets are late.
"""

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import numpy as np
from aiortc import RTCCertificate

from duologue.codecs.opus import OpusEncoder, OpusSettings
from duologue.codecs.rtp import RtpPacket, build_rtp
from duologue.realtime.rtc_media import MediaTransport
from load_tests.clock import now
from load_tests.media_peer import (
    FRAME_SECONDS,
    FRAME_TICKS,
    PAYLOAD_TYPE,
    Description,
    MediaPeer,
    stay_on_loopback,
)
from load_tests.recordings import RATE, Samples
from load_tests.report import Json, percentile

LATE_SECONDS = 0.02
"""A packet is late when it comes back a whole packet after it should have: it would miss its turn
at a listener that adapts to the call's usual delay."""
TOLERATED = 0.001
"""Share of late or missing packets up to which none counts as late: other work on the machine."""
FOREIGN_PERCENT = 3.0
"""A trial that fails while others take more of the core than this says nothing, and is repeated."""
REPEATS = 4
WARM_UP = 2.0
PHASES = 20

WAYS = {"aiortc": 10, "aiortc_fixed": 16, "duologue": 48, "duologue_full": 32}
"""With how many calls each begins; where that is too many, with half of it."""


@dataclass(slots=True)
class Trial:
    """One number of calls, measured."""

    sessions: int
    received: int
    expected: int
    late: int
    lateness_ms: list[float]
    cpu_percent: float
    foreign_percent: float = 0.0
    """What others took of the server's core meanwhile."""

    @property
    def disturbed(self) -> bool:
        return self.foreign_percent > FOREIGN_PERCENT

    @property
    def good(self) -> bool:
        bad = self.late + max(0, self.expected - self.received)
        return bad <= TOLERATED * self.expected

    @property
    def cpu_us_per_pair(self) -> float:
        """Processor time of the server for one packet in and one out."""
        return self.cpu_percent * 1e4 / (self.sessions / FRAME_SECONDS)


@dataclass(slots=True)
class Call:
    """The client's side of one: a counter out, arrivals in."""

    peer: MediaPeer
    phase: int
    sequence: int = field(default_factory=lambda: random.randrange(1 << 15))
    timestamp: int = field(default_factory=lambda: random.randrange(1 << 31))
    ssrc: int = field(default_factory=lambda: random.randrange(1, 1 << 32))
    sent: int = 0
    arrivals: list[tuple[int, float]] = field(default_factory=list)

    def send(self, payloads: Sequence[bytes]) -> None:
        self.sent += 1
        packet = RtpPacket(
            PAYLOAD_TYPE,
            False,
            self.sequence + self.sent,
            self.timestamp + self.sent * FRAME_TICKS,
            self.ssrc,
            payloads[self.sent % len(payloads)],
        )
        dtls = self.peer.dtls
        assert isinstance(dtls, MediaTransport)
        dtls.send_media(build_rtp(packet))

    def receive(self, packet: RtpPacket) -> None:
        self.arrivals.append((packet.timestamp, now()))

    def lateness(self) -> list[float]:
        """Seconds behind the fastest of the packets, for each, by their own timestamps."""
        if not self.arrivals:
            return []
        first = self.arrivals[0][0]
        transits = [
            arrival - ((timestamp - first + (1 << 31)) % (1 << 32) - (1 << 31)) / 48_000
            for timestamp, arrival in self.arrivals
        ]
        least = min(transits)
        return [transit - least for transit in transits]


class Client:
    """Many calls to one server."""

    def __init__(self, server: "EchoProcess", payloads: Sequence[bytes]) -> None:
        self._server = server
        self._payloads = payloads
        self._certificate = RTCCertificate.generateCertificate()
        self.calls: list[Call] = []

    async def add(self, count: int) -> None:
        """Connect so many more, a few at a time."""
        few = anyio.CapacityLimiter(8)

        async def one() -> None:
            async with few:
                await self._add()

        async with anyio.create_task_group() as tasks:
            for _ in range(count):
                tasks.start_soon(one)

    async def _add(self) -> None:
        peer = MediaPeer(MediaTransport, self._certificate, leads=True)
        answer = await self._server.ask(await peer.gather())
        await peer.connect(answer)
        call = Call(peer, len(self.calls) % PHASES)
        assert isinstance(peer.dtls, MediaTransport)
        peer.dtls.listen([PAYLOAD_TYPE], call.receive)
        self.calls.append(call)

    async def send_for_ever(self) -> None:
        """Each call's packet every 20 ms, the calls spread over the time between."""
        step, start = 0, now()
        while True:
            for call in self.calls:
                if call.phase == step % PHASES:
                    call.send(self._payloads)
            step += 1
            await anyio.sleep(max(0.0, start + step * FRAME_SECONDS / PHASES - now()))

    async def measure(self, seconds: float) -> Trial:
        await anyio.sleep(WARM_UP)
        before, busy = await self._server.cpu_seconds(), busy_seconds(self._server.core)
        for call in self.calls:
            call.arrivals = []
        begin = now()
        await anyio.sleep(seconds)
        elapsed = now() - begin
        lateness = [seconds for call in self.calls for seconds in call.lateness()]
        busy = busy_seconds(self._server.core) - busy
        spent = await self._server.cpu_seconds() - before
        expected = int(len(self.calls) * (elapsed / FRAME_SECONDS - 1))
        return Trial(
            sessions=len(self.calls),
            received=len(lateness),
            expected=expected,
            late=sum(seconds > LATE_SECONDS for seconds in lateness),
            lateness_ms=[seconds * 1000 for seconds in lateness],
            cpu_percent=100 * spent / elapsed,
            foreign_percent=max(0.0, 100 * (busy - spent) / elapsed),
        )

    async def close(self) -> None:
        async with anyio.create_task_group() as tasks:
            for call in self.calls:
                tasks.start_soon(call.peer.close)


class EchoProcess:
    """The server in a process of its own, asked in JSON lines."""

    def __init__(self, process: subprocess.Popen[bytes], core: int) -> None:
        self.core = core
        self._process = process
        self._lock = anyio.Lock()

    async def ask(self, message: Description) -> Description:
        async with self._lock:
            return await anyio.to_thread.run_sync(self._ask, message)

    async def cpu_seconds(self) -> float:
        return float(str((await self.ask({"usage": 1}))["cpu_seconds"]))

    def _ask(self, message: Description) -> Description:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        self._process.stdin.flush()
        answer: Description = msgspec.json.decode(self._process.stdout.readline())
        return answer


@contextmanager
def echoing(way: str, core: int) -> Iterator[EchoProcess]:
    """One of :data:`WAYS`, pinned to a core."""
    command = [sys.executable, "-m", "load_tests.echo_server", way, str(core)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    try:
        yield EchoProcess(process, core)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def climb(
    way: str, core: int, payloads: Sequence[bytes], first: int, seconds: float
) -> tuple[list[Trial], int]:
    """Add calls, a tenth at a time, until packets are late twice. The trials and the most calls
    that none was late with."""
    trials: list[Trial] = []
    most = 0
    with echoing(way, core) as server:
        client = Client(server, payloads)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.send_for_ever)
            wanted = first
            while True:
                await client.add(wanted - len(client.calls))
                for _ in range(REPEATS):
                    trial = await client.measure(seconds)
                    trials.append(trial)
                    print(row(way, trial), flush=True)
                    if trial.good or not trial.disturbed:
                        break
                if not trial.good:
                    break
                most = trial.sessions
                wanted = most + max(1, most // 10)
            tasks.cancel_scope.cancel()
        await client.close()
    return trials, most


def busy_seconds(core: int) -> float:
    """How long a core has been anything but idle, taken away by a hypervisor included."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name == f"cpu{core}":
            user, nice, system, _, _, hard, soft, stolen = map(int, ticks[:8])
            return (user + nice + system + hard + soft + stolen) / os.sysconf("SC_CLK_TCK")
    return 0.0


def row(way: str, trial: Trial) -> str:
    late = 100 * trial.late / max(1, trial.received)
    missing = 100 * (1 - trial.received / trial.expected)
    p99 = percentile(trial.lateness_ms, 0.99) if trial.lateness_ms else float("nan")
    return (
        f"  {way:<14} {trial.sessions:>4} calls  core {trial.cpu_percent:5.1f} %  "
        f"{trial.cpu_us_per_pair:6.0f} us a pair  late {late:6.3f} %  missing {missing:6.3f} %  "
        f"p99 {p99:5.1f} ms{'  (others had the core)' if trial.disturbed else ''}"
    )


def voiced(samples: Samples) -> Samples:
    """Speech without its pauses: every packet is worth encoding."""
    size = int(RATE * FRAME_SECONDS)
    frames = samples[: len(samples) // size * size].reshape(-1, size)
    power = np.square(frames.astype(np.float64)).mean(axis=1)
    return frames[power > power.max() / 1000].reshape(-1)


def prepare(samples: Samples) -> list[bytes]:
    """Opus packets of what a browser would send: 32 kb/s, with redundancy."""
    encoder = OpusEncoder(RATE, OpusSettings(bit_rate=32_000, complexity=9, dtx=False))
    size = int(RATE * FRAME_SECONDS)
    return [
        encoder.encode(samples[at : at + size]) for at in range(0, len(samples) - size + 1, size)
    ]


async def compare(
    samples: Samples, ways: Sequence[str], seconds: float, first: int | None
) -> tuple[dict[str, Json], list[str]]:
    """Run the ways one after another on the same core."""
    stay_on_loopback()
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        return {}, ["two cores are needed: one for the server, one for the client"]
    core = allowed[-1]
    os.sched_setaffinity(0, set(allowed) - {core})
    payloads = prepare(voiced(samples))
    figures: dict[str, Json] = {"core": core, "late_ms": LATE_SECONDS * 1000}
    counts: dict[str, int] = {}
    disturbed: list[str] = []
    try:
        for way in ways:
            start, counts[way] = first or WAYS[way], 0
            while not counts[way] and start:
                trials, counts[way] = await climb(way, core, payloads, start, seconds)
                start //= 2
            figures[f"{way}_sessions"] = counts[way]
            good = [trial for trial in trials if trial.good]
            figures[f"{way}_us_per_pair"] = round(good[-1].cpu_us_per_pair) if good else None
            if any(trial.disturbed for trial in trials):
                disturbed.append(f"{way}: other processes used the server's core meanwhile")
    finally:
        os.sched_setaffinity(0, set(allowed))
    if counts.get("aiortc"):
        figures["ratio"] = round(counts.get("duologue", 0) / counts["aiortc"], 2)
    if counts.get("aiortc_fixed"):
        figures["ratio_fixed"] = round(counts.get("duologue", 0) / counts["aiortc_fixed"], 2)
    problems = [f"{way}: late from the first trial on" for way, most in counts.items() if not most]
    return figures, problems + disturbed
