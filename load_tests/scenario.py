"""What users do: they ask, listen, interrupt, and ask again."""

import random
import wave
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import anyio
import numpy as np

from load_tests.client import Answer, Client, ClientError, JsonObject
from load_tests.clock import now
from load_tests.impairment import Impairment
from load_tests.microphone import Clip, Microphone, Utterance
from load_tests.recordings import Samples
from load_tests.rtc_client import Coding, RtcClient, open_call
from load_tests.socket_client import open_socket

Transport = Literal["websocket", "webrtc"]

PATIENCE = 30.0
"""An answer that has not begun after this many seconds makes the session a failed one."""

STOP_WITHIN = 3.0
"""So does an interruption that is not noticed within this many seconds of its first sound."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the sessions of a run do. ``detection``: the session's ``turn_detection``."""

    questions: Sequence[Clip]
    interruptions: Sequence[Clip]
    seconds: float
    detection: JsonObject
    voice: str = ""
    instructions: str = ""
    transcribe: bool = False
    interrupt_every: int = 2
    """Every how many answers is interrupted; 0 for none."""
    keep: Path | None = None
    """Where to leave a recording of each conversation: the user left, the answers right."""
    transport: Transport = "websocket"
    coding: Coding = "stock"
    network: Impairment = Impairment()
    """Over WebRTC: how the microphone is coded, and what the path does to packets."""
    compare_words: bool = False
    """Over WebRTC: ask for the words of each interrupted answer, and keep what was heard of it."""

    def open(
        self, url: str, *, seed: int, key: str = "", model: str = ""
    ) -> AbstractAsyncContextManager[Client]:
        """A client whose session has been created."""
        keep = self.keep is not None
        if self.transport == "websocket":
            return open_socket(url, key=key, model=model, keep=keep)
        return open_call(
            url,
            key=key,
            model=model,
            keep=keep or self.compare_words,
            coding=self.coding,
            network=self.network,
            seed=seed,
        )

    def session(self) -> JsonObject:
        """The fields of the session that this plan needs."""
        listening: JsonObject = {"turn_detection": self.detection}
        if self.transcribe:
            listening["transcription"] = {"model": "whisper-1", "language": "en"}
        audio: JsonObject = {"input": listening}
        if self.voice:
            audio["output"] = {"voice": self.voice}
        session: JsonObject = {"audio": audio}
        if self.instructions:
            session["instructions"] = self.instructions
        return session


@dataclass(slots=True)
class Cut:
    """An interrupted answer: its sound as it was heard (at 48 kHz), all of its words, and those
    that history has of it."""

    sound: Samples
    text: str
    item_id: str
    history: str = ""


@dataclass(slots=True)
class Outcome:
    """What one session measured. Seconds."""

    ok: bool = False
    problems: list[str] = field(default_factory=list)
    connect: float | None = None
    first_audio: list[float] = field(default_factory=list)
    barge_in_stop: list[float] = field(default_factory=list)
    added_latency: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    late_frames: list[float] = field(default_factory=list)
    turns: int = 0
    interruptions: int = 0
    premature: int = 0
    late_audio: int = 0
    drafted: int = 0
    fades: list[float] = field(default_factory=list)
    server_stop: list[float] = field(default_factory=list)
    """From the first voiced packet of an interruption to the last packet of speech."""
    cuts: list["Cut"] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


async def converse(
    url: str, plan: Plan, seed: int, delay: float, key: str = "", model: str = ""
) -> Outcome:
    """One session from connecting to closing. Never raises: what goes wrong is in the outcome."""
    outcome = Outcome()
    await anyio.sleep(delay)
    try:
        async with plan.open(url, seed=seed, key=key, model=model) as client:
            assert client.created is not None
            outcome.connect = client.created - client.opened
            await client.configure(plan.session())
            microphone = Microphone(client.rate)
            try:
                await _talk(client, microphone, plan, random.Random(seed), outcome)
                outcome.ok = not client.heard.errors
            finally:
                _collect(client, microphone, outcome)
                if plan.keep is not None:
                    write_conversation(plan.keep / f"session-{seed}.wav", client, microphone)
    except ClientError as error:
        outcome.ok = False
        outcome.problems.append(f"session {seed}: {error}")
    outcome.problems += [f"session {seed}: {error}" for error in outcome.errors]
    return outcome


def _collect(client: Client, microphone: Microphone, outcome: Outcome) -> None:
    outcome.added_latency = client.heard.added_latency
    outcome.gaps = client.gaps()
    outcome.late_frames = microphone.late
    outcome.late_audio = client.heard.late_audio
    outcome.drafted = client.heard.drafted
    outcome.errors = client.heard.errors
    if isinstance(client, RtcClient):
        outcome.fades, outcome.server_stop = client.fades, client.shares


async def _talk(
    client: Client, microphone: Microphone, plan: Plan, chance: random.Random, outcome: Outcome
) -> None:
    end = now() + plan.seconds
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(microphone.run, client.send_sound)
        await anyio.sleep(0.5 + chance.random() * 0.5)
        interruption: Utterance | None = None
        while now() < end:
            if interruption is None:
                utterance = microphone.say(chance.choice(plan.questions))
            else:
                utterance, interruption = interruption, None
            answer = await answered(client, utterance, outcome)
            outcome.turns += 1
            if plan.interrupt_every and outcome.turns % plan.interrupt_every == 0:
                clip = chance.choice(plan.interruptions)
                await anyio.sleep(chance.uniform(0.3, 0.9))
                interruption = await interrupt(client, microphone, answer, clip, outcome)
                if interruption is not None and plan.compare_words:
                    remember_cut(client, answer, outcome)
            if interruption is None:
                await _hear_out(client, answer, end)
                await anyio.sleep(chance.uniform(0.3, 0.8))
        await _ask_history(client, outcome)
        tasks.cancel_scope.cancel()


async def answered(client: Client, utterance: Utterance, outcome: Outcome) -> Answer:
    """Wait for the first sound of the answer to what is being said, and measure it.

    An answer that begins before the last voiced sample was spoken is premature; the wait goes on
    for the one that belongs to the whole utterance.
    """
    await utterance.begin()
    premature: set[str] = set()

    def fitting() -> Answer | None:
        for answer in client.answers:
            if answer.created >= utterance.last_voiced_at and answer.first_audio is not None:
                return answer
            if utterance.first_voiced_at < answer.created < utterance.last_voiced_at:
                premature.add(answer.id)
        return None

    speaking = utterance.clip.recording.seconds
    await client.until(lambda: fitting() is not None, speaking + PATIENCE, "answer")
    answer = fitting()
    assert answer is not None and answer.first_audio is not None
    outcome.first_audio.append(answer.first_audio - utterance.last_voiced_at)
    outcome.premature += bool(premature)
    return answer


async def interrupt(
    client: Client, microphone: Microphone, answer: Answer, clip: Clip, outcome: Outcome
) -> Utterance | None:
    """Speak while an answer is heard, and measure how soon it stops.

    ``None``, and nothing said, when the answer is over. An answer that ends by itself before it is
    stopped is not counted as an interruption.
    """
    if answer.done is not None and not client.audible(now() + 0.2):
        return None
    utterance = microphone.say(clip)
    await utterance.begin()

    def noticed() -> float | None:
        moments = (moment for moment, _ in client.heard.speech_started)
        return next((moment for moment in moments if moment >= utterance.first_voiced_at), None)

    await client.until(
        lambda: noticed() is not None,
        max(0.0, utterance.first_voiced_at - now()) + STOP_WITHIN,
        "speech_started after an interruption",
    )
    moment = noticed()
    assert moment is not None
    stopped = await client.stopped(answer, moment)
    if stopped is not None:
        outcome.barge_in_stop.append(stopped - utterance.first_voiced_at)
        outcome.interruptions += 1
        if isinstance(client, RtcClient):
            client.note_share(utterance.first_voiced_at)
    return utterance


def remember_cut(client: Client, answer: Answer, outcome: Outcome) -> None:
    """Keep what was heard of an interrupted answer."""
    if not isinstance(client, RtcClient) or answer.item_id not in client.heard.cut:
        return
    assert answer.first_audio is not None
    sound = client.loudspeaker.between(answer.first_audio - 0.1, client.loudspeaker.last_sound)
    outcome.cuts.append(Cut(sound, answer.transcript, answer.item_id))


async def _ask_history(client: Client, outcome: Outcome) -> None:
    """The words that history has of the interrupted answers, once all is said: where the words of
    an answer begin is found out after the cut."""
    for cut in outcome.cuts:
        await client.send({"type": "conversation.item.retrieve", "item_id": cut.item_id})
        await client.until(
            lambda cut=cut: cut.item_id in client.heard.written, 10.0, "item.retrieved"
        )
        cut.history = client.heard.written[cut.item_id]


async def _hear_out(client: Client, answer: Answer, end: float) -> None:
    """Listen until the answer is over and played, or the time is up."""
    left = max(0.1, end - now())
    with anyio.move_on_after(left):
        await client.until(lambda: answer.done is not None, left + 60.0, "response.done")
        await client.quiet()


def write_conversation(path: Path, client: Client, microphone: Microphone) -> None:
    """A stereo recording at the client's rate: what was said left, what was heard right."""
    begin, rate = client.opened, client.rate
    sounds = [
        (utterance.started - begin, np.concatenate(utterance.clip.frames), 0)
        for utterance in microphone.said
        if utterance.started is not None
    ]
    sounds += [(start - begin, samples, 1) for start, samples in client.played()]
    length = max((int(start * rate) + len(pcm) for start, pcm, _ in sounds), default=0)
    mix = np.zeros((length, 2), "<i2")
    for start, pcm, channel in sounds:
        at = int(start * rate)
        mix[at : at + len(pcm), channel] = pcm
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(mix.tobytes())
