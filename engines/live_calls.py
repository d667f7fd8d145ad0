"""Whether a conversation needs the processor now, for what should then stand aside."""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class LiveCalls:
    """Counts calls into models that a conversation waits for, from before they queue up to their
    end. Entered on one event loop; :attr:`busy` may be read on any thread."""

    def __init__(self) -> None:
        self._calls = 0
        self._quiet = anyio.Event()

    @property
    def busy(self) -> bool:
        return self._calls > 0

    @contextmanager
    def call(self) -> Iterator[None]:
        """A conversation's call waits or runs as long as the context is open."""
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._quiet.set()
                self._quiet = anyio.Event()

    async def quiet(self) -> None:
        """Return when no call waits or runs; at once when none does."""
        while self._calls:
            await self._quiet.wait()
