"""The figures of several gateways as one server's."""

from prometheus_client.parser import text_string_to_metric_families

from duologue.web.gathered_figures import gathered
from duologue.web.metrics import Metrics


def values(text: bytes) -> dict[tuple[str, str], float]:
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_counts_and_histograms_are_added_up() -> None:
    one, other = Metrics(), Metrics()
    for metrics, sessions, waited in ((one, 2, 0.3), (other, 3, 7.0)):
        for _ in range(sessions):
            metrics.opened()
        metrics.queued(waited)
        metrics.refused("SessionsFull")
    other.refused("Draining")
    found = values(gathered(one.text().decode(), [other.text().decode()]))
    assert found["duologue_sessions_opened_total", ""] == 5
    assert found["duologue_sessions_refused_total", "SessionsFull"] == 2
    assert found["duologue_sessions_refused_total", "Draining"] == 1
    assert found["duologue_batch_queue_seconds_bucket", "0.5"] == 1
    assert found["duologue_batch_queue_seconds_bucket", "+Inf"] == 2
    assert found["duologue_batch_queue_seconds_count", ""] == 2
    assert found["duologue_batch_queue_seconds_sum", ""] == 7.3


def test_what_all_see_is_told_once() -> None:
    told = []
    for sessions, places in ((1, 8), (4, 6)):
        metrics = Metrics()
        metrics.watch("duologue_sessions", "", lambda sessions=sessions: sessions)  # type: ignore[misc]
        metrics.watch("duologue_places", "", lambda places=places: places)  # type: ignore[misc]
        metrics.watch("duologue_ready", "", lambda: 1)
        metrics.watch("duologue_worker_sessions", "", lambda sessions=sessions: sessions)  # type: ignore[misc]
        told.append(metrics.text().decode())
    found = values(gathered(told[0], told[1:]))
    assert found["duologue_sessions", ""] == 5
    assert found["duologue_places", ""] == 8
    assert found["duologue_ready", ""] == 1
    assert found["duologue_worker_sessions", ""] == 1


def test_of_processes_the_earliest_start_is_told_and_their_time_together() -> None:
    def text(start: float, cpu: float) -> str:
        return (
            "# TYPE process_start_time_seconds gauge\n"
            f"process_start_time_seconds {start}\n"
            "# TYPE process_cpu_seconds_total counter\n"
            f"process_cpu_seconds_total {cpu}\n"
        )

    found = values(gathered(text(100.0, 1.5), [text(90.0, 2.0)]))
    assert found["process_start_time_seconds", ""] == 90.0
    assert found["process_cpu_seconds_total", ""] == 3.5


def test_alone_a_gateway_says_what_it_would_say_anyway() -> None:
    text = Metrics().text()
    left_out = ("process_", "python_gc")
    own, alone = (
        {k: v for k, v in values(one).items() if not k[0].startswith(left_out)}
        for one in (text, gathered(text.decode(), []))
    )
    assert own == alone
