"""The figures of several gateways as those of one server.

What is counted is added up, histograms class by class; of what describes one thing that all see,
such as the places of the workers, the most is told. What workers report of themselves all gateways
know alike, so it is not gathered. A gateway that is replaced begins its counts again.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

_THE_SAME: Final = "duologue_worker_"
_MOST: Final = frozenset(
    {"duologue_ready", "duologue_places", "duologue_gateway_restarts", "python_info"}
    | {"process_virtual_memory_max_bytes", "process_max_fds"}
)
_LEAST: Final = ("process_start_time_seconds", "_created")

Key = tuple[str, tuple[tuple[str, str], ...]]


class _Gathered(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def gathered(own: str, others: Sequence[str]) -> bytes:
    """All figures in Prometheus' text format, from those of each gateway.

    Raises ValueError for what is not in that format.
    """
    families: dict[str, Metric] = {}
    values: dict[str, dict[Key, float]] = {}
    for text in (own, *others):
        for family in text_string_to_metric_families(text):
            if family.name.startswith(_THE_SAME) and text is not own:
                continue
            known = families.setdefault(
                family.name, Metric(family.name, family.documentation, family.type)
            )
            samples = values.setdefault(known.name, {})
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                join = _joining(sample.name)
                found = samples.get(key)
                samples[key] = sample.value if found is None else join((found, sample.value))
    for name, samples in values.items():
        for (sample_name, labels), value in samples.items():
            families[name].add_sample(sample_name, dict(labels), value)
    registry = CollectorRegistry()
    registry.register(_Gathered(families.values()))
    return generate_latest(registry)


def _joining(name: str) -> Callable[[tuple[float, float]], float]:
    if name.endswith(_LEAST):
        return min
    return max if name in _MOST else sum
