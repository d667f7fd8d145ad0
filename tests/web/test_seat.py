"""One gateway among several: whose an id is, and which ports are its own."""

import re
from pathlib import Path

import pytest

from duologue.engines.lifeline import Staff, Told
from duologue.engines.pulse import Reading
from duologue.sessions.headcount import Headcount
from duologue.web.seat import Seat, ToldWorker, inside_socket, share_of
from duologue.web.settings import Settings, SettingsError

DIRECTORIES = [Path("/run/a"), Path("/run/b"), Path("/run/c")]


def seat(number: int) -> Seat:
    return Seat(number, DIRECTORIES, [], {"one": ToldWorker("one")}, Headcount())


def test_an_id_tells_the_others_whose_it_is_and_looks_as_ever() -> None:
    for number, directory in enumerate(DIRECTORIES):
        made = seat(number).new_id("rtc")
        assert re.fullmatch(r"rtc_[0-9a-f]{20}", made)
        for other in {0, 1, 2} - {number}:
            assert seat(other).owner(made) == inside_socket(directory)
        assert seat(number).owner(made) is None


@pytest.mark.parametrize(
    "found", ["", "rtc_", "rtc_03" + "0" * 18, "rtc_01", "sess_01" + "0" * 18, "rtc_01" + "g" * 18]
)
def test_what_no_gateway_has_made_is_nobody_elses(found: str) -> None:
    assert seat(0).owner(found) is None


def test_what_the_parent_tells_of_a_worker_is_kept() -> None:
    told = Told(name="one", state="ready", restarts=2, sessions=3, start_s=1.5, reading=Reading(7))
    unknown = Told(name="?", state="ready", restarts=0, sessions=0, start_s=0, reading=Reading())
    one = seat(1)
    one.hear(Staff((told, unknown), 4))
    worker = one.told["one"]
    assert (worker.state, worker.restarts, worker.sessions) == ("ready", 2, 3)
    assert (worker.start_s, worker.reading.steps, one.gateway_restarts) == (1.5, 7, 4)
    assert list(one.told) == ["one"]


@pytest.mark.parametrize(
    ("ports", "parts"),
    [
        (None, [None, None, None]),
        ("40000-40002", ["40000-40000", "40001-40001", "40002-40002"]),
        ("40000-40006", ["40000-40001", "40002-40003", "40004-40005"]),
        ("nonsense", ["nonsense"] * 3),
    ],
)
def test_each_gateway_has_its_part_of_the_ports(ports: str | None, parts: list[str | None]) -> None:
    settings = Settings(gateways=3, rtc_ports=ports)
    assert [share_of(settings, number).rtc_ports for number in range(3)] == parts


@pytest.mark.parametrize("ports", ["40000", "40000-40001", "40000-40004"])
def test_ports_that_can_not_be_divided_are_refused(ports: str) -> None:
    with pytest.raises(SettingsError, match="3 gateways need 3 ports"):
        share_of(Settings(gateways=3, rtc_ports=ports), 0)


def test_a_cluster_has_one_gateway() -> None:
    with pytest.raises(SettingsError, match="gateways and cluster"):
        Settings(gateways=2, cluster="auto")
