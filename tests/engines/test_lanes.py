from typing import get_args

import anyio
import anyio.lowlevel
import msgspec
import pytest

from duologue.engines import engine
from duologue.engines.engine import (
    Acknowledge,
    CancelResponse,
    CloseSession,
    Command,
    EndUtterance,
    Hear,
    JudgeTurn,
    Output,
    Respond,
    ResponseEnded,
    ResponseRequest,
    SpeechGenerated,
    TranscriptFinal,
    TurnJudged,
)
from duologue.engines.lane import Lane, LaneLimits
from duologue.engines.lanes import (
    Link,
    ToGateway,
    ToWorker,
    gateway_lane,
    new_gateway_name,
    send_command,
    send_output,
    worker_lane,
)
from duologue.engines.unix_stream import UnixStream
from tests.engines.wire import Wire, framed
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

REQUEST = ResponseRequest(instructions="", messages=())


def sent_by(lane: Lane[ToWorker] | Lane[ToGateway]) -> bool:
    return lane.queued_bytes > 0


def links() -> tuple[Link[ToGateway], Link[ToWorker]]:
    limits = LaneLimits()
    gateway = Link(gateway_lane(Wire(), limits), gateway_lane(Wire(), limits))
    worker = Link(worker_lane(Wire(), limits), worker_lane(Wire(), limits))
    return gateway, worker


# -- which lane -----------------------------------------------------------------------------


async def test_nothing_passes_the_audio_that_it_is_about() -> None:
    for command in (
        Hear("u", 0, b"", session="s"),
        EndUtterance("u", 0, session="s"),
        JudgeTurn("u", 0, session="s"),
        Respond(1, REQUEST, session="s"),
    ):
        gateway, _ = links()
        send_command(gateway, command)
        assert sent_by(gateway.data) and not sent_by(gateway.control)


async def test_a_close_and_an_acknowledgement_overtake() -> None:
    for command in (CloseSession(session="s"), Acknowledge(1, 100, session="s")):
        gateway, _ = links()
        send_command(gateway, command)
        assert sent_by(gateway.control) and not sent_by(gateway.data)


async def test_a_cancel_takes_both_lanes() -> None:
    gateway, _ = links()
    send_command(gateway, CancelResponse(1, session="s"))
    assert sent_by(gateway.control) and sent_by(gateway.data)


async def test_the_end_of_an_answer_does_not_pass_its_speech() -> None:
    for output in (
        SpeechGenerated(1, b"", session="s"),
        ResponseEnded(1, "completed", session="s"),
    ):
        _, worker = links()
        send_output(worker, output)
        assert sent_by(worker.data) and not sent_by(worker.control)


async def test_what_was_heard_overtakes_speech() -> None:
    for output in (
        TranscriptFinal("u", "", 0.0, session="s"),
        TurnJudged("u", 0, 1.0, session="s"),
    ):
        _, worker = links()
        send_output(worker, output)
        assert sent_by(worker.control) and not sent_by(worker.data)


async def test_everything_with_a_generation_comes_by_the_data_lane() -> None:
    for kind in get_args(Output):
        _, worker = links()
        values = {"session": "s", "reason": "completed", "words": (), "seconds": 0.0}
        fields = {
            field.name: values.get(field.name, 0 if field.type is int else "")
            for field in msgspec.structs.fields(kind)
            if field.required
        }
        send_output(worker, kind(**fields))
        assert sent_by(worker.data) == ("generation" in kind.__struct_fields__)


@pytest.mark.parametrize("union", [Command, Output])
def test_every_message_of_the_contract_can_be_told_apart(union: object) -> None:
    kinds = get_args(union)
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)
    messages = {
        value
        for value in vars(engine).values()
        if isinstance(value, type) and "session" in getattr(value, "__struct_fields__", ())
    }
    assert set(get_args(Command)) | set(get_args(Output)) == messages - {engine._Message}


async def test_a_link_ends_with_the_first_lane_that_breaks(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    broken = worker_lane(Wire(framed(b"\xc1")), LaneLimits())
    link = Link(worker_lane(sockets[0], LaneLimits()), broken)

    async def ignore(messages: list[ToWorker]) -> None:
        pass

    with anyio.fail_after(PATIENCE_S):
        assert "decoded" in await link.run(ignore, ignore)
        with pytest.raises(anyio.EndOfStream):
            await sockets[1].receive(100)


async def test_a_link_that_was_failed_keeps_the_first_reason(
    sockets: tuple[UnixStream, UnixStream],
) -> None:
    link = Link(worker_lane(sockets[0], LaneLimits()), worker_lane(sockets[1], LaneLimits()))
    link.fail("first")
    link.fail("second")

    async def ignore(messages: list[ToWorker]) -> None:
        pass

    with anyio.fail_after(PATIENCE_S):
        assert await link.run(ignore, ignore) == "first"


def test_no_two_gateways_have_one_name() -> None:
    assert len({new_gateway_name() for _ in range(100)}) == 100
