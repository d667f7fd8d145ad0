from pathlib import Path

from duologue.engines.worker_environment import worker_environment


def test_threads_that_wait_sleep_unless_the_operator_says_otherwise(tmp_path: Path) -> None:
    assert worker_environment({"HOME": "/h"}, tmp_path)["OMP_WAIT_POLICY"] == "passive"
    environ = worker_environment({"HOME": "/h", "OMP_WAIT_POLICY": "active"}, tmp_path)
    assert environ["OMP_WAIT_POLICY"] == "active"
    assert environ["HOME"] == "/h"
