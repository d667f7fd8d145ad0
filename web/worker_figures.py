"""What workers report of themselves with their heartbeat, as families for Prometheus."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.registry import Collector

from duologue.engines.pulse import Durations, Reading


class Watched(Protocol):
    """A supervisor, as its figures are read."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def restarts(self) -> int: ...

    @property
    def sessions(self) -> int: ...

    @property
    def start_s(self) -> float: ...

    @property
    def reading(self) -> Reading: ...


_GAUGES: Final[Mapping[str, tuple[str, str]]] = {
    "slots_taken": ("duologue_worker_slots_taken", "Sessions in the batch of a lockstep model."),
    "tick_p50_s": ("duologue_worker_tick_median_seconds", "Median of the last ticks."),
    "tick_p99_s": ("duologue_worker_tick_p99_seconds", "99th percentile of the last ticks."),
}
_COUNTERS: Final[Mapping[str, tuple[str, str]]] = {
    "ticks": ("duologue_worker_ticks", "Ticks of a lockstep model."),
    "frames": ("duologue_worker_frames", "Frames of sessions that went through a tick."),
    "frames_silent": (
        "duologue_worker_frames_silent",
        "Frames that had not come in time and were silence.",
    ),
    "frames_dropped": ("duologue_worker_frames_dropped", "Frames that came too soon for a tick."),
    "frames_missed": (
        "duologue_worker_deadline_misses",
        "Frames whose tick ended after its period.",
    ),
}
"""Of what a backend measures of itself (`Reading.gauges`) only these are told: labels and names
are bounded."""


class WorkerFigures(Collector):
    """Asked when the figures are. The label ``worker`` has the workers' names."""

    def __init__(self, workers: Sequence[Watched]) -> None:
        self._workers = workers

    def collect(self) -> Iterable[Metric]:
        yield self._gauge(
            "duologue_worker_ready",
            "Whether the worker takes sessions.",
            lambda one: one.state == "ready",
        )
        yield self._counter(
            "duologue_worker_restarts", "Restarts of the worker.", lambda one: one.restarts
        )
        yield self._gauge(
            "duologue_worker_start_seconds",
            "What the worker's last start took, to the end of its warm-up.",
            lambda one: one.start_s,
        )
        yield self._gauge(
            "duologue_worker_sessions", "Conversations of the worker.", lambda one: one.sessions
        )
        yield self._counter(
            "duologue_worker_cpu_seconds",
            "Processor time of the worker.",
            lambda one: one.reading.cpu_s,
        )
        yield self._gauge(
            "duologue_worker_peak_memory_bytes",
            "The most memory that the worker has had resident.",
            lambda one: one.reading.peak_bytes,
        )
        yield self._histogram(
            "duologue_worker_step_seconds",
            "Steps of the models: calls that can't be interrupted.",
            lambda one: one.reading.step_times,
        )
        yield self._histogram(
            "duologue_worker_queue_seconds",
            "What calls into the models waited for their turn.",
            lambda one: one.reading.waits,
        )
        for name, (family, text) in _GAUGES.items():
            yield self._gauge(family, text, _named(name), name)
        for name, (family, text) in _COUNTERS.items():
            yield self._counter(family, text, _named(name), name)

    def _gauge(
        self, name: str, text: str, value: Callable[[Watched], float], needs: str = ""
    ) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["worker"])
        for one in self._telling(needs):
            family.add_metric([one.name], float(value(one)))
        return family

    def _counter(
        self, name: str, text: str, value: Callable[[Watched], float], needs: str = ""
    ) -> Metric:
        family = CounterMetricFamily(name, text, labels=["worker"])
        for one in self._telling(needs):
            family.add_metric([one.name], float(value(one)))
        return family

    def _histogram(self, name: str, text: str, value: Callable[[Watched], Durations]) -> Metric:
        family = HistogramMetricFamily(name, text, labels=["worker"])
        for one in self._workers:
            durations = value(one)
            buckets = [(_bound(bound), float(count)) for bound, count in durations.cumulative()]
            family.add_metric([one.name], buckets, durations.sum_s)
        return family

    def _telling(self, needs: str) -> list[Watched]:
        return [one for one in self._workers if not needs or needs in one.reading.gauges]


def _named(name: str) -> Callable[[Watched], float]:
    return lambda one: one.reading.gauges[name]


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else f"{bound:g}"
