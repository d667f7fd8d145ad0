"""Fetching a file from a URL: resumed where it was cut off, bounded in time, checked by hash."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import anyio
import anyio.to_thread
import httpx

from duologue.models.lockfile import WeightFile
from duologue.models.weights import digest


class SourceError(Exception):
    """A source did not give what the lock says it has. The text says why."""


class SourceGone(SourceError):
    """It is not there any more, or not for us: asking again won't help."""


class SourceAltered(SourceError):
    """It gave something else than the lock says."""


class SourceUnreachable(SourceError):
    """The network failed, or the other side did; it may work later."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to bear with a bad network. Times are in seconds.

    `attempts` counts those in a row that bring no byte; the wait before each next one doubles from
    `first_wait` to at most 30 s. `stall` is the longest silence of a started transfer.
    """

    attempts: int = 4
    first_wait: float = 1.0
    connect: float = 5.0
    stall: float = 20.0

    def wait(self, attempt: int) -> float:
        """Seconds to wait after that many attempts in a row, at least one, have failed."""
        return min(30.0, self.first_wait * 2.0 ** (attempt - 1))

    @property
    def timeout(self) -> httpx.Timeout:
        return httpx.Timeout(self.stall, connect=self.connect)


async def download(
    client: httpx.AsyncClient,
    url: str,
    target: Path,
    file: WeightFile,
    *,
    advance: Callable[[int], None],
    patience: Patience,
) -> None:
    """Fetch `url` into `target`, going on after what `target` already holds of it.

    `advance` is called with the number of bytes that arrived, negative when some must come again.
    When this returns, `target` has the size and SHA-256 of `file`.

    Raises SourceGone for an answer of 4xx, SourceAltered for another size or hash (what came is
    thrown away), SourceUnreachable once `patience` is spent, and OSError of the disk. After these
    two, `target` keeps what has arrived.
    """
    held = await anyio.to_thread.run_sync(held_bytes, target, file)
    advance(held)
    failures = 0
    try:
        while held < file.size:
            try:
                held = await receive(client, url, target, file, held, advance)
            except (httpx.RequestError, SourceUnreachable) as error:
                reached = await anyio.to_thread.run_sync(held_bytes, target, file)
                failures = 1 if reached > held else failures + 1
                held = reached
                if failures >= patience.attempts:
                    raise SourceUnreachable(str(error) or type(error).__name__) from error
                await anyio.sleep(patience.wait(failures))
        if await anyio.to_thread.run_sync(digest, target) != file.sha256:
            raise SourceAltered(f"{file.name} has another SHA-256 than the lock's")
    except SourceAltered:
        await anyio.to_thread.run_sync(target.unlink, True)
        raise


def held_bytes(target: Path, file: WeightFile) -> int:
    try:
        size = target.stat().st_size
    except FileNotFoundError:
        return 0
    if size > file.size:
        target.unlink()
        return 0
    return size


async def receive(
    client: httpx.AsyncClient,
    url: str,
    target: Path,
    file: WeightFile,
    held: int,
    advance: Callable[[int], None],
) -> int:
    headers = {"Accept-Encoding": "identity"}
    if held:
        headers["Range"] = f"bytes={held}-"
    async with client.stream("GET", url, headers=headers) as response:
        start = first_byte(response, file, held)
        advance(start - held)
        with target.open("r+b" if start else "wb") as stream:
            stream.seek(start)
            return await write_body(response, stream, start, file, advance)


def first_byte(response: httpx.Response, file: WeightFile, held: int) -> int:
    """Where in the file the body of this answer begins. Raises SourceError."""
    status = response.status_code
    if status in {408, 425, 429} or status >= 500:
        raise SourceUnreachable(f"it answered {status}")
    if status == 200:
        length, start = response.headers.get("Content-Length"), 0
    elif status == 206 and held:
        span, _, length = response.headers.get("Content-Range", "").partition("/")
        if span != f"bytes {held}-{file.size - 1}":
            raise SourceAltered(f"{file.name} has another size than the lock's")
        start = held
    elif status == 416:
        raise SourceAltered(f"{file.name} has another size than the lock's")
    else:
        raise SourceGone(f"it answered {status}")
    if length is not None and length not in {"*", str(file.size)}:
        raise SourceAltered(f"{file.name} has {length} bytes, not {file.size}")
    return start


async def write_body(
    response: httpx.Response,
    stream: BinaryIO,
    start: int,
    file: WeightFile,
    advance: Callable[[int], None],
) -> int:
    held = start
    async for chunk in response.aiter_bytes():
        if held + len(chunk) > file.size:
            raise SourceAltered(f"{file.name} is longer than the lock says")
        await anyio.to_thread.run_sync(stream.write, chunk)
        held += len(chunk)
        advance(len(chunk))
    if held < file.size:
        raise SourceUnreachable("the connection was cut")
    return held
