"""What all calls heard together, as the process's figures have it."""

from duologue.realtime.reception_totals import ReceptionTotals
from duologue.web.metrics import Metrics
from tests.realtime.test_rtp_receiver import Line


def test_a_stream_is_added_as_it_grows_and_once() -> None:
    totals, before = ReceptionTotals(), ReceptionTotals()
    after = ReceptionTotals(10, 2, 0.24, 0.02, 0.02, 0.05)
    totals.add(after, before)
    totals.add(after, after)
    assert totals == after


def test_a_late_packet_takes_back_no_loss_that_was_counted() -> None:
    totals = ReceptionTotals(lost=3)
    totals.add(ReceptionTotals(lost=1), ReceptionTotals(lost=2))
    assert totals.lost == 3


def test_calls_that_ended_and_sources_that_changed_are_counted_too() -> None:
    totals = ReceptionTotals()
    for ssrc in (1, 2):
        line = Line()
        line.receiver._totals = totals
        for number in range(100):
            if number % 20 != 7:
                line.send(number, ssrc=ssrc)
            line.wait()
        line.wait(0.5)
        line.send(200, ssrc=ssrc + 10)
        line.receiver.stop()
        line.receiver.stop()
    assert totals.received == 2 * (95 + 1)
    assert totals.lost == 2 * 5
    # The packet of the second source is 20 ms more.
    assert round(totals.decoded * 50) == 2 * 101
    assert round((totals.recovered + totals.concealed) * 50) == 2 * 5
    # Two packets, or one, waited behind each gap.
    assert 0 < totals.waited <= 2 * 5 * 0.06


def test_the_figures_have_them() -> None:
    metrics, totals = Metrics(), ReceptionTotals(received=7, concealed=0.5)
    metrics.watch_reception(totals)
    text = metrics.text().decode()
    assert "duologue_rtc_packets_received 7.0" in text
    assert "duologue_rtc_concealed_seconds 0.5" in text
