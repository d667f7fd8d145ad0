"""Processes that are killed, and what they leave."""

import os
import signal
import subprocess
import sys

import psutil

from tests.patience import PATIENCE_S

HOLDER = """
import subprocess, sys
from duologue.engines.leash import Leash
leash = Leash()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, leash.pid, flush=True)
if sys.stdin.readline() == "free\\n":
    leash.free()
    leash.free()
    print("free", flush=True)
    sys.stdin.readline()
"""


def hold() -> tuple[subprocess.Popen[str], psutil.Process, psutil.Process]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    child, leash = map(int, holder.stdout.readline().split())
    return holder, psutil.Process(child), psutil.Process(leash)


def end(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    for pipe in (holder.stdin, holder.stdout):
        if pipe is not None:
            pipe.close()


def test_what_a_killed_process_started_is_ended() -> None:
    holder, child, leash = hold()
    end(holder)
    gone, alive = psutil.wait_procs([child, leash], timeout=PATIENCE_S)
    assert alive == []


def test_a_process_that_let_go_leaves_its_children_to_themselves() -> None:
    holder, child, leash = hold()
    assert holder.stdin is not None and holder.stdout is not None
    holder.stdin.write("free\n")
    holder.stdin.flush()
    assert holder.stdout.readline() == "free\n"
    assert not leash.is_running()
    end(holder)
    try:
        assert child.is_running()
        assert os.getpgid(child.pid) == holder.pid
    finally:
        child.send_signal(signal.SIGKILL)
