"""Processes that must not outlive this one, whatever ends it.

A library that starts processes of its own ends them in order, but not when this process is killed.
So this process leads a group which they inherit, and a small process outside of it waits for the
end of a pipe that only this one holds: then it kills the group.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

_FREE = b"free"
_GRACE_SECONDS = 3.0
"""For processes that end in order when they are asked to: Python's resource tracker, which is one
of them, then removes what they leave in shared memory."""

_POLL_SECONDS = 0.05


class Leash:
    """Holds this process' descendants from :meth:`__init__` until :meth:`free`."""

    def __init__(self) -> None:
        """Blocks for some milliseconds. Raises OSError when no process can be started."""
        if os.getpgrp() != os.getpid():
            os.setpgid(0, 0)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "duologue.engines.leash", str(os.getpgrp())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def free(self) -> None:
        """Nothing is left to be killed. Idempotent; blocks for some milliseconds."""
        pipe = self._process.stdin
        assert pipe is not None
        if not pipe.closed:
            with suppress(BrokenPipeError):
                pipe.write(_FREE)
                pipe.close()
            self._process.wait()


def main(group: int) -> None:
    """Wait for the holder's end; end its group unless it was freed."""
    if sys.stdin.buffer.read() == _FREE:
        return
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        for _ in range(round(_GRACE_SECONDS / _POLL_SECONDS)):
            time.sleep(_POLL_SECONDS)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
