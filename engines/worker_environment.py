"""The environment variables that a worker starts with."""

from collections.abc import Mapping
from pathlib import Path

from duologue.models.openmp import with_openmp

DEFAULTS: Mapping[str, str] = {
    # Threads that wait for each other at a barrier sleep. Spinning, llama.cpp with a thread for
    # each core all but stops as soon as anything else runs: on two cores, one of them busy, it made
    # 0.4 tokens a second, and 11 with this. Alone it is some 10 % slower so.
    "OMP_WAIT_POLICY": "passive",
    # The models bring their own threads; NumPy's would only take cores from them.
    "OPENBLAS_NUM_THREADS": "1",
}


def worker_environment(
    environ: Mapping[str, str], directory: Path, given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The server's environment with what models need; what the operator has set stays, but for
    what is `given` to this worker alone.

    `directory` is the worker's own: a link to a library may be put there. Blocks for a moment.
    Raises OSError when it can't be made.
    """
    return with_openmp({**DEFAULTS, **environ, **(given or {})}, directory)
