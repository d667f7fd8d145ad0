"""Who may come in."""

import pytest

from duologue.sessions.session_config import SessionConfig
from duologue.web.auth import SECRET_PREFIX, Denial, Gate, Grant, SecretTable, digest

KEY = "key-of-the-house"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def status(answer: Grant | Denial | None) -> int:
    return answer.status if isinstance(answer, Denial) else 200


# -- keys -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "protocols"),
    [
        (bearer(KEY), []),
        ({"authorization": f"bearer   {KEY} "}, []),
        ({"api-key": KEY}, []),
        ({}, ["realtime", f"openai-insecure-api-key.{KEY}"]),
        ({}, [f"openai-insecure-api-key.{KEY}", "openai-beta.realtime-v1"]),
    ],
)
def test_a_key_may_come_in_several_ways(headers: dict[str, str], protocols: list[str]) -> None:
    assert Gate([KEY]).check_key(headers, protocols, 0.0) == Grant()


@pytest.mark.parametrize(
    "headers",
    [{}, bearer("wrong"), bearer(KEY + "x"), bearer(KEY[:-1]), {"authorization": f"Basic {KEY}"}],
)
def test_without_the_right_key_nobody_comes_in(headers: dict[str, str]) -> None:
    assert status(Gate(["other-key", KEY]).check_key(headers, [], 0.0)) == 401


def test_each_of_several_keys_opens() -> None:
    gate = Gate(["first-key", KEY])
    assert status(gate.check_key(bearer("first-key"), [], 0.0)) == 200
    assert status(gate.check_key(bearer(KEY), [], 0.0)) == 200


def test_where_no_key_is_needed_any_will_do() -> None:
    gate = Gate([])
    assert gate.check_key({}, [], 0.0) == Grant()
    assert gate.check_key(bearer("whatever"), [], 0.0) == Grant()


def test_keys_of_any_characters_are_compared() -> None:
    assert status(Gate([KEY]).check_key(bearer("clé"), [], 0.0)) == 401


# -- ephemeral secrets ----------------------------------------------------------------------


def test_a_secret_brings_its_session_until_it_expires() -> None:
    gate = Gate([KEY])
    config = SessionConfig(instructions="Sing.")
    secret = gate.secrets.issue(config, 10, now=100.0)
    assert secret.startswith(SECRET_PREFIX)
    protocols = [f"openai-insecure-api-key.{secret}"]
    for _ in range(2):
        assert gate.check_key({}, protocols, 109.9) == Grant(config, ephemeral=True)
    assert status(gate.check_key({}, protocols, 110.0)) == 401


def test_a_secret_that_was_never_issued_is_refused_even_where_no_key_is_needed() -> None:
    assert status(Gate([]).check_key(bearer(SECRET_PREFIX + "made-up"), [], 0.0)) == 401


def test_a_secret_of_elsewhere_is_known_by_its_hash_alone() -> None:
    issuing, other = SecretTable(), SecretTable(most=1)
    config = SessionConfig(instructions="Sing.")
    secret = issuing.issue(SessionConfig(), 10, 0.0)
    other.issue(SessionConfig(), 60, 0.0)
    other.adopt(digest(secret), config, 10.0, 0.0)
    assert other.find(secret, 9.9) is config
    assert other.find(secret, 10.0) is None
    assert len(other) == 1


def test_there_are_never_more_secrets_than_fit() -> None:
    table = SecretTable(most=3)
    config = SessionConfig()
    first, *others = [table.issue(config, 60, 0.0) for _ in range(4)]
    assert len(table) == 3
    assert table.find(first, 1.0) is None
    assert all(table.find(other, 1.0) is config for other in others)


def test_requests_for_secrets_take_no_more_bytes_than_fit() -> None:
    table = SecretTable(most_bytes=100)
    small, large, other = (
        table.issue(SessionConfig(), seconds, 0.0, size)
        for seconds, size in ((60, 30), (10, 60), (60, 40))
    )
    assert table.find(small, 1.0) is None
    assert table.find(large, 1.0) is not None
    alone = table.issue(SessionConfig(), 60, 20.0, 60)
    assert [table.find(one, 20.0) is not None for one in (other, alone)] == [True, True]
    assert len(table) == 2


def test_expired_secrets_make_room_before_others_are_pushed_out() -> None:
    table = SecretTable(most=2)
    long = table.issue(SessionConfig(), 600, 0.0)
    table.issue(SessionConfig(), 10, 0.0)
    table.issue(SessionConfig(), 10, 20.0)
    assert table.find(long, 20.0) is not None


# -- origins and host names -----------------------------------------------------------------


def place(gate: Gate, host: str, origin: str | None = None) -> int:
    headers = {"host": host} if origin is None else {"host": host, "origin": origin}
    return status(gate.check_place(headers))


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("127.0.0.1:8765", None),
        ("127.0.0.1:8765", "http://127.0.0.1:8765"),
        ("localhost:8765", "http://localhost:8765"),
        ("[::1]:8765", "http://[::1]:8765"),
        ("LOCALHOST:8765", "http://localhost:8765"),
        ("duologue.localhost", "http://duologue.localhost"),
        ("localhost", "https://localhost"),
        ("localhost:443", "https://localhost"),
    ],
)
def test_the_servers_own_pages_may_connect(host: str, origin: str | None) -> None:
    assert place(Gate([], host_names=[]), host, origin) == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://127.0.0.1:8000",
        "http://localhost.evil.example:8765",
        "https://127.0.0.1",
        "null",
        "",
        "http://127.0.0.1:8765@evil.example",
        "http://127.0.0.1:x",
        "file://",
        "http://[",
        "//[x]",
    ],
)
def test_other_pages_may_not(origin: str) -> None:
    assert place(Gate([], host_names=[]), "127.0.0.1:8765", origin) == 403
    assert place(Gate([KEY]), "127.0.0.1:8765", origin) == 403


@pytest.mark.parametrize(
    "host", ["evil.example:8765", "127.0.0.1.evil.example", "", "[", "10.0.0.1", "localhostx"]
)
def test_a_name_that_was_made_to_point_here_is_refused(host: str) -> None:
    assert place(Gate([], host_names=[]), host, f"http://{host}") == 403
    assert place(Gate([], host_names=[]), host) == 403


def test_off_loopback_any_name_will_do() -> None:
    assert place(Gate([KEY]), "voice.example.org", "https://voice.example.org") == 200


def test_the_operator_can_let_others_in() -> None:
    gate = Gate([], ["https://app.example.org/"], ["voice.internal"])
    assert place(gate, "localhost:8765", "https://app.example.org") == 200
    assert place(gate, "localhost:8765", "https://other.example.org") == 403
    assert place(gate, "voice.internal") == 200
    assert place(gate, "app.example.org", "https://app.example.org") == 200
    assert place(Gate([], ["*"], []), "localhost", "https://anyone.example") == 200


def test_a_denial_names_the_setting_that_would_help() -> None:
    denial = Gate([], host_names=[]).check_place({"host": "x"})
    assert denial is not None
    assert "allowed_hosts" in denial.message
    denial = Gate([]).check_place({"host": "x", "origin": "https://y"})
    assert denial is not None
    assert "allowed_origins" in denial.message
