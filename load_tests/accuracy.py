"""Every recording once: what was understood, whether it was let finish, how soon it interrupts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio

from load_tests.client import Answer, Client, ClientError
from load_tests.clock import now
from load_tests.microphone import Clip, Microphone
from load_tests.recordings import Recording
from load_tests.report import Json, spread
from load_tests.scenario import Outcome, Plan, answered, interrupt
from load_tests.server import Server
from load_tests.words import WordErrors, word_errors


@dataclass(slots=True)
class Reading:
    """What one recording gave."""

    name: str
    said: str
    understood: str = ""
    outcome: Outcome = field(default_factory=Outcome)

    @property
    def errors(self) -> WordErrors:
        return word_errors(self.said, self.understood)


async def run_recordings(
    server: Server, plan: Plan, recordings: Sequence[Recording], at_once: int, model: str = ""
) -> tuple[dict[str, Json], list[str]]:
    """Say every recording to a session of its own, then interrupt the answer with it."""
    readings: list[Reading] = []
    waiting = list(reversed(recordings))

    async def reader() -> None:
        while waiting:
            readings.append(await read_one(server, plan, waiting.pop(), model, len(waiting)))

    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(reader)
    return accuracy(readings), problems(readings)


async def read_one(
    server: Server, plan: Plan, recording: Recording, model: str, seed: int = 1
) -> Reading:
    """One recording in a session of its own. Never raises."""
    reading = Reading(recording.name, recording.text)
    try:
        async with plan.open(server.url, seed=seed, key=server.key, model=model) as client:
            clip = Clip.of(recording, client.rate)
            await client.configure(plan.session())
            microphone = Microphone(client.rate)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(microphone.run, client.send_sound)
                await anyio.sleep(0.5)
                answer = await _say(client, microphone, clip, reading)
                if plan.interrupt_every:
                    if await interrupt(client, microphone, answer, clip, reading.outcome):
                        microphone.fall_silent()
                tasks.cancel_scope.cancel()
            reading.outcome.errors = client.heard.errors
            reading.outcome.ok = not client.heard.errors
    except ClientError as error:
        reading.outcome.problems.append(str(error))
    return reading


async def _say(client: Client, microphone: Microphone, clip: Clip, reading: Reading) -> Answer:
    begin = now()
    utterance = microphone.say(clip)
    answer = await answered(client, utterance, reading.outcome)
    mine = [item for moment, item in client.heard.committed if moment >= begin]
    await client.until(
        lambda: client.heard.transcription_ended.issuperset(mine), 15.0, "transcript"
    )
    reading.understood = " ".join(client.heard.transcripts.get(item, "") for item in mine)
    return answer


def accuracy(readings: Sequence[Reading]) -> dict[str, Json]:
    """The figures of all readings together."""
    heard = [reading for reading in readings if reading.outcome.first_audio]
    total = sum((reading.errors for reading in heard), WordErrors(0, 0))
    outcomes = [reading.outcome for reading in readings]
    premature = sum(outcome.premature for outcome in outcomes)
    stops = [1000 * value for outcome in outcomes for value in outcome.barge_in_stop]
    first = [1000 * value for outcome in outcomes for value in outcome.first_audio]
    worst = sorted(heard, key=lambda reading: reading.errors.errors, reverse=True)[:10]
    return {
        "recordings": len(readings),
        "recordings_answered": len(heard),
        "words": total.words,
        "word_errors": total.errors,
        "word_error_percent": round(100 * total.rate, 2),
        "premature_answers": premature,
        "premature_percent": round(100 * premature / len(readings), 1) if readings else None,
        "first_audio_ms": spread(first),
        "barge_in_stop_ms": spread(stops),
        "interruptions": len(stops),
        "most_word_errors": [
            {
                "name": reading.name,
                "errors": reading.errors.errors,
                "said": reading.said,
                "understood": reading.understood,
            }
            for reading in worst
            if reading.errors.errors
        ],
        "premature_in": [reading.name for reading in readings if reading.outcome.premature],
    }


def problems(readings: Sequence[Reading]) -> list[str]:
    """What went wrong, in words."""
    return [
        f"{reading.name}: {problem}"
        for reading in readings
        for problem in [*reading.outcome.problems, *reading.outcome.errors]
    ]
