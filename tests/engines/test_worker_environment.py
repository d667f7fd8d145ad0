from pathlib import Path

from duologue.engines.worker_environment import worker_environment


def test_threads_that_wait_sleep_unless_the_operator_says_otherwise(tmp_path: Path) -> None:
    assert worker_environment({"HOME": "/h"}, tmp_path)["OMP_WAIT_POLICY"] == "passive"
    environ = worker_environment({"HOME": "/h", "OMP_WAIT_POLICY": "active"}, tmp_path)
    assert environ["OMP_WAIT_POLICY"] == "active"
    assert environ["HOME"] == "/h"


def test_what_is_given_to_one_worker_wins(tmp_path: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "0,1", "OMP_WAIT_POLICY": "active"}
    given = {"CUDA_VISIBLE_DEVICES": "1", "OMP_NUM_THREADS": "3"}
    made = worker_environment(environ, tmp_path, given)
    assert (made["CUDA_VISIBLE_DEVICES"], made["OMP_NUM_THREADS"]) == ("1", "3")
    assert made["OMP_WAIT_POLICY"] == "active"
