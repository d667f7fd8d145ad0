"""The routes, as clients meet them."""

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from openai.types import Model
from openai.types.realtime import ClientSecretCreateResponse
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from duologue.web import routes
from duologue.web.routes import REALTIME_PATHS
from duologue.web.settings import Settings

pytestmark = pytest.mark.anyio

OpenHouse = Callable[..., AbstractAsyncContextManager[Any]]
Validated = Callable[[str], dict[str, Any]]

KEY = "key-of-the-house"
LOCKED = Settings(engine="scripted", api_keys=(KEY,))
PROTOCOL = "openai-insecure-api-key."


@pytest.fixture
def receive(validated: Validated) -> Callable[[ClientConnection], Any]:
    """The next event, held against OpenAI's types."""

    async def next_event(connection: ClientConnection) -> dict[str, Any]:
        text = await connection.recv()
        assert isinstance(text, str)
        return validated(text)

    return next_event


async def close_code(connection: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed):
        while True:
            await connection.recv()
    return connection.close_code


async def refusal(house: Any, **options: Any) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as caught:
        async with house.connect(**options):
            pass
    response = caught.value.response
    return response.status_code, json.loads(response.body)["error"]


# -- everybody's ----------------------------------------------------------------------------


async def test_health_and_readiness_need_no_key(open_house: OpenHouse) -> None:
    async with open_house(LOCKED) as house, house.http() as http:
        assert (await http.get("/health")).json() == {"status": "ok", "sessions": 0}
        assert (await http.get("/ready")).json() == {"status": "ready", "sessions": 0}


async def test_it_is_not_ready_before_its_engine_is(open_house: OpenHouse) -> None:
    async with open_house(ready=False) as house, house.http() as http:
        answer = await http.get("/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "starting")
        health = await http.get("/health")
        assert health.status_code == 200
        assert health.json()["detail"] == (await http.get("/ready")).json()["status"]
        answer = await http.get("/v1/models")
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
        assert answer.headers["Retry-After"]


async def test_it_is_not_ready_while_it_drains(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http:
        await house.service.registry.drain(0)
        answer = await http.get("/ready")
        assert (answer.status_code, answer.json()["status"]) == (503, "draining")


async def test_the_page_and_its_files_are_for_everybody(open_house: OpenHouse) -> None:
    async with open_house(LOCKED) as house, house.http() as http:
        page = await http.get("/")
        assert (page.status_code, page.headers["content-type"][:9]) == (200, "text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        font = await http.get("/static/newsreader.woff2")
        assert font.headers["content-type"] == "font/woff2"
        script = await http.get("/static/protocol.js")
        assert script.status_code == 200
        assert script.headers["content-type"].startswith("text/javascript")
        assert script.headers["cache-control"] == "no-cache"
        assert script.headers["x-content-type-options"] == "nosniff"
        assert (await http.get("/static/../auth.py")).status_code == 404
        assert (await http.get("/nothing")).status_code == 404


async def test_what_no_route_answers_is_refused_in_the_shape_that_clients_read(
    open_house: OpenHouse,
) -> None:
    async with open_house() as house, house.http() as http:
        answer = await http.get("/v1/realtime")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        answer = await http.post("/v1/models")
        assert answer.status_code == 405
        assert answer.json()["error"]["code"] == "method_not_allowed"


async def test_a_failure_of_ours_tells_nothing_of_our_insides(
    open_house: OpenHouse, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_house() as house, house.http() as http:
        monkeypatch.setattr(routes, "encode_status", None)
        answer = await http.get("/health")
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "internal_error"
        assert "NoneType" not in answer.text


# -- for those with a key -------------------------------------------------------------------


async def test_the_models_say_what_a_page_needs_to_know(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http:
        (model,) = (await http.get("/v1/models")).json()["data"]
        Model.model_validate(model, strict=True)
        assert model["duologue"]["kind"] == "scripted"
        assert model["duologue"]["voices"] == ["low", "high"]
        assert model["duologue"]["default_voice"] == "low"


@pytest.mark.parametrize("path", ["/v1/models", "/metrics"])
async def test_a_key_is_asked_for_where_one_is_set(open_house: OpenHouse, path: str) -> None:
    async with open_house(LOCKED) as house, house.http() as http:
        answer = await http.get(path)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert (await http.get(path, headers={"Authorization": f"Bearer {KEY}"})).status_code == 200


async def test_a_page_is_told_what_to_gather_candidates_with(open_house: OpenHouse) -> None:
    settings = Settings(
        engine="scripted",
        api_keys=(KEY,),
        turn_server="turn:turn.test",
        turn_username="me",
        turn_password="secret",
        stun_server="stun:stun.test",
    )
    async with open_house(settings) as house:
        async with house.http() as http:
            assert (await http.get("/v1/realtime/ice_servers")).status_code == 401
        async with house.http(Authorization=f"Bearer {KEY}") as http:
            answer = await http.get("/v1/realtime/ice_servers")
    assert answer.json() == {
        "ice_servers": [
            {"urls": "stun:stun.test"},
            {"urls": "turn:turn.test", "username": "me", "credential": "secret"},
        ]
    }


async def test_the_figures_are_in_prometheus_format(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http:
        async with house.connect() as connection:
            await connection.recv()
        figures = (await http.get("/metrics")).text
        assert "duologue_sessions_opened_total 1.0" in figures
        assert 'duologue_events_sent_total{type="session.created"} 1.0' in figures


async def test_a_page_from_elsewhere_is_refused(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http(Origin="https://evil.example") as http:
        answer = await http.get("/v1/models")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
        status, error = await refusal(house, origin="https://evil.example")
        assert (status, error["code"]) == (403, "origin_not_allowed")
        assert (await http.post("/v1/realtime/client_secrets", json={})).status_code == 403


async def test_a_name_that_is_not_ours_is_refused(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http(Host="evil.example") as http:
        assert (await http.get("/v1/models")).status_code == 403


async def test_a_client_secret_is_one_that_openai_knows(open_house: OpenHouse) -> None:
    async with open_house(LOCKED) as house:
        async with house.http(Authorization=f"Bearer {KEY}") as http:
            answer = await http.post(
                "/v1/realtime/client_secrets",
                json={
                    "expires_after": {"anchor": "created_at", "seconds": 60},
                    "session": {"type": "realtime", "instructions": "Sing."},
                },
            )
        assert answer.status_code == 200
        secret = ClientSecretCreateResponse.model_validate(answer.json(), strict=True)
        protocols = ["realtime", PROTOCOL + secret.value]
        for _ in range(2):
            async with house.connect(subprotocols=protocols) as connection:
                assert connection.subprotocol == "realtime"
                session = json.loads(await connection.recv())["session"]
                assert session["instructions"] == "Sing."
        house.clock.advance(61)
        assert (await refusal(house, subprotocols=protocols))[0] == 401


async def test_a_client_secret_opens_sessions_and_no_more(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http:
        secret = (await http.post("/v1/realtime/client_secrets")).json()["value"]
        answer = await http.post(
            "/v1/realtime/client_secrets", headers={"Authorization": f"Bearer {secret}"}
        )
        assert answer.status_code == 403


async def test_a_wrong_request_for_a_secret_gets_its_error(open_house: OpenHouse) -> None:
    async with open_house() as house, house.http() as http:
        path = "/v1/realtime/client_secrets"
        answer = await http.post(path, json={"session": {"tools": 7}})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "session.tools")
        assert (await http.post(path, content=b"{" + b" " * 1024 * 1024)).status_code == 413
        assert (await http.get(path)).status_code == 405


# -- conversations --------------------------------------------------------------------------


@pytest.mark.parametrize("path", REALTIME_PATHS)
async def test_a_session_begins_at_each_of_its_addresses(
    open_house: OpenHouse, receive: Any, path: str
) -> None:
    async with open_house() as house, house.connect(path + "?model=gpt-realtime") as connection:
        event = await receive(connection)
        session = event["session"]
        assert event["type"] == "session.created"
        assert (session["type"], session["model"], session["object"]) == (
            "realtime",
            "scripted",
            "realtime.session",
        )
        assert session["expires_at"] > 1_700_000_000


async def test_a_transcription_session_is_asked_for_by_its_intent(
    open_house: OpenHouse, receive: Any
) -> None:
    async with (
        open_house() as house,
        house.connect("/v1/realtime?intent=transcription") as connection,
    ):
        assert (await receive(connection))["session"]["type"] == "transcription"


async def test_a_typed_turn_is_answered(open_house: OpenHouse, receive: Any) -> None:
    item = {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hello."}],
    }
    response = {"output_modalities": ["text"], "metadata": {"client_event_id": "x"}}
    async with open_house() as house, house.connect() as connection:
        await connection.send(json.dumps({"type": "conversation.item.create", "item": item}))
        await connection.send(json.dumps({"type": "response.create", "response": response}))
        kinds = []
        while "response.done" not in kinds:
            event = await receive(connection)
            kinds.append(event["type"])
            if event["type"] == "response.created":
                assert event["response"]["metadata"] == {"client_event_id": "x"}
        assert event["response"]["status"] == "completed"
        assert kinds.index("response.created") < kinds.index("response.output_text.delta")


async def test_a_wrong_event_is_answered_and_the_session_goes_on(
    open_house: OpenHouse, receive: Any
) -> None:
    async with open_house() as house, house.connect() as connection:
        await receive(connection)
        await connection.send(b"\0\1")
        assert (await receive(connection))["error"]["code"] == "invalid_event"
        await connection.send('{"type": "no.such.event", "event_id": "mine"}')
        error = (await receive(connection))["error"]
        assert (error["code"], error["event_id"]) == ("unknown_event", "mine")
        await connection.send('{"type": "input_audio_buffer.clear"}')
        assert (await receive(connection))["type"] == "input_audio_buffer.cleared"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({}, 401),
        ({"additional_headers": {"Authorization": "Bearer wrong-key"}}, 401),
        ({"subprotocols": ["realtime", PROTOCOL + "wrong-key"]}, 401),
    ],
)
async def test_without_a_key_the_socket_is_not_even_opened(
    open_house: OpenHouse, options: dict[str, Any], status: int
) -> None:
    async with open_house(LOCKED) as house:
        got, error = await refusal(house, **options)
        assert (got, error["code"], error["type"]) == (
            status,
            "invalid_api_key",
            "authentication_error",
        )


@pytest.mark.parametrize(
    "options",
    [
        {"additional_headers": {"Authorization": f"Bearer {KEY}"}},
        {"additional_headers": {"api-key": KEY}},
        {"subprotocols": ["realtime", PROTOCOL + KEY]},
    ],
)
async def test_with_its_key_a_client_comes_in(
    open_house: OpenHouse, receive: Any, options: dict[str, Any]
) -> None:
    async with open_house(LOCKED) as house, house.connect(**options) as connection:
        assert (await receive(connection))["type"] == "session.created"


async def turned_away(connection: ClientConnection, receive: Any) -> tuple[str, int | None]:
    event = await receive(connection)
    assert event["type"] == "error"
    assert event["error"]["retry_after_ms"] > 0
    return event["error"]["code"], await close_code(connection)


async def test_one_too_many_for_the_server_is_told_so(open_house: OpenHouse, receive: Any) -> None:
    settings = Settings(engine="scripted", max_sessions=1)
    async with open_house(settings) as house, house.connect() as first:
        await receive(first)
        async with house.connect() as second:
            assert await turned_away(second, receive) == ("engine_overloaded", 1013)


async def test_one_too_many_for_the_engine_is_told_so(open_house: OpenHouse, receive: Any) -> None:
    async with open_house(capacity=1) as house, house.connect() as first:
        await receive(first)
        async with house.connect() as second:
            assert await turned_away(second, receive) == ("engine_overloaded", 1013)


async def test_who_comes_before_the_engine_is_ready_is_told_so(
    open_house: OpenHouse, receive: Any
) -> None:
    async with open_house(ready=False) as house, house.connect() as connection:
        assert await turned_away(connection, receive) == ("engine_unavailable", 1013)


async def test_who_comes_while_the_server_drains_is_told_so(
    open_house: OpenHouse, receive: Any
) -> None:
    async with open_house() as house:
        await house.service.registry.drain(0)
        async with house.connect() as connection:
            assert await turned_away(connection, receive) == ("engine_unavailable", 1012)


async def test_a_drain_closes_who_is_still_there(open_house: OpenHouse, receive: Any) -> None:
    async with open_house() as house, house.connect() as connection:
        await receive(connection)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(house.service.registry.drain, 0)
            assert await close_code(connection) == 1012
        assert house.service.registry.active == 0


async def test_a_place_is_free_again_after_its_client_has_gone(
    open_house: OpenHouse, receive: Any
) -> None:
    async with open_house(capacity=1) as house:
        for _ in range(3):
            async with house.connect() as connection:
                await receive(connection)
            while house.service.registry.active:
                await anyio.lowlevel.checkpoint()


async def test_a_failure_of_ours_closes_one_conversation_and_no_other(
    open_house: OpenHouse, receive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*args: object) -> None:
        raise ZeroDivisionError

    async with open_house() as house, house.connect() as other:
        await receive(other)
        with monkeypatch.context() as patch:
            patch.setattr(house.service.registry, "open", broken)
            async with house.connect() as connection:
                assert await close_code(connection) == 1011
        await other.send('{"type": "input_audio_buffer.clear"}')
        assert (await receive(other))["type"] == "input_audio_buffer.cleared"
