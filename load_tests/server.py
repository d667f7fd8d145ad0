"""A server under test: started on a free port, watched through /proc, stopped by its id."""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from load_tests.clock import now

MEBIBYTE = 1024 * 1024
COMMAND = (sys.executable, "-m", "duologue.web", "serve")


class ServerError(Exception):
    """The server did not start, or is gone."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a server and its workers have used: processor seconds in all, memory now (bytes).

    ``private`` is what would be free without it: pages shared between its processes, or with the
    file system's cache, are not counted.
    """

    cpu_seconds: float
    resident: int
    private: int


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. ``pid`` is 0 for one that runs elsewhere: it can't be watched then."""

    url: str
    pid: int = 0
    ready_seconds: float | None = None
    key: str = ""

    def processes(self) -> list[psutil.Process]:
        """The server and its workers."""
        if not self.pid:
            return []
        try:
            parent = psutil.Process(self.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def usage(self) -> Usage | None:
        """What it has used so far, or ``None`` when it can't be watched."""
        cpu, resident, private = 0.0, 0, 0
        found = False
        for process in self.processes():
            try:
                times = process.cpu_times()
                memory = process.memory_full_info()
            except psutil.NoSuchProcess:
                continue
            found = True
            cpu += times.user + times.system
            resident += memory.rss
            private += memory.uss
        return Usage(cpu, resident, private) if found else None


def free_port() -> int:
    """A port of the loopback address that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def serving(
    options: Sequence[str] = (), *, seconds: float = 120.0, log: Path | None = None
) -> Iterator[Server]:
    """``duologue serve`` with these options, ready to talk; stopped at the end.

    Raises ServerError when it is not ready in time; the end of its log is in the message.
    """
    port = free_port()
    command = [*COMMAND, "--port", str(port), *options]
    with tempfile.TemporaryFile() if log is None else log.open("w+b") as output:
        begin = now()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            url = f"http://127.0.0.1:{port}"
            if not _ready(url, process, begin + seconds):
                output.seek(0)
                text = output.read().decode(errors="replace")
                raise ServerError(f"not ready within {seconds:.0f} s\n{text[-4000:]}")
            yield Server(url, process.pid, now() - begin)
        finally:
            _stop(process)


def _ready(url: str, process: subprocess.Popen[bytes], deadline: float) -> bool:
    with httpx.Client(trust_env=False) as client:
        while process.poll() is None and now() < deadline:
            try:
                if client.get(f"{url}/ready").status_code == 200:
                    return True
            except httpx.TransportError:
                pass
            time.sleep(0.05)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and after a while make it."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(10)


def open_files(pid: int) -> int:
    """How many files and sockets a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
