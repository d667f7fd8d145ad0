"""How many sessions a server of several processes has, without asking any of them."""

import mmap
from typing import Final

ROW_BYTES: Final = 8


class Headcount:
    """Sessions of this process, and of those beside it that share the board.

    The board has a number for each process, which it alone writes, so nothing is locked. Two
    processes that open a session in the same moment do not see each other's: together they may go
    over a limit by as many sessions as there are other processes.
    """

    def __init__(self, board: mmap.mmap | bytearray | None = None, place: int = 0) -> None:
        """``board``: :data:`ROW_BYTES` for each process; its own alone if there is none.
        ``place``: which row is this process', which begins with no sessions."""
        self._rows = memoryview(bytearray(ROW_BYTES) if board is None else board).cast("q")
        self._place = place
        self._rows[place] = 0

    @property
    def own(self) -> int:
        return self._rows[self._place]

    @property
    def others(self) -> int:
        """Sessions of the other processes."""
        return sum(self._rows) - self.own

    def enter(self) -> None:
        """This process has one more."""
        self._rows[self._place] += 1

    def leave(self) -> None:
        """And one less."""
        self._rows[self._place] -= 1

    def clear(self, place: int) -> None:
        """The process of a row is gone, and its sessions with it."""
        self._rows[place] = 0
