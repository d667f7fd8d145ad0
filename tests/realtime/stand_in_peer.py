"""A call's connection that does nothing but tell what was asked of it."""

import json

from duologue.realtime.rtc_peer import PeerFailed


class Peer:
    """Stands in for the connection."""

    def __init__(self, *, has_channel=True, largest=0, fails=False):
        self.has_channel = has_channel
        self.largest_message = largest
        self.fails = fails
        self.open = False
        self.waiting_bytes = 0
        self.said = []
        self.done = []
        self.closed = 0
        self.shown = []

    async def connect(self):
        if self.fails:
            raise PeerFailed("DTLS took too long")

    async def work(self):
        pass

    def say(self, text):
        self.said.append(json.loads(text))

    def play(self, pcm):
        self.done.append(("play", len(pcm)))

    def flush(self):
        self.done.append("flush")

    def duck(self):
        self.done.append("duck")

    def restore(self):
        self.done.append("restore")

    def show(self, picture, due_ms):
        self.shown.append((len(picture.pixels), due_ms))

    async def aclose(self):
        self.closed += 1

    @property
    def kinds(self):
        return [event["type"] for event in self.said]
