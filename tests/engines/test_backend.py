import anyio
import anyio.lowlevel
import pytest

from duologue.engines.backend import BURST, incoming
from duologue.engines.engine import CloseSession, Command
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


class Turns:
    """How often the event loop has come round."""

    number = 0

    async def count(self) -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            self.number += 1


async def test_commands_that_wait_are_given_together_in_order() -> None:
    send, receive = anyio.create_memory_object_stream[Command](BURST * 2)
    turns = Turns()
    with send, receive:
        for number in range(BURST):
            send.send_nowait(CloseSession(session=str(number)))
        send.close()
        async with anyio.create_task_group() as group:
            group.start_soon(turns.count)
            await anyio.lowlevel.checkpoint()
            before = turns.number
            heard, at = [], []
            async for command in incoming(receive):
                heard.append(command.session)
                at.append(turns.number)
            group.cancel_scope.cancel()
    assert heard == [str(number) for number in range(BURST)]
    assert len(set(at)) == 1 and at[0] >= before


async def test_others_have_their_turn_after_a_burst() -> None:
    send, receive = anyio.create_memory_object_stream[Command](BURST * 2)
    turns = Turns()
    with send, receive:
        for number in range(2 * BURST):
            send.send_nowait(CloseSession(session=str(number)))
        send.close()
        async with anyio.create_task_group() as group:
            group.start_soon(turns.count)
            at = [turns.number async for _ in incoming(receive)]
            group.cancel_scope.cancel()
    assert at[BURST - 1] < at[BURST]


async def test_commands_that_come_later_are_given_too() -> None:
    send, receive = anyio.create_memory_object_stream[Command](4)
    heard: list[str] = []

    async def listen() -> None:
        heard.extend([command.session async for command in incoming(receive)])

    with anyio.fail_after(PATIENCE_S), send, receive:
        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            for name in "ab":
                await anyio.wait_all_tasks_blocked()
                send.send_nowait(CloseSession(session=name))
            await anyio.wait_all_tasks_blocked()
            send.close()
    assert heard == ["a", "b"]
