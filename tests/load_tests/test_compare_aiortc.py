"""The comparison's own arithmetic, and that its ways echo."""

import numpy as np
import pytest
from aiortc import rtp
from av import AudioFrame

from duologue.codecs.opus import OpusDecoder
from load_tests.compare_aiortc import WAYS as COMPARED, Call, Trial, prepare, row, voiced
from load_tests.echo_server import WAYS, audio_level
from load_tests.recordings import RATE


@pytest.mark.parametrize("peak", [0, 1, 100, 30_000])
def test_the_level_in_numpy_is_aiortcs(peak: int) -> None:
    samples = (peak * np.sin(np.arange(960) / 5)).astype(np.int16)
    frame = AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
    frame.sample_rate = 48_000
    assert audio_level(frame) == rtp.compute_audio_level_dbov(frame)


def test_pauses_are_left_out_and_packets_are_prepared() -> None:
    tone = (8000 * np.sin(np.arange(RATE) / 10)).astype(np.int16)
    speech = voiced(np.concatenate((tone, np.zeros(RATE, np.int16), tone)))
    assert len(speech) == 2 * RATE
    packets = prepare(speech)
    assert len(packets) == 100
    assert len(OpusDecoder(RATE).decode(packets[50])) == RATE // 50


def test_lateness_is_counted_from_the_fastest_packet_through_the_wrap() -> None:
    call = Call.__new__(Call)
    first = (1 << 32) - 960
    call.arrivals = [
        ((first + n * 960) % (1 << 32), 5.0 + n * 0.02 + (0.03 if n == 2 else 0.001))
        for n in range(5)
    ]
    assert call.lateness() == pytest.approx([0, 0, 0.029, 0, 0], abs=1e-9)
    call.arrivals = []
    assert call.lateness() == []


def trial(late: int, received: int) -> Trial:
    return Trial(
        sessions=10,
        received=received,
        expected=1000,
        late=late,
        lateness_ms=[1.0] * received,
        cpu_percent=50.0,
    )


def test_one_late_or_missing_packet_in_a_thousand_is_the_machines() -> None:
    assert trial(1, 1000).good
    assert trial(0, 1010).good
    assert not trial(2, 1000).good
    assert not trial(0, 998).good
    assert trial(0, 1000).cpu_us_per_pair == pytest.approx(1000)
    assert "10 calls" in row("duologue", trial(0, 1000))
    assert "nan" in row("duologue", trial(0, 0))


def test_each_way_that_is_compared_can_be_run() -> None:
    assert set(COMPARED) <= set(WAYS)
