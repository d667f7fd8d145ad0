import os
import signal
import sys

import anyio
import pytest

from duologue.engines.child_process import start_child
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio

ECHO = "import os\nwhile data := os.read(0, 100): os.write(1, data)\nraise SystemExit(7)"


async def test_what_it_is_told_and_says_goes_through_its_standard_streams() -> None:
    with anyio.fail_after(PATIENCE_S):
        child = await start_child([sys.executable, "-c", ECHO], os.environ)
        await child.stdin.send(b"hello")
        assert await child.stdout.receive() == b"hello"
        assert child.returncode is None
        await child.stdin.aclose()
        with pytest.raises(anyio.EndOfStream):
            await child.stdout.receive()
        assert await child.wait() == child.returncode == 7
        child.kill()
        await child.aclose()


async def test_one_that_is_killed_says_so() -> None:
    with anyio.fail_after(PATIENCE_S):
        child = await start_child([sys.executable, "-c", ECHO], os.environ)
        with anyio.move_on_after(0):
            await child.wait()
        child.kill()
        assert await child.wait() == -signal.SIGKILL
        await child.aclose()


async def test_it_gets_its_environment_and_the_descriptors_that_are_passed() -> None:
    program = "import os\nos.write(1, os.environ['WORD'].encode() + os.read({}, 100))"
    source, sink = os.pipe()
    try:
        with anyio.fail_after(PATIENCE_S):
            command = [sys.executable, "-c", program.format(source)]
            child = await start_child(command, {"WORD": "heard "}, [source])
            os.write(sink, b"through the pipe")
            assert await child.stdout.receive() == b"heard through the pipe"
            assert await child.wait() == 0
            await child.aclose()
    finally:
        os.close(source)
        os.close(sink)


async def test_a_program_that_is_not_there_leaves_nothing_open() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        await start_child(["/there/is/none"], os.environ)
    assert len(os.listdir("/proc/self/fd")) == len(before)
