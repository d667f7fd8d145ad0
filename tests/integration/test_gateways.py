"""One server of two gateway processes: which of them a client comes to makes no difference."""

import json
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import psutil
import pytest
from aiortc import RTCSessionDescription
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from load_tests.server import COMMAND, Server, free_port, serving
from tests.caller import Caller, calling
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.anyio, pytest.mark.weights]

OPTIONS = ["--engine", "scripted", "--slots", "30", "--gateways", "2", "--drain-seconds", "2"]
OFFER = Path(__file__).parent.parent / "data" / "sdp" / "safari-data-channel-only-mdns.sdp"
SDP = {"Content-Type": "application/sdp"}
Sample = dict[str, float]


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """For the tests that leave it as it was."""
    with serving(OPTIONS) as running:
        yield running


@pytest.fixture
def own() -> Iterator[Server]:
    with serving(OPTIONS) as running:
        yield running


def gateways(server: Server) -> list[psutil.Process]:
    """In the order of their numbers."""
    children = psutil.Process(server.pid).children()
    found = [child for child in children if "duologue.web.gateway" in child.cmdline()]
    return sorted(found, key=lambda one: number_of(one))


def number_of(gateway: psutil.Process) -> int:
    return int(inside(gateway).parent.name.split("-")[2])


def inside(gateway: psutil.Process) -> Path:
    """The socket at which it listens to the other."""
    paths = (str(one.laddr) for one in gateway.net_connections("unix"))
    return Path(next(path for path in paths if "duologue-gateway-" in path))


def directories_of(processes: list[psutil.Process]) -> set[Path]:
    """Where they and the workers listen."""
    return {
        Path(str(one.laddr)).parent
        for process in processes
        for one in process.net_connections("unix")
        if "duologue-" in str(one.laddr)
    }


async def figures(server: Server) -> Sample:
    async with httpx.AsyncClient(trust_env=False) as client:
        lines = (await client.get(f"{server.url}/metrics")).text.splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


async def until_figures(server: Server, **wanted: float) -> None:
    with anyio.fail_after(PATIENCE_S):
        while True:
            found = await figures(server)
            if all(found.get(name) == value for name, value in wanted.items()):
                return
            await anyio.sleep(0.05)


async def until_both(server: Server) -> list[psutil.Process]:
    await until_figures(server, duologue_gateways=2, duologue_ready=1)
    return gateways(server)


async def until_draining(server: Server) -> None:
    """Until only one of the two takes new connections."""
    with anyio.fail_after(PATIENCE_S):
        while len(listeners(server)) == 2:  # noqa: ASYNC110 - another process
            await anyio.sleep(0.02)


def listeners(server: Server) -> list[int]:
    port = int(server.url.rpartition(":")[2])
    return [
        one.pid
        for one in gateways(server)
        for connection in one.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    ]


async def holder(port: int, among: list[psutil.Process]) -> psutil.Process:
    """Which of them has taken the connection from our port."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            for one in among:
                for connection in one.net_connections("tcp"):
                    if getattr(connection.raddr, "port", None) == port:
                        return one
            await anyio.sleep(0.01)


@asynccontextmanager
async def http_to(
    server: Server, gateway: psutil.Process, among: list[psutil.Process]
) -> AsyncIterator[httpx.AsyncClient]:
    """A client with one connection, to one of the gateways."""
    while True:
        async with httpx.AsyncClient(
            base_url=server.url,
            trust_env=False,
            timeout=PATIENCE_S,
            limits=httpx.Limits(max_connections=1),
        ) as client:
            stream = (await client.get("/health")).extensions["network_stream"]
            port = stream.get_extra_info("client_addr")[1]
            if (await holder(port, among)).pid == gateway.pid:
                yield client
                return


@asynccontextmanager
async def socket_to(
    server: Server, path: str, gateway: psutil.Process, among: list[psutil.Process]
) -> AsyncIterator[ClientConnection]:
    """A WebSocket to one of the gateways."""
    host, port = server.url.removeprefix("http://").split(":")
    while True:
        tcp = socket.create_connection((host, int(port)))
        if (await holder(tcp.getsockname()[1], among)).pid == gateway.pid:
            break
        tcp.close()
    address = server.url.replace("http", "ws", 1) + path
    async with connect(address, sock=tcp, proxy=None, compression=None, close_timeout=2) as wire:
        yield wire


async def until(wire: ClientConnection, kind: str) -> dict[str, Any]:
    with anyio.fail_after(PATIENCE_S):
        while True:
            event: dict[str, Any] = json.loads(await wire.recv())
            if event["type"] == kind:
                return event


async def close_code(wire: ClientConnection) -> int | None:
    with anyio.fail_after(PATIENCE_S):
        try:
            while True:
                await wire.recv()
        except ConnectionClosed:
            return wire.close_code


async def dial(caller: Caller, http: httpx.AsyncClient) -> str:
    await caller.dial(http)
    return caller.call_id


# -- sessions -------------------------------------------------------------------------------


async def test_sessions_are_spread_and_counted_together(shared: Server, open_session: Any) -> None:
    both = await until_both(shared)
    before = (await figures(shared))["duologue_sessions_opened_total"]
    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(open_session(shared)) for _ in range(20)]
        for wire in wires:
            await wire.works()
        taken = {(await holder(wire.socket.local_address[1], both)).pid for wire in wires}
        assert taken == {one.pid for one in both}
        found = await figures(shared)
        assert found["duologue_sessions"] == 20
        assert found["duologue_sessions_opened_total"] == before + 20
        async with httpx.AsyncClient(trust_env=False) as client:
            assert (await client.get(f"{shared.url}/health")).json()["sessions"] == 20
    await until_figures(shared, duologue_sessions=0)


async def test_the_limit_of_sessions_holds_for_both_together(open_session: Any) -> None:
    with serving([*OPTIONS, "--max-sessions", "3"]) as server:
        both = await until_both(server)
        path = "/v1/realtime?model=any"
        async with (
            socket_to(server, path, both[0], both) as one,
            socket_to(server, path, both[1], both) as two,
            socket_to(server, path, both[1], both) as three,
        ):
            for wire in (one, two, three):
                await until(wire, "session.created")
            async with socket_to(server, path, both[0], both) as fourth:
                error = (await until(fourth, "error"))["error"]
                assert error["code"] == "engine_overloaded"
                assert await close_code(fourth) == 1013


async def test_a_client_secret_is_good_at_every_gateway(shared: Server) -> None:
    both = await until_both(shared)
    for minter, other in (both, both[::-1]):
        async with http_to(shared, minter, both) as http:
            session = {"type": "realtime", "instructions": "Be brief."}
            answer = await http.post("/v1/realtime/client_secrets", json={"session": session})
        key = answer.json()["value"]
        headers = {"Authorization": f"Bearer {key}"}
        async with http_to(shared, other, both) as http:
            assert (await http.get("/v1/models", headers=headers)).status_code == 200
            wrong = {"Authorization": f"Bearer {key}x"}
            assert (await http.get("/v1/models", headers=wrong)).status_code == 401


# -- calls and Live sessions ----------------------------------------------------------------


async def test_a_call_is_steered_renewed_and_hung_up_by_way_of_the_other(shared: Server) -> None:
    both = await until_both(shared)
    for owner, other in (both, both[::-1]):
        async with (
            http_to(shared, owner, both) as there,
            http_to(shared, other, both) as here,
            calling() as caller,
        ):
            call_id = await dial(caller, there)
            again = await here.post(
                f"/v1/realtime/calls/{call_id}",
                content=caller.connection.localDescription.sdp,
                headers=SDP,
            )
            assert again.status_code == 200
            RTCSessionDescription(again.text, "answer")
            sip = await here.post(f"/v1/realtime/calls/{call_id}/accept")
            assert (sip.status_code, sip.json()["error"]["code"]) == (409, "call_not_sip")
            path = f"/v1/realtime?call_id={call_id}"
            async with socket_to(shared, path, other, both) as beside:
                await until(beside, "session.created")
                await beside.send(json.dumps({"type": "response.create"}))
                await until(beside, "output_audio_buffer.started")
                await caller.until(caller.heard)
                hung = await here.post(f"/v1/realtime/calls/{call_id}/hangup")
                assert hung.status_code == 200
                assert await close_code(beside) == 1000
            await caller.until(lambda: caller.gone)
            late = await here.post(f"/v1/realtime/calls/{call_id}/hangup")
            assert (late.status_code, late.json()["error"]["code"]) == (404, "call_not_found")
            with pytest.raises(InvalidStatus) as refused:
                async with socket_to(shared, path, other, both):
                    pass
            assert refused.value.response.status_code == 404
            assert b"call_not_found" in refused.value.response.body


async def test_each_gateway_has_a_port_of_its_own_for_all_its_calls() -> None:
    first = next(port for port in (free_port() for _ in range(100)) if both_free(port, port + 1))
    with serving([*OPTIONS, "--rtc-ports", f"{first}-{first + 1}"]) as server:
        both = await until_both(server)
        for number, gateway in enumerate(both):
            async with (
                http_to(server, gateway, both) as http,
                calling() as caller,
                calling() as other,
            ):
                for one in (caller, other):
                    await one.dial(http)
                    answer = one.connection.remoteDescription.sdp
                    assert f" {first + number} typ host" in answer
                    await one.event("session.created")


def both_free(*ports: int) -> bool:
    try:
        for port in ports:
            with socket.socket(type=socket.SOCK_DGRAM) as taken:
                taken.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


async def test_a_live_session_is_watched_forked_and_hung_up_by_way_of_the_other(
    shared: Server,
) -> None:
    both = await until_both(shared)
    path = "/v1/live/sessions"
    async with (
        socket_to(shared, path, both[0], both) as wire,
        http_to(shared, both[1], both) as here,
    ):
        await wire.send(json.dumps({"type": "session.start", "session": {"model": "m"}}))
        session_id = (await until(wire, "session.started"))["session"]["id"]
        one = f"{path}/{session_id}"
        async with (
            socket_to(shared, f"{one}/attach", both[1], both) as beside,
            socket_to(shared, f"{one}/fork", both[1], both) as fork,
        ):
            await until(beside, "session.started")
            await fork.send(json.dumps({"type": "session.start", "session": {}}))
            await until(fork, "session.started")
            content = await here.get(f"{one}/content")
            assert content.json()["error"]["code"] == "recording_disabled"
            assert (await here.post(f"{one}/hangup")).status_code == 200
            await until(beside, "session.closed")
            await until(wire, "session.closed")


# -- ends -----------------------------------------------------------------------------------


async def test_a_gateway_that_is_killed_takes_its_own_sessions_only_and_comes_back(
    own: Server,
) -> None:
    both = await until_both(own)
    victim, other = both
    socket_file = inside(victim)
    path = "/v1/realtime?model=any"
    async with (
        http_to(own, victim, both) as there,
        http_to(own, other, both) as here,
        socket_to(own, path, victim, both) as lost,
        socket_to(own, path, other, both) as kept,
    ):
        for wire in (lost, kept):
            await until(wire, "session.created")
        secret = (await there.post("/v1/realtime/client_secrets", json={})).json()["value"]
        call = await there.post("/v1/realtime/calls", content=OFFER.read_bytes(), headers=SDP)
        place = call.headers["Location"]
        beside_path = f"/v1/realtime?call_id={place.rsplit('/', 1)[1]}"
        async with socket_to(own, beside_path, other, both) as beside:
            await until(beside, "session.created")
            victim.send_signal(signal.SIGKILL)
            assert await close_code(beside) == 1011
        assert await close_code(lost) == 1006
        gone = await here.post(f"{place}/hangup")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "call_not_found")
        await kept.send(json.dumps({"type": "response.create"}))
        await until(kept, "response.done")
        await until_figures(own, duologue_gateways=2, duologue_gateway_restarts=1)
        again = gateways(own)
        assert victim.pid not in {one.pid for one in again}
        assert inside(again[0]) == socket_file
        await until_figures(own, duologue_sessions=1)
        async with httpx.AsyncClient(base_url=own.url, trust_env=False) as client:
            assert (await client.get("/health")).json()["sessions"] == 1
        # It knows the secrets that were issued before its time.
        async with http_to(own, again[0], again) as back:
            headers = {"Authorization": f"Bearer {secret}"}
            assert (await back.get("/v1/models", headers=headers)).status_code == 200
            assert (await back.post(f"{place}/hangup")).status_code == 404


async def test_a_gateway_that_is_told_to_stop_is_replaced_when_its_conversations_are_over(
    own: Server,
) -> None:
    both = await until_both(own)
    leaving, staying = both
    path = "/v1/realtime?model=any"
    async with socket_to(own, path, leaving, both) as wire:
        await until(wire, "session.created")
        leaving.send_signal(signal.SIGTERM)
        await until_draining(own)
        for _ in range(8):
            async with httpx.AsyncClient(base_url=own.url, trust_env=False) as client:
                assert (await client.get("/ready")).status_code == 200
        await wire.send(json.dumps({"type": "response.create"}))
        await until(wire, "response.done")
        assert await close_code(wire) == 1012
    await until_figures(own, duologue_gateways=2, duologue_gateway_restarts=1)
    assert staying.pid in {one.pid for one in gateways(own)}


async def test_a_stop_lets_conversations_end_and_leaves_nothing(own: Server) -> None:
    both = await until_both(own)
    parent = psutil.Process(own.pid)
    family = [parent, *parent.children(recursive=True)]
    directories = directories_of(family)
    assert len(directories) == 3
    path = "/v1/realtime?model=any"
    async with (
        socket_to(own, path, both[0], both) as one,
        socket_to(own, path, both[1], both) as two,
    ):
        for wire in (one, two):
            await until(wire, "session.created")
            await wire.send(json.dumps({"type": "response.create"}))
            await until(wire, "response.created")
        parent.send_signal(signal.SIGTERM)
        # What is being said is said, and the two are closed when their time is up.
        for wire in (one, two):
            await until(wire, "response.done")
            assert await close_code(wire) == 1012
    await anyio.to_thread.run_sync(psutil.wait_procs, family, 30)
    assert not any(process.is_running() for process in family)
    assert not any(directory.exists() for directory in directories)


async def test_nothing_outlives_a_parent_that_is_killed(own: Server) -> None:
    await until_both(own)
    parent = psutil.Process(own.pid)
    children = parent.children(recursive=True)
    directories = directories_of(children)
    parent.send_signal(signal.SIGKILL)
    _, alive = await anyio.to_thread.run_sync(psutil.wait_procs, children, 40)
    assert alive == []
    assert not any(directory.exists() for directory in directories)


async def test_one_that_is_stopped_while_it_starts_stops_in_order() -> None:
    port = free_port()
    command = [*COMMAND, "--port", str(port), *OPTIONS]
    async with await anyio.open_process(command, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        with anyio.fail_after(PATIENCE_S):
            said = b""
            while b"Starting the model." not in said:
                said += await process.stdout.receive()
            family = psutil.Process(process.pid).children()
            process.send_signal(signal.SIGINT)
            async for piece in process.stdout:
                said += piece
            assert await process.wait() == 0, said.decode()
    assert not any(one.is_running() for one in family)
    assert b"did not start" not in said


async def test_a_port_that_somebody_has_is_not_shared() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [*COMMAND, "--port", str(taken.getsockname()[1]), *OPTIONS]
        result = await anyio.run_process(command, check=False)
    assert result.returncode == 1
    assert b"can't listen on 127.0.0.1" in result.stderr
