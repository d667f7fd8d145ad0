"""What waits between a client and its session."""

import anyio
import pytest

from duologue.realtime.read_ahead import ReadAhead
from duologue.sessions.events import CancelResponse, ClearAudio
from duologue.sessions.ports import AudioBytes, TransportClosed
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


def ahead(**changes):
    return ReadAhead(**({"events": 3, "audio_bytes": 100, "run": 2} | changes))


async def test_events_come_in_order_and_a_cancel_overtakes_audio_alone():
    queue = ahead()
    first, clear, last = AudioBytes(b"1"), ClearAudio(None), AudioBytes(b"2")
    cancel = CancelResponse(None)
    for event in (first, clear, last, cancel):
        queue.put(event)
    assert [await queue.receive() for _ in range(4)] == [first, clear, cancel, last]


async def test_there_is_room_for_so_many_events_and_so_much_audio():
    queue = ahead()
    queue.put(AudioBytes(bytes(101)))
    assert not queue.has_room
    await queue.receive()
    assert queue.has_room
    for _ in range(3):
        queue.put(ClearAudio(None))
    assert not queue.has_room


async def test_who_waits_for_room_goes_on_when_something_was_taken_or_it_is_closed():
    for close in (False, True):
        queue = ahead(events=1)
        queue.put(ClearAudio(None))
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(queue.wait_for_room)
                await anyio.lowlevel.checkpoint()
                queue.close(True) if close else await queue.receive()


async def test_others_get_a_turn_after_a_run():
    queue = ahead(events=100, run=1)
    for _ in range(6):
        queue.put(ClearAudio(None))
    turns = 0

    async def other():
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        for _ in range(6):
            await queue.receive()
        tasks.cancel_scope.cancel()
    assert turns >= 3


async def test_what_waits_is_not_given_once_it_is_closed():
    queue = ahead()
    queue.put(ClearAudio(None))
    queue.close(clean=False)
    queue.close(clean=True)
    with pytest.raises(TransportClosed) as caught:
        await queue.receive()
    assert not caught.value.clean
