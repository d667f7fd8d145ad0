"""What gateways tell each other, and what they do without those that do not answer."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from duologue.sessions.headcount import Headcount
from duologue.web import peers as module
from duologue.web.peers import FIGURES, SECRETS, Peers, SharedSecret, inside_client
from duologue.web.seat import Seat, inside_socket
from duologue.web.uvicorn_impl import PatientServer, server_config
from tests.uvicorn_start import start_serving

pytestmark = pytest.mark.anyio


def secret(number: int, expires: float = 100.0) -> SharedSecret:
    return SharedSecret(bytes([number]) * 32, expires, b"{}")


def peers(tmp_path: Path, count: int) -> Peers:
    directories = [tmp_path / str(number) for number in range(count)]
    for directory in directories:
        directory.mkdir(exist_ok=True)
    return Peers(Seat(0, directories, [], {}, Headcount()))


@asynccontextmanager
async def answering(path: Path, told: list[bytes]) -> AsyncIterator[None]:
    """Another gateway, that adds what it is told."""

    async def figures(request: Request) -> Response:
        return Response("one 1\n")

    async def secrets(request: Request) -> Response:
        told.append(await request.body())
        return Response(msgspec.msgpack.encode([secret(1), secret(2)]))

    app = Starlette(
        routes=[Route(FIGURES, figures), Route(SECRETS, secrets, methods=["GET", "POST"])]
    )
    server = PatientServer(server_config(app, path=str(path)))
    async with anyio.create_task_group() as tasks:
        await start_serving(tasks, server)
        yield
        server.should_exit = True


async def test_those_that_answer_are_heard_whatever_the_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    ours = peers(tmp_path, 4)
    well, gone, stuck = ours.seat.others()

    def client(socket: Path, seconds: float) -> httpx.AsyncClient:
        return inside_client(socket, 0.2 if socket == stuck else 60.0)

    monkeypatch.setattr(module, "inside_client", client)
    told: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(stuck))
        silent.listen()
        async with answering(well, told):
            assert await ours.figures() == ["one 1\n"]
            await ours.share(secret(7), now=0.0)
            assert [one.digest[0] for one in await ours.fetch()] == [1, 2]
    assert b"\x07" * 32 in told[0]
    assert not gone.exists()
    assert len([line for line in caplog.messages if "does not answer" in line]) == 3
    assert len([line for line in caplog.messages if "is not there" in line]) == 3


async def test_secrets_are_kept_until_they_expire_and_no_more_than_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SECRETS", 2)
    ours = peers(tmp_path, 1)
    for number in range(3):
        ours.keep(secret(number), now=0.0)
    assert [one.digest[0] for one in ours.kept(1.0)] == [1, 2]
    assert ours.kept(100.0) == []
    ours.keep(secret(9, expires=300.0), now=200.0)
    assert [one.digest[0] for one in ours.kept(200.0)] == [9]


async def test_secrets_take_no_more_bytes_than_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_SECRET_BYTES", 2 * len(secret(0).body))
    ours = peers(tmp_path, 1)
    for number in (0, 1, 1, 2):
        ours.keep(secret(number), now=0.0)
    assert [one.digest[0] for one in ours.kept(1.0)] == [1, 2]


def test_a_gateway_does_not_count_itself(tmp_path: Path) -> None:
    ours = peers(tmp_path, 3)
    assert ours.seat.others() == [inside_socket(tmp_path / "1"), inside_socket(tmp_path / "2")]
