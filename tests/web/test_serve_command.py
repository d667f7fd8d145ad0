"""`duologue serve`, in a process of its own."""

import contextlib
import gc
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest
from starlette.applications import Starlette
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as sync_connect

from duologue.models.weights import WeightsError, cache_folder
from duologue.web.serve_command import (
    ServeError,
    _say,
    addresses,
    bind,
    certificate_files,
    check_models,
    open_many_files,
    running,
    stop_signals,
)
from duologue.web.settings import Settings
from tests.patience import PATIENCE_S

SCRIPTED = Settings(engine="scripted")


# -- in this process ------------------------------------------------------------------------


@pytest.mark.anyio
async def test_the_collector_leaves_alone_what_a_server_had_when_it_was_ready() -> None:
    loaded = [[1]]

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.service = "what there is"
        loaded.append([2])
        yield

    try:
        async with running(Starlette(lifespan=lifespan)):
            looked_at = [one for one in gc.get_objects() if one is loaded[1]]
            assert looked_at == []
    finally:
        gc.unfreeze()


def test_a_port_that_is_taken_is_said_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServeError, match=str(port)):
            bind(Settings(port=port))


def test_a_host_that_is_none_is_said_so() -> None:
    with pytest.raises(ServeError, match=r"no\.such\.host\.invalid"):
        bind(Settings(host="no.such.host.invalid"))


def test_an_ipv6_address_will_do() -> None:
    with bind(Settings(host="::1", port=0)) as listener:
        assert listener.family == socket.AF_INET6


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (Settings(), ["http://127.0.0.1:1"]),
        (Settings(host="::1"), ["http://[::1]:1"]),
        (Settings(host="localhost", tls_self_signed=True), ["https://localhost:1"]),
    ],
)
def test_the_address_can_be_opened(settings: Settings, expected: list[str]) -> None:
    assert addresses(settings, 1) == expected


def test_a_server_for_others_tells_its_address_on_the_network() -> None:
    first, *others = addresses(Settings(host="0.0.0.0", api_keys=("a-key-of-mine",)), 1)
    assert first == "http://127.0.0.1:1"
    assert all("0.0.0.0" not in other for other in others)


def test_models_that_are_missing_are_named_with_the_command_that_mends_it(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="duologue models sync"):
        check_models(Settings(cache=tmp_path))
    with pytest.raises(WeightsError, match="silero-vad"):
        check_models(Settings(engine="scripted", cache=tmp_path))


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert certificate_files(Settings()) is None
    with pytest.raises(ServeError, match=r"none\.pem"):
        certificate_files(Settings(tls_cert=tmp_path / "none.pem", tls_key=tmp_path / "k.pem"))


def test_a_certificate_that_is_none_is_told_before_the_server_starts(tmp_path: Path) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    for path in (chain, key):
        path.write_bytes(b"\0\xff")
    with pytest.raises(ServeError, match="tls_cert"):
        certificate_files(Settings(tls_cert=chain, tls_key=key))


# -- in its own -----------------------------------------------------------------------------


class Running:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.lines: list[str] = []
        for line in process.stdout:
            self.lines.append(line.strip())
            if line.startswith("Duologue is ready: "):
                break

    @property
    def url(self) -> str:
        return next(line for line in self.lines if "ready" in line).rpartition(" ")[2]

    def says(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        self.lines.append(line)
        return line

    def ends(self) -> int:
        return self.process.wait(PATIENCE_S)


@contextmanager
def serving(*flags: str, folder: Path) -> Iterator[Running]:
    """A server on a free port, once it has said where it is."""
    command = [sys.executable, "-m", "duologue.web", "serve", "--engine", "scripted"]
    # Where this process ignores it (nohup), the server would, too.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        process = subprocess.Popen(
            [*command, "--port", "0", *flags],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()


def failing(*flags: str, folder: Path, **environ: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "duologue.web", "serve", "--port", "0", *flags]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("flags", "environ", "word"),
    [
        (["--engine", "scripted", "--script", "none.json"], {}, "none.json"),
        (["--log-level", "loud"], {}, "--log-level"),
        ([], {"DUOLOGUE_PROT": "1"}, "did you mean DUOLOGUE_PORT"),
        ([], {"DUOLOGUE_CACHE": "/nonexistent"}, "duologue models sync"),
    ],
)
@pytest.mark.weights
def test_what_is_wrong_is_said_in_a_line(
    tmp_path: Path, flags: list[str], environ: dict[str, str], word: str
) -> None:
    code, said = failing(*flags, folder=tmp_path, **environ)
    assert code == 1
    assert word in said
    assert "Traceback" not in said


@pytest.mark.weights
def test_a_model_that_cannot_start_ends_the_server_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('{"start_failure": "no such voice"}')
    code, said = failing("--engine", "scripted", "--script", "script.json", folder=tmp_path)
    assert code == 1
    assert "no such voice" in said.splitlines()[-1]


@pytest.mark.weights
@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGHUP], ids=lambda told: told.name)
def test_it_says_where_it_is_and_ends_when_told(tmp_path: Path, told: signal.Signals) -> None:
    with serving("--drain-seconds", "0", folder=tmp_path) as running:
        assert running.lines[0] == "Starting the model."
        with httpx.Client(trust_env=False) as http:
            assert http.get(f"{running.url}/ready").status_code == 200
        running.process.send_signal(told)
        assert running.ends() == 0


@pytest.mark.parametrize("closed", [False, True], ids=["full", "closed"])
def test_a_server_goes_on_when_nobody_takes_what_it_says(
    monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", None if closed else full)
        for _ in range(3):
            _say("Duologue is ready.")


@pytest.mark.parametrize(
    ("limits", "asked"),
    [
        ((1024, 524_288), [(65_536, 524_288)]),
        ((1024, 4096), [(4096, 4096)]),
        ((1024, resource.RLIM_INFINITY), [(65_536, resource.RLIM_INFINITY)]),
        ((100_000, 524_288), []),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), []),
    ],
)
def test_a_server_may_have_many_connections(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], asked: list[tuple[int, int]]
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda what, wanted: told.append(wanted))
    open_many_files()
    assert told == asked


def test_one_that_is_to_outlive_its_terminal_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in stop_signals()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        assert signal.SIGHUP in stop_signals()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.weights
def test_off_loopback_a_key_is_made_up_and_told_once(tmp_path: Path) -> None:
    with serving("--host", "0.0.0.0", folder=tmp_path) as running:
        line = running.says()
        while "key" not in line:
            line = running.says()
        key = line.rpartition(" ")[2]
        with httpx.Client(trust_env=False) as http:
            models = f"{running.url}/v1/models"
            assert http.get(models).status_code == 401
            assert http.get(models, headers={"Authorization": f"Bearer {key}"}).status_code == 200


@pytest.mark.weights
def test_it_serves_https_with_a_certificate_of_its_own(
    tmp_path: Path, validated: Callable[[str], dict[str, Any]]
) -> None:
    flags = ["--tls-self-signed", "--cache", str(_cache_with_tls(tmp_path))]
    with serving(*flags, folder=tmp_path) as running:
        assert running.url.startswith("https://")
        trusted = ssl.create_default_context(cafile=tmp_path / "cache/tls/self-signed.pem")
        with httpx.Client(verify=trusted, trust_env=False) as http:
            assert http.get(f"{running.url}/health").status_code == 200
        address = running.url.replace("http", "ws", 1) + "/v1/realtime"
        with sync_connect(address, proxy=None, ssl=trusted) as connection:
            assert validated(str(connection.recv(10)))["type"] == "session.created"


def _cache_with_tls(folder: Path) -> Path:
    """A cache that has the models of the real one, and room for a certificate."""
    cache = folder / "cache"
    cache.mkdir()
    (cache / "models").symlink_to(cache_folder() / "models")
    return cache


@pytest.mark.weights
@pytest.mark.anyio
async def test_a_drain_lets_a_conversation_end_and_a_second_signal_does_not(
    tmp_path: Path, validated: Callable[[str], dict[str, Any]]
) -> None:
    with serving("--drain-seconds", "60", folder=tmp_path) as running:
        address = running.url.replace("http", "ws", 1) + "/v1/realtime"
        with anyio.fail_after(PATIENCE_S):
            async with connect(address, proxy=None) as socket, httpx.AsyncClient() as http:
                validated(str(await socket.recv()))
                running.process.send_signal(signal.SIGTERM)
                while (await http.get(f"{running.url}/ready")).status_code == 200:
                    await anyio.lowlevel.checkpoint()
                async with connect(address, proxy=None) as late:
                    assert validated(str(await late.recv()))["type"] == "error"
                    with pytest.raises(ConnectionClosed):
                        await late.recv()
                    assert late.close_code == 1012
                await socket.send('{"type": "input_audio_buffer.clear"}')
                answer = validated(str(await socket.recv()))
                assert answer["type"] == "input_audio_buffer.cleared"
                running.process.send_signal(signal.SIGTERM)
                with pytest.raises(ConnectionClosed):
                    await socket.recv()
                assert socket.close_code == 1012
        assert await anyio.to_thread.run_sync(running.ends) == 0
