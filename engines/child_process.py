"""A child process whose start holds the event loop up for as short as can be.

Event loops that fork copy the page tables of the whole process first: tens of milliseconds in which
a gateway carries no sound. :class:`subprocess.Popen` shares the memory with the child until it
executes the new program (vfork(2)), and here it does so on another thread.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence

import anyio
import anyio.to_thread

from duologue.engines.socket_stream import SocketStream


class ChildProcess:
    """A process with sockets for its standard input and output; standard error is the parent's."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        ended: int,
        stdin: SocketStream,
        stdout: SocketStream,
    ) -> None:
        """`ended` is a pidfd of the process; all become this object's."""
        self._process = process
        self._ended = ended
        self.stdin = stdin
        self.stdout = stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Negative for a signal; ``None`` before :meth:`wait` has seen the end."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for its end, and return its exit status."""
        while (status := self._process.poll()) is None:
            await anyio.wait_readable(self._ended)
        return status

    def kill(self) -> None:
        """SIGKILL, unless it has ended."""
        self._process.send_signal(signal.SIGKILL)

    async def aclose(self) -> None:
        """Let go of it, once it has ended."""
        await self.stdin.aclose()
        await self.stdout.aclose()
        os.close(self._ended)


async def start_child(
    command: Sequence[str], environment: Mapping[str, str], pass_fds: Sequence[int] = ()
) -> ChildProcess:
    """Start a process, which gets the descriptors `pass_fds` by the same numbers.

    Not to be cancelled: the process would be lost. Raises OSError.
    """
    return await anyio.to_thread.run_sync(_start, command, environment, pass_fds)


def _start(
    command: Sequence[str], environment: Mapping[str, str], pass_fds: Sequence[int]
) -> ChildProcess:
    near_in, far_in = socket.socketpair()
    near_out, far_out = socket.socketpair()
    try:
        with far_in, far_out:
            process = subprocess.Popen(
                command,
                stdin=far_in.fileno(),
                stdout=far_out.fileno(),
                env=environment,
                pass_fds=pass_fds,
            )
        try:
            ended = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.wait()
            raise
    except OSError:
        near_in.close()
        near_out.close()
        raise
    return ChildProcess(process, ended, SocketStream(near_in), SocketStream(near_out))
