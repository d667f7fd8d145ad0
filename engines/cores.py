"""How many processors this process may run on."""

import os


def usable_cores() -> int:
    """At least 1: the cores of the machine that the process is not kept from.

    Where the operating system tells the affinity mask, that counts: in a container or under
    ``taskset`` it is less than the machine has.
    """
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)
