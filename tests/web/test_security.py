"""Headers that every response carries."""

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from duologue.web.security import HEADERS, SecurityHeaders

pytestmark = pytest.mark.anyio


async def get(path: str, **headers: str) -> httpx.Response:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("hello", headers=headers)(scope, receive, send)

    transport = httpx.ASGITransport(SecurityHeaders(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
        return await http.get(path)


@pytest.mark.parametrize("path", ["/", "/static/a.js", "/v1/models"])
async def test_every_response_carries_them(path: str) -> None:
    response = await get(path)
    for name, value in HEADERS.items():
        assert response.headers[name] == value


async def test_a_response_may_know_better() -> None:
    response = await get("/", **{"Referrer-Policy": "origin", "Cache-Control": "max-age=1"})
    assert response.headers["Referrer-Policy"] == "origin"
    assert response.headers["Cache-Control"] == "max-age=1"


async def test_the_page_is_asked_for_again_when_the_server_has_changed() -> None:
    assert (await get("/static/a.js")).headers["Cache-Control"] == "no-cache"
    assert "Cache-Control" not in (await get("/v1/models")).headers


def test_the_page_runs_only_what_comes_with_it() -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "script-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
