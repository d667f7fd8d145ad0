import functools
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import httpx
import pytest

from duologue.models.download import (
    Patience,
    SourceAltered,
    SourceError,
    SourceGone,
    SourceUnreachable,
    download,
)
from duologue.models.lockfile import WeightFile

if TYPE_CHECKING:
    from tests.models.conftest import PackageIndex

CONTENT = bytes(range(256)) * 1000
FILE = WeightFile("graph.onnx", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
AT_ONCE = Patience(attempts=3, first_wait=0.0)


class Fetch:
    """Downloads FILE into a folder and counts the bytes it is told of."""

    def __init__(self, folder: Path) -> None:
        self.target = folder / "part"
        self.arrived = 0

    def advance(self, size: int) -> None:
        self.arrived += size

    def run(self, url: str) -> None:
        anyio.run(functools.partial(self.fetch, url))

    async def fetch(self, url: str) -> None:
        async with httpx.AsyncClient(timeout=AT_ONCE.timeout, trust_env=False) as client:
            await download(client, url, self.target, FILE, advance=self.advance, patience=AT_ONCE)


def test_a_file_arrives_whole(index: "PackageIndex", tmp_path: Path) -> None:
    fetch = Fetch(tmp_path)
    fetch.run(index.add("/file", CONTENT))
    assert fetch.target.read_bytes() == CONTENT
    assert fetch.arrived == len(CONTENT)


def test_a_cut_connection_is_resumed_where_it_was_cut(
    index: "PackageIndex", tmp_path: Path
) -> None:
    url = index.add("/file", CONTENT)
    index.cuts["/file"] = [1000, 0, 500]
    fetch = Fetch(tmp_path)
    fetch.run(url)
    assert fetch.target.read_bytes() == CONTENT
    spans = index.asked("/file")
    assert spans == ["", "bytes=1000-", "bytes=1000-", "bytes=1500-"]
    assert fetch.arrived == len(CONTENT)


def test_a_later_run_goes_on_where_an_earlier_one_stopped(
    index: "PackageIndex", tmp_path: Path
) -> None:
    url = index.add("/file", CONTENT)
    (tmp_path / "part").write_bytes(CONTENT[:7000])
    fetch = Fetch(tmp_path)
    fetch.run(url)
    assert index.asked("/file") == ["bytes=7000-"]
    assert fetch.target.read_bytes() == CONTENT


def test_a_complete_part_is_only_verified(index: "PackageIndex", tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(CONTENT)
    fetch = Fetch(tmp_path)
    fetch.run(index.add("/file", CONTENT))
    assert index.requests == []
    assert fetch.arrived == len(CONTENT)


def test_a_part_that_is_too_long_is_fetched_anew(index: "PackageIndex", tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(CONTENT + b"more")
    fetch = Fetch(tmp_path)
    fetch.run(index.add("/file", CONTENT))
    assert index.asked("/file") == [""]
    assert fetch.target.read_bytes() == CONTENT


def test_a_host_that_knows_no_ranges_sends_all_again(index: "PackageIndex", tmp_path: Path) -> None:
    index.ignores_ranges = True
    (tmp_path / "part").write_bytes(b"x" * 7000)
    fetch = Fetch(tmp_path)
    fetch.run(index.add("/file", CONTENT))
    assert fetch.target.read_bytes() == CONTENT
    assert fetch.arrived == len(CONTENT)


def test_a_busy_host_is_asked_again(index: "PackageIndex", tmp_path: Path) -> None:
    url = index.add("/file", CONTENT)
    index.answers["/file"] = [503, 429]
    fetch = Fetch(tmp_path)
    fetch.run(url)
    assert fetch.target.read_bytes() == CONTENT


def test_patience_with_a_host_ends(index: "PackageIndex", tmp_path: Path) -> None:
    url = index.add("/file", CONTENT)
    index.answers["/file"] = [503] * 9
    with pytest.raises(SourceUnreachable, match="503"):
        Fetch(tmp_path).run(url)
    assert len(index.requests) == AT_ONCE.attempts


def test_what_arrived_before_patience_ended_is_kept(index: "PackageIndex", tmp_path: Path) -> None:
    url = index.add("/file", CONTENT)
    index.cuts["/file"] = [1000] + [0] * 9
    fetch = Fetch(tmp_path)
    with pytest.raises(SourceUnreachable):
        fetch.run(url)
    assert fetch.target.read_bytes() == CONTENT[:1000]


def test_a_file_that_is_gone_is_asked_for_once(index: "PackageIndex", tmp_path: Path) -> None:
    with pytest.raises(SourceGone, match="404"):
        Fetch(tmp_path).run(f"{index.url}/file")
    assert len(index.requests) == 1


@pytest.mark.parametrize(
    ("held", "content"),
    [
        (b"", CONTENT[:-1]),
        (b"", CONTENT + b"x"),
        (b"", b"x" + CONTENT[1:]),
        (CONTENT[:7000], CONTENT + b"x"),
        (CONTENT[:7000], CONTENT[:7000]),
        (b"x" * 7000, CONTENT),
    ],
    ids=["shorter", "longer", "different", "grown", "ended", "another-beginning"],
)
def test_another_file_is_refused_and_thrown_away(
    index: "PackageIndex", tmp_path: Path, held: bytes, content: bytes
) -> None:
    fetch = Fetch(tmp_path)
    if held:
        fetch.target.write_bytes(held)
    with pytest.raises(SourceAltered):
        fetch.run(index.add("/file", content))
    assert not fetch.target.exists()


def endless(request: httpx.Request) -> httpx.Response:
    async def body() -> AsyncIterator[bytes]:
        while True:
            yield CONTENT

    return httpx.Response(200, content=body())


def test_a_body_without_an_end_is_cut_off(tmp_path: Path) -> None:
    async def fetch() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(endless)) as client:
            await download(
                client,
                "https://example.org/file",
                tmp_path / "part",
                FILE,
                advance=lambda size: None,
                patience=AT_ONCE,
            )

    with pytest.raises(SourceAltered, match="longer"):
        anyio.run(fetch)


def test_the_wait_doubles_up_to_half_a_minute() -> None:
    assert [Patience().wait(attempt) for attempt in (1, 2, 3, 9)] == [1.0, 2.0, 4.0, 30.0]


@pytest.mark.parametrize("error", [SourceGone, SourceAltered, SourceUnreachable])
def test_every_failure_of_a_source_is_one_kind(error: type[Exception]) -> None:
    assert issubclass(error, SourceError)
