"""A stream of bytes that is in memory, and frames in it."""

import anyio


class Wire:
    """Keeps what is sent; what is received is given."""

    def __init__(self, *given: bytes) -> None:
        self.given = list(given)
        self.sent: list[bytes] = []

    async def receive(self, max_bytes: int) -> bytes:
        if not self.given:
            raise anyio.EndOfStream
        return self.given.pop(0)

    async def send(self, item: bytes | memoryview) -> None:
        self.sent.append(bytes(item))

    async def aclose(self) -> None:
        self.given = []


def framed(payload: bytes) -> bytes:
    """A frame of this payload."""
    return len(payload).to_bytes(4, "big") + payload
