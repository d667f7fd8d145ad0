import msgspec
import pytest

from duologue.engines.lifeline import Beat, Report, Started, StartFailed, WorkerConfig
from duologue.engines.pulse import Reading


@pytest.mark.parametrize(
    "report", [Started(4), StartFailed("no such file"), Beat(3, Reading(17, 0.5))]
)
def test_a_report_survives_the_pipe(report: Report) -> None:
    payload = msgspec.msgpack.encode([report])
    assert msgspec.msgpack.decode(payload, type=list[Report]) == [report]


def test_a_configuration_survives_the_pipe() -> None:
    config = WorkerConfig(
        name="a", backend="scripted", directory="/run/x", options=b"\x81\xa1a\x01"
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(config), type=WorkerConfig) == config


def test_options_are_an_empty_map_unless_given() -> None:
    config = WorkerConfig(name="a", backend="scripted", directory="/run/x")
    assert msgspec.msgpack.decode(config.options) == {}
