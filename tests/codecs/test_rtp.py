"""RTP: headers, numbering through its wraps, reports. aiortc reads what we write."""

import pytest
from aiortc import rtp as theirs
from hypothesis import given, strategies as st

from duologue.codecs.media import MalformedDataError
from duologue.codecs.rtp import (
    NTP_EPOCH,
    Reception,
    RtpPacket,
    build_bye,
    build_receiver_report,
    build_rtp,
    build_sender_report,
    mid_extension,
    ntp_time,
    parse_rtp,
)

packets = st.builds(
    RtpPacket,
    st.integers(0, 127),
    st.booleans(),
    st.integers(0, 0xFFFF),
    st.integers(0, 0xFFFFFFFF),
    st.integers(0, 0xFFFFFFFF),
    st.binary(max_size=100),
)


@given(packets)
def test_a_packet_is_read_as_it_was_written(packet: RtpPacket) -> None:
    assert parse_rtp(build_rtp(packet)) == packet
    assert parse_rtp(build_rtp(packet, mid_extension(3, "audio"))) == packet


@given(packets, st.lists(st.integers(0, 0xFFFFFFFF), max_size=15), st.integers(0, 255))
def test_a_packet_of_aiortc_is_read(packet: RtpPacket, sources: list[int], padding: int) -> None:
    other = theirs.RtpPacket(
        packet.payload_type,
        int(packet.marker),
        packet.sequence,
        packet.timestamp,
        packet.ssrc,
        packet.payload,
    )
    other.csrc = sources
    other.padding_size = padding
    assert parse_rtp(other.serialize()) == packet


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        packet = parse_rtp(data)
    except MalformedDataError:
        return
    assert len(packet.payload) <= len(data) - 12


@pytest.mark.parametrize(
    "data",
    [
        bytes(12),
        b"\x80" + bytes(10),
        b"\x90" + bytes(11),
        b"\x90" + bytes(11) + b"\xbe\xde\x00\x09",
        b"\xa0" + bytes(11) + b"\x00",
        b"\xa0" + bytes(11) + b"\x09",
        b"\x8f" + bytes(11),
    ],
)
def test_a_packet_cut_short_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedDataError):
        parse_rtp(data)


def test_the_section_a_packet_belongs_to_is_read_by_aiortc() -> None:
    extensions = theirs.HeaderExtensionsMap()
    extensions._HeaderExtensionsMap__ids.mid = 4  # type: ignore[attr-defined]
    data = build_rtp(RtpPacket(111, False, 1, 2, 3, b"sound"), mid_extension(4, "0"))
    assert theirs.RtpPacket.parse(data, extensions).extensions.mid == "0"
    for identifier, mid in ((0, "a"), (15, "a"), (1, ""), (1, "m" * 17)):
        with pytest.raises(MalformedDataError):
            mid_extension(identifier, mid)


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF), st.permutations(range(8)))
def test_numbers_go_on_through_wraps_and_reordering(
    sequence: int, timestamp: int, order: list[int]
) -> None:
    reception = Reception(1, 48_000)
    first = reception.place(sequence, timestamp, 0.0)
    assert first is not None
    for block in range(0, 160, 8):
        for offset in order:
            number = 1 + block + offset
            place = reception.place(
                (sequence + number) & 0xFFFF,
                (timestamp + number * 960) & 0xFFFFFFFF,
                number * 0.02,
            )
            assert place == (first.sequence + number, first.timestamp + number * 960, False)
    assert reception.lost == 0


def test_a_whole_cycle_of_numbers_is_followed() -> None:
    reception = Reception(1, 48_000)
    for number in range(200_000):
        place = reception.place(number & 0xFFFF, number * 48_000 & 0xFFFFFFFF, number)
        assert place is not None and place.sequence == number + 0x10000
    assert (reception.expected, reception.lost) == (200_000, 0)


def test_a_stray_packet_is_no_part_of_the_stream_but_two_in_a_row_restart_it() -> None:
    reception = Reception(1, 8000)
    assert reception.place(1000, 0, 0.0) is not None
    assert reception.place(30_000, 7, 0.02) is None
    assert reception.place(1001, 160, 0.02) is not None
    assert reception.place(30_001, 7, 0.04) is None
    place = reception.place(30_002, 500, 0.06)
    assert place is not None and place.restarted
    assert (reception.received, reception.lost) == (1, 0)


def test_a_packet_from_before_the_first_has_a_number() -> None:
    reception = Reception(1, 8000)
    first = reception.place(5, 1000, 0.0)
    before = reception.place(4, 840, 0.0)
    assert first is not None and before is not None
    assert (first.sequence - before.sequence, first.timestamp - before.timestamp) == (1, 160)


def test_reports_count_loss_and_jitter() -> None:
    reception = Reception(7, 48_000)
    for number in range(100):
        if number % 4:
            late = 0.010 if number % 8 < 4 else 0.0
            reception.place(number, number * 960, number * 0.02 + late)
    block = reception.report(last_report=5, delay=6)
    assert (block.ssrc, block.lost) == (7, 24)
    assert block.fraction_lost == pytest.approx(256 * 24 / 99, abs=1)
    assert 0.001 < reception.jitter < 0.010
    assert reception.report().fraction_lost == 0
    data = build_receiver_report(9, "name", block)
    report, description = theirs.RtcpPacket.parse(data)
    assert isinstance(report, theirs.RtcpRrPacket)
    seen = report.reports[0]
    assert (seen.packets_lost, seen.lsr, seen.dlsr) == (24, 5, 6)
    assert seen.highest_sequence & 0xFFFF == 99
    assert isinstance(description, theirs.RtcpSdesPacket)
    assert description.chunks[0].items == [(1, b"name")]


def test_more_duplicates_than_losses_are_a_negative_count() -> None:
    reception = Reception(7, 8000)
    for _ in range(3):
        reception.place(1, 0, 0.0)
    report = theirs.RtcpPacket.parse(build_receiver_report(9, "", reception.report()))[0]
    assert isinstance(report, theirs.RtcpRrPacket)
    assert report.reports[0].packets_lost == -2
    assert Reception(1, 8000).report().lost == 0


def test_what_is_sent_is_reported_and_taken_leave_of() -> None:
    ntp = ntp_time(1_000_000_000.5)
    assert ntp == (1_000_000_000 + NTP_EPOCH) << 32 | 1 << 31
    data = build_sender_report(9, "us", ntp, 1 << 33, 10, 1000)
    report, description = theirs.RtcpPacket.parse(data)
    assert isinstance(report, theirs.RtcpSrPacket)
    info = report.sender_info
    assert (info.ntp_timestamp, info.rtp_timestamp, info.packet_count) == (ntp, 0, 10)
    assert isinstance(description, theirs.RtcpSdesPacket)
    bye = theirs.RtcpPacket.parse(build_bye(9, "us"))[-1]
    assert isinstance(bye, theirs.RtcpByePacket) and bye.sources == [9]
