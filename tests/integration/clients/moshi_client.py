"""Moshi's own command line client, with a sound card that is none.

Run as ``python moshi_client.py PORT SECONDS``; the last line is what it heard, as JSON. The card is
``sounddevice``'s streams: one gives a tone every 80 ms, the other keeps what it is to play.
"""

import argparse
import asyncio
import io
import json
import sys
import threading
from types import ModuleType
from typing import Any

import numpy as np


class Card:
    """A stream of ``sounddevice``: calls back in real time, from a thread of its own."""

    heard: list[float] = []

    def __init__(self, *, samplerate: int, channels: int, blocksize: int, callback: Any) -> None:
        self.seconds = blocksize / samplerate
        self.shape = (blocksize, channels)
        self.callback = callback
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self) -> "Card":
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        self.thread.join()

    def run(self) -> None:
        while not self.stop.wait(self.seconds):
            self.block()

    def block(self) -> None:
        raise NotImplementedError


class InputStream(Card):
    def block(self) -> None:
        times = np.arange(self.shape[0], dtype=np.float32) / 24_000
        tone = (0.3 * np.sin(2 * np.pi * 440 * times)).astype(np.float32)
        self.callback(tone[:, None], self.shape[0], None, None)


class OutputStream(Card):
    def block(self) -> None:
        data = np.zeros(self.shape, np.float32)
        self.callback(data, self.shape[0], None, None)
        Card.heard.append(float(np.abs(data).max()))


def main() -> None:
    card: Any = ModuleType("sounddevice")
    card.InputStream, card.OutputStream = InputStream, OutputStream
    sys.modules["sounddevice"] = card
    from moshi import client
    from moshi.client_utils import RawPrinter

    said, told = io.StringIO(), io.StringIO()
    printer = RawPrinter(said, told)
    arguments = argparse.Namespace(url=None, https=False, host="127.0.0.1", port=int(sys.argv[1]))
    seconds = float(sys.argv[2])

    async def talk() -> bool:
        """True: it was still talking when it was stopped."""
        try:
            await asyncio.wait_for(client.run(printer, arguments), seconds)
        except TimeoutError:
            return True
        return False

    talking = asyncio.run(talk())
    levels = [round(level, 4) for level in Card.heard]
    print(json.dumps({"talking": talking, "said": said.getvalue(), "levels": levels}))


if __name__ == "__main__":
    main()
