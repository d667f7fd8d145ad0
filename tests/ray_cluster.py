"""Ray clusters whose machines are all this one, patient where its processor is busy."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

START_S = 240.0
"""How long one of Ray's own processes may take to start; Ray gives up after 30 seconds."""

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "240",
    "RAY_py_gcs_connect_timeout_s": "240",
    "RAY_worker_register_timeout_seconds": "240",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_agent_register_timeout_ms": "240000",
    "RAY_gcs_server_port_wait_time_s": "240",
}


def _patient(look: Callable[..., Any]) -> Callable[..., Any]:
    """`look` fails while a machine is starting; this one waits meanwhile."""

    def patient(*args: Any, **options: Any) -> Any:
        deadline = time.monotonic() + START_S  # noqa: TID251
        while True:
            try:
                return look(*args, **options)
            except RuntimeError:
                if time.monotonic() > deadline:  # noqa: TID251
                    raise
                time.sleep(0.1)

    return patient


@contextmanager
def local_cluster() -> Iterator[Any]:
    """A cluster of one machine with one processor; ``add_node`` adds others.

    What is started meanwhile joins it with the same patience.
    """
    from ray._private import services
    from ray.cluster_utils import Cluster

    with (
        patch.dict(os.environ, SETTINGS),
        patch.object(services, "get_node", _patient(services.get_node)),
    ):
        cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        try:
            yield cluster
        finally:
            cluster.shutdown()
