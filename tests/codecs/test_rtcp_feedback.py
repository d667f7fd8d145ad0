"""Feedback, read by another implementation."""

import pytest
from aiortc.rtp import (
    RTCP_PSFB_APP,
    RTCP_PSFB_PLI,
    RTCP_RTPFB_NACK,
    RtcpPacket,
    RtcpRrPacket,
    unpack_remb_fci,
)

from duologue.codecs.rtcp_feedback import build_nack, build_pli, build_remb


def read(data):
    report, feedback = RtcpPacket.parse(data)
    assert isinstance(report, RtcpRrPacket) and report.ssrc == 7
    assert feedback.ssrc == 7
    return feedback


@pytest.mark.parametrize(
    "numbers", [[5], [5, 6, 21], [5, 22], [1, 2, 3, 100, 101, 40_000], [65_535 + 65_536, 131_072]]
)
def test_lost_packets_are_named(numbers):
    feedback = read(build_nack(7, 9, numbers))
    assert (feedback.fmt, feedback.media_ssrc) == (RTCP_RTPFB_NACK, 9)
    assert [number & 0xFFFF for number in feedback.lost] == [number & 0xFFFF for number in numbers]


def test_a_key_picture_is_asked_for():
    feedback = read(build_pli(7, 9))
    assert (feedback.fmt, feedback.media_ssrc) == (RTCP_PSFB_PLI, 9)


@pytest.mark.parametrize("rate", [1, 100_000, 262_143, 800_000, 5_000_000])
def test_a_bit_rate_is_bounded(rate):
    feedback = read(build_remb(7, 9, rate))
    assert feedback.fmt == RTCP_PSFB_APP
    told, sources = unpack_remb_fci(feedback.fci)
    assert sources == [9]
    assert told == pytest.approx(rate, rel=1e-4)
    assert told <= rate
