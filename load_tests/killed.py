"""A worker is killed in the middle of answers: who is told, how soon, and what others notice."""

import re
from dataclasses import dataclass
from typing import Any

import anyio
import httpx
import psutil

from load_tests.client import ClientError, JsonObject
from load_tests.clock import now
from load_tests.report import Json, spread
from load_tests.server import Server, ServerError
from load_tests.socket_client import SocketClient, open_socket

BEFORE_S = 6.0
AFTER_S = 6.0
BACK_WITHIN_S = 120.0
QUESTION: JsonObject = {
    "type": "conversation.item.create",
    "item": {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "Give me a long answer."}],
    },
}


@dataclass(slots=True)
class _Watched:
    client: SocketClient
    pieces: int = 0
    """Pieces of speech that had come when the worker was killed."""


class _Metrics:
    """``/metrics`` by one client that is kept: making one reads all certificate authorities, which
    holds up everything that is measured here for 40 ms."""

    def __init__(self, server: Server) -> None:
        headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
        self._url = f"{server.url}/metrics"
        self._http = httpx.AsyncClient(trust_env=False, headers=headers)

    async def __aenter__(self) -> "_Metrics":
        await self._http.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._http.__aexit__(*raised)

    async def figures(self, pattern: str) -> list[float]:
        """The values of the lines whose names and labels look like this."""
        text = (await self._http.get(self._url)).text
        found = re.findall(rf"^{pattern} ([\d.e+-]+)$", text, re.MULTILINE)
        return [float(value) for value in found]

    async def places(self) -> float:
        [places] = await self.figures("duologue_places")
        return places

    async def start_seconds(self) -> float | None:
        """How long the new worker took from its start until it was warm."""
        found = await self.figures(r"duologue_worker_start_seconds\S*")
        return round(max(found), 2) if found else None


async def run_killed(server: Server, sessions: int) -> tuple[dict[str, Json], list[str]]:
    """The server has two workers at least. Returns figures and problems."""
    async with _Metrics(server) as metrics:
        return await _run(server, metrics, sessions)


async def _run(
    server: Server, metrics: _Metrics, sessions: int
) -> tuple[dict[str, Json], list[str]]:
    problems: list[str] = []
    watched: list[_Watched] = []
    await _until_all_are_ready(metrics)
    async with anyio.create_task_group() as group:

        async def talk(number: int) -> None:
            try:
                async with open_socket(server.url, key=server.key) as client:
                    watched.append(_Watched(client))
                    await anyio.sleep(0.03 * number)
                    while True:
                        await _ask(client)
            except ClientError as error:
                problems.append(f"session {number}: {error}")

        for number in range(sessions):
            group.start_soon(talk, number)
        await anyio.sleep(BEFORE_S + 0.03 * sessions)
        full = await metrics.places()
        victim = _workers(server)[0]
        for one in watched:
            one.pieces = len(one.client.heard.added_latency)
        moment = now()
        victim.kill()
        back = await _until_back(metrics, full, moment)
        await anyio.sleep(max(0.0, moment + AFTER_S - now()))
        group.cancel_scope.cancel()
    told = [_told(one.client, moment) for one in watched]
    others = [one for one, when in zip(watched, told, strict=True) if when is None]
    start = await metrics.start_seconds()
    figures: dict[str, Json] = {
        "sessions": sessions,
        "sessions_told": len(told) - len(others),
        "told_ms": spread([1000 * when for when in told if when is not None]),
        "others_before_ms": spread(_pieces(others, before=True)),
        "others_after_ms": spread(_pieces(others, before=False)),
        "capacity_back_s": round(back, 2),
        "worker_start_s": start,
        "capacity_back_after_start_s": None if start is None else round(back - start, 2),
    }
    if len(others) == len(told):
        problems.append("no session was on the worker that was killed")
    return figures, problems


async def _ask(client: SocketClient) -> None:
    await client.send(QUESTION)
    before = len(client.answers)
    errors = len(client.heard.errors)
    await client.send({"type": "response.create"})
    await client.until(
        lambda: (
            len(client.heard.errors) > errors
            or (len(client.answers) > before and client.answers[-1].done is not None)
        ),
        60.0,
        "end of an answer",
    )
    if len(client.heard.errors) > errors:
        await anyio.sleep(0.3)


def _told(client: SocketClient, moment: float) -> float | None:
    """How long after the worker's death this client knew that its answer had failed."""
    for answer in client.answers:
        if answer.status == "failed" and answer.done is not None and answer.done >= moment:
            return answer.done - moment
    return None


def _pieces(others: list[_Watched], *, before: bool) -> list[float]:
    return [
        1000 * value
        for one in others
        for value in (
            one.client.heard.added_latency[: one.pieces]
            if before
            else one.client.heard.added_latency[one.pieces :]
        )
    ]


def _workers(server: Server) -> list[psutil.Process]:
    found = [one for one in server.processes() if "duologue.engines.worker" in one.cmdline()]
    if len(found) < 2:
        raise ServerError("two workers are needed: --workers 2")
    return found


async def _until_all_are_ready(metrics: _Metrics) -> None:
    """Sessions are spread over the workers that are there when they come."""
    begin = now()
    while not all(await metrics.figures(r"duologue_worker_ready\S*")):
        if now() - begin > BACK_WITHIN_S:
            raise ServerError("not all workers are ready")
        await anyio.sleep(0.05)


async def _until_back(metrics: _Metrics, full: float, moment: float) -> float:
    """How long after the death of a worker all places are there again."""
    while await metrics.places() >= full:
        if now() - moment > BACK_WITHIN_S:
            raise ServerError("the death of the worker was not noticed")
        await anyio.sleep(0.01)
    while await metrics.places() < full:
        if now() - moment > BACK_WITHIN_S:
            raise ServerError("the worker was not replaced")
        await anyio.sleep(0.05)
    return now() - moment
