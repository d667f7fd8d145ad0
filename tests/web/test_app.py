"""How the application is put together."""

from pathlib import Path

import anyio
import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from duologue.engines.script import ScriptedOptions
from duologue.web.app import create_app, scripted_options, worker_config
from duologue.web.settings import Settings, SettingsError


def test_off_loopback_there_is_no_application_without_a_key() -> None:
    with pytest.raises(SettingsError, match="api_keys"):
        create_app(Settings(host="0.0.0.0", engine="scripted"))


def test_the_script_may_come_from_a_file(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"model": "mine", "replies": [{"clauses": [{"text": "Hi.", "ms": 300}]}]}')
    options = scripted_options(Settings(engine="scripted", script=script, slots=3))
    assert (options.model, options.capacity) == ("mine", 3)
    assert options.replies[0].clauses[0].text == "Hi."


@pytest.mark.parametrize("content", [None, "{", '{"replies": 7}', '{"replies": []}'])
def test_a_script_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    script = tmp_path / "script.json"
    if content is not None:
        script.write_text(content)
    with pytest.raises(SettingsError, match=r"script\.json"):
        scripted_options(Settings(engine="scripted", script=script))


def test_the_worker_is_told_what_to_play() -> None:
    config = worker_config(Settings(engine="scripted", slots=2, log_level="debug"))
    assert (config.backend, config.log_level) == ("scripted", "debug")
    assert msgspec.msgpack.decode(config.options, type=ScriptedOptions).capacity == 2


def preflight(origin: str, *allowed: str) -> httpx.Response:
    return anyio.run(ask, create_app(Settings(engine="scripted", allowed_origins=allowed)), origin)


async def ask(app: Starlette, origin: str) -> httpx.Response:
    headers = {
        "Origin": origin,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.options("/v1/realtime/client_secrets", headers=headers)


@pytest.mark.weights
def test_pages_that_are_allowed_may_ask_across_origins() -> None:
    answer = preflight("https://app.example", "https://app.example")
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "authorization" in answer.headers["access-control-allow-headers"].lower()


@pytest.mark.weights
def test_other_pages_may_not() -> None:
    answer = preflight("https://evil.example", "https://app.example")
    assert "access-control-allow-origin" not in answer.headers
    assert "access-control-allow-origin" not in preflight("https://x.example").headers
