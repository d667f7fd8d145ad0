"""Ends a text before the first of some stop texts, as it streams by; pure."""

from collections.abc import Sequence


class StopText:
    """Push pieces; what comes out holds no stop text, nor anything that follows one.

    The stop text that is complete first counts; of two, the one that began first. What may be the
    beginning of one is held back until it is known not to be.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """None of `stops` may be empty."""
        if not all(stops):
            raise ValueError("a stop text must not be empty")
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, piece: str) -> str:
        """The text that is now certain. Sets :attr:`stopped` when a stop text has come."""
        if self.stopped:
            return ""
        text = self._held + piece
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped = True
            self._held = ""
            return text[: min(found)[1]]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back: the text is over."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` begins."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
