"""What the clients' scripts have in common: their patience, their speech, and what they report."""

import asyncio
import sys
import wave
from collections.abc import Callable

PATIENCE = 240.0
"""Seconds for what must happen: a bound for failures, not a figure."""


class Trouble(Exception):
    """Something did not happen, or went wrong on the client's side."""


async def until(what: str, condition: Callable[[], object], errors: Callable[[], object]) -> None:
    """Wait for the condition; raises Trouble with the client's errors after :data:`PATIENCE`."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise Trouble(f"no {what}; errors: {errors()}") from None


def read_speech(path: str) -> tuple[bytes, int]:
    """The samples of a WAV file (mono int16) and their rate in Hz."""
    with wave.open(path) as file:
        return file.readframes(file.getnframes()), file.getframerate()


def fail(step: str, trouble: object, logged: list[str]) -> None:
    """End the script with what went wrong, and what the client logged."""
    sys.exit(f"{step}: {trouble}\n" + "\n".join(logged))


def passed(step: str) -> None:
    print(f"{step}: ok", flush=True)
