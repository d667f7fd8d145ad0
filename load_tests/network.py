"""What is left of speech after a bad network: one line for each loss and jitter.

Callers speak recordings in the way of browsers, with redundancy in band, to a server that only
recognises them. Others converse with a scripted one and interrupt it. What a model with a steady
beat would hear of the same packets is computed beside.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import anyio
import anyio.to_thread
import httpx
import numpy as np

from load_tests.client import Client, ClientError
from load_tests.impairment import Impairment
from load_tests.lossy_speech import hear_steadily, packets_of
from load_tests.loudspeaker import RATE as SPOKEN_RATE
from load_tests.microphone import Clip, Microphone
from load_tests.recordings import Recording
from load_tests.report import Json, percentile
from load_tests.scenario import Outcome, Plan, converse
from load_tests.server import Server
from load_tests.words import WordErrors, word_errors

SPEAKERS = 4
"""Calls at once that speak recordings."""
TALKERS = 2
PATIENCE = 60.0
_LOSS = re.compile(r"(\d+(?:\.\d+)?)(?:x(\d+(?:\.\d+)?))?")


@dataclass(slots=True)
class Cell:
    """One network, measured."""

    network: Impairment
    understood: dict[str, str] = field(default_factory=dict)
    """By the name of the recording."""
    counted: dict[str, float] = field(default_factory=dict)
    stops: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.network.name

    def errors(self, said: dict[str, str]) -> WordErrors:
        """Against the words of recordings."""
        none = WordErrors(0, 0)
        pairs = ((text, self.understood.get(name, "")) for name, text in said.items())
        return sum((word_errors(text, heard) for text, heard in pairs), none)

    @property
    def lost(self) -> float:
        """Percent of the packets that were sent to the server."""
        lost = self.counted.get("packets_lost", 0.0)
        return 100 * lost / max(1.0, lost + self.counted.get("packets_received", 0.0))

    def percent(self, what: str) -> float:
        """Of the sound that the server heard."""
        sound = self.counted.get("audio_seconds", 0.0)
        return 100 * self.counted.get(what, 0.0) / sound if sound else 0.0


def parse_loss(text: str) -> tuple[float, float]:
    """``5`` or ``10x3``: percent, and the mean losses in a row. Raises ValueError."""
    match = _LOSS.fullmatch(text)
    if match is None:
        raise ValueError(f"a loss is a percentage, or as 10x3 with the length of bursts: {text!r}")
    return float(match[1]), float(match[2] or 1)


async def run_network(
    listener: Server,
    talker: Server,
    plan: Plan,
    recordings: Sequence[Recording],
    networks: Sequence[Impairment],
    seed: int,
) -> tuple[dict[str, Json], list[str]]:
    """``recordings`` without a text are held against what is understood of them in the first
    network, which should be a clean one."""
    figures: dict[str, Json] = {}
    problems: list[str] = []
    frames = [frame for one in recordings for frame in Clip.of(one, SPOKEN_RATE).frames]
    packets = await anyio.to_thread.run_sync(packets_of, np.concatenate(frames))
    said = {recording.name: recording.text for recording in recordings if recording.text}
    for network in networks:
        cell = Cell(network)
        await _measure(cell, listener, talker, replace(plan, network=network), recordings, seed)
        if not said:
            said = dict(cell.understood)
        even = await anyio.to_thread.run_sync(hear_steadily, packets, network, seed)
        errors = cell.errors(said)
        stops = [1000 * stop for stop in cell.stops]
        figures[cell.name] = {
            "lost %": round(cell.lost, 1),
            "recovered %": round(cell.percent("recovered_seconds"), 2),
            "concealed %": round(cell.percent("concealed_seconds"), 2),
            "word errors %": round(100 * errors.rate, 1),
            "barge-in p50 ms": round(percentile(stops, 0.5)) if stops else None,
            "barge-in p95 ms": round(percentile(stops, 0.95)) if stops else None,
            "steady: concealed %": round(even.concealed, 2),
            "delay ms": round(even.delay_ms),
        }
        problems += [f"{cell.name}: {problem}" for problem in cell.problems]
    return figures, problems


async def _measure(
    cell: Cell,
    listener: Server,
    talker: Server,
    plan: Plan,
    recordings: Sequence[Recording],
    seed: int,
) -> None:
    before = await _counters(listener)
    waiting = list(reversed(recordings))
    outcomes: list[Outcome] = []

    async def speak(number: int) -> None:
        try:
            async with plan.open(listener.url, seed=seed + number, key=listener.key) as client:
                detection = {"type": "server_vad", "create_response": False}
                await client.configure(
                    replace(plan, detection=detection, transcribe=True).session(), PATIENCE
                )
                await _read(client, waiting, cell)
                cell.problems += client.heard.errors
        except ClientError as error:
            cell.problems.append(str(error))

    async def talk(number: int) -> None:
        outcomes.append(await converse(talker.url, plan, seed + 100 + number, 0.0, talker.key))

    async with anyio.create_task_group() as tasks:
        for number in range(SPEAKERS):
            tasks.start_soon(speak, number)
        for number in range(TALKERS):
            tasks.start_soon(talk, number)
    after = await _counters(listener)
    cell.counted = {name: value - before.get(name, 0.0) for name, value in after.items()}
    for outcome in outcomes:
        cell.stops += outcome.barge_in_stop
        cell.problems += outcome.problems


async def _read(client: Client, waiting: list[Recording], cell: Cell) -> None:
    """Speak recordings, one after the other, while there are any."""
    microphone = Microphone(client.rate)
    heard = client.heard
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(microphone.run, client.send_sound)
        await anyio.sleep(0.5)
        while waiting:
            recording = waiting.pop()
            first = len(heard.committed)
            utterance = microphone.say(Clip.of(recording, client.rate))
            await utterance.begin()
            await anyio.sleep(recording.seconds)
            # The last turn of the recording is over when its words are there and nobody speaks.
            await client.until(
                lambda first=first: (
                    len(heard.committed) > first  # type: ignore[misc]
                    and len(heard.speech_started) == len(heard.speech_stopped)
                    and heard.transcription_ended.issuperset(item for _, item in heard.committed)
                ),
                PATIENCE,
                "transcript",
            )
            items = [item for _, item in heard.committed[first:]]
            cell.understood[recording.name] = " ".join(
                heard.transcripts.get(item, "") for item in items
            )
        tasks.cancel_scope.cancel()


async def _counters(server: Server) -> dict[str, float]:
    """The server's figures about the sound of callers, by their names' ends."""
    prefix = "duologue_rtc_"
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(f"{server.url}/metrics", headers=_headers(server))).text
    lines = (line.split() for line in text.splitlines() if line.startswith(prefix))
    return {name.removeprefix(prefix): float(value) for name, value in lines}


def _headers(server: Server) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.key}"} if server.key else {}
