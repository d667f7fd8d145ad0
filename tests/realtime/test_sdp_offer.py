"""Offers, read: what browsers send, and what nobody should."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from duologue.realtime.sdp_offer import (
    LONGEST_SDP,
    MOST_CANDIDATES,
    MOST_SECTIONS,
    OfferedCandidate,
    parse_offer,
)
from duologue.sessions.errors import ProtocolError

OFFERS = Path(__file__).parent.parent / "data" / "sdp"
AUDIO = "m=audio 9 UDP/TLS/RTP/SAVPF 111\r\n"


def offer(name):
    return parse_offer((OFFERS / f"{name}.sdp").read_text())


def section(*lines):
    return parse_offer("v=0\r\n" + AUDIO + "".join(f"a={line}\r\n" for line in lines)).sections[0]


def refusal(text):
    with pytest.raises(ProtocolError) as caught:
        parse_offer(text)
    assert (caught.value.code, caught.value.param) == ("invalid_sdp", "sdp")
    return caught.value.message


def test_what_stands_at_session_level_counts_for_every_section():
    sections = offer("firefox-session-level-attributes").sections
    assert [s.kind for s in sections] == ["audio", "application"]
    assert {s.fingerprints[0].algorithm for s in sections} == {"sha-256"}
    assert {s.direction for s in sections} == {"sendrecv"}


def test_codecs_come_with_their_parameters_in_the_order_of_the_formats():
    codecs = offer("firefox-session-level-attributes").sections[0].codecs
    assert [(c.payload_type, c.name, c.clock_rate, c.channels) for c in codecs] == [
        (109, "opus", 48000, 2),
        (9, "G722", 8000, 1),
        (0, "PCMU", 8000, 1),
        (8, "PCMA", 8000, 1),
        (101, "telephone-event", 8000, 1),
    ]
    assert codecs[0].parameters["useinbandfec"] == "1"


def test_an_extension_may_have_a_direction():
    found = offer("firefox-session-level-attributes").sections[0].extensions
    assert found["urn:ietf:params:rtp-hdrext:csrc-audio-level"] == 2


def test_a_stopped_section_is_dead_and_one_that_is_only_bundled_is_not():
    stopped, audio, data = offer("firefox-stopped-audio-section").sections
    assert (stopped.dead, audio.dead, data.dead) == (True, False, False)
    bundled = parse_offer("v=0\nm=audio 0 UDP/TLS/RTP/SAVPF 0\na=bundle-only\n").sections[0]
    assert not bundled.dead


def test_names_in_place_of_addresses_are_left_out():
    assert offer("safari-data-channel-only-mdns").sections[0].candidates == ()


def test_the_old_form_of_a_data_channel_is_read():
    data = offer("safari-old-audio-video-data").sections[2]
    assert (data.sctp_map, data.sctp_port) == ("5000 webrtc-datachannel 1024", 5000)


def test_candidates_that_can_be_tried_are_kept():
    found = section(
        "candidate:1 1 udp 2113937151 192.0.2.1 5000 typ host generation 0",
        "candidate:2 1 UDP 99 2001:db8::1 5001 typ srflx raddr :: rport 9",
        "candidate:3 1 tcp 99 192.0.2.1 9 typ host tcptype active",
        "candidate:4 2 udp 99 192.0.2.1 5002 typ host",
        "candidate:5 1 udp 99 192.0.2.1 70000 typ host",
        "candidate:6 1 udp 99 192.0.2.1 5003 typ nothing",
        "candidate:7 1 udp 99",
        "candidate:8 1 udp 99 not-an-address 5003 typ host",
    ).candidates
    assert found == (
        OfferedCandidate("1", 2113937151, "192.0.2.1", 5000, "host"),
        OfferedCandidate("2", 99, "2001:db8::1", 5001, "srflx"),
    )


def test_only_so_many_candidates_are_tried():
    lines = [f"candidate:{n} 1 udp 9 192.0.2.1 {n} typ host" for n in range(1, 100)]
    assert len(section(*lines).candidates) == MOST_CANDIDATES


def test_a_number_that_is_none_counts_as_not_said():
    found = section("sctp-port:0", "max-message-size:many", "extmap:x uri", "extmap:3")
    assert (found.sctp_port, found.max_message_size, found.extensions) == (5000, 65536, {})


def test_codecs_without_a_map_are_skipped():
    assert section("rtpmap:nonsense", "fmtp:111", "rtpmap:300 opus/48000/2").codecs == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not SDP"),
        ("hello", "not SDP"),
        ('{"sdp": "v=0"}', "not SDP"),
        ("v=0\r\ns=-\r\n", "no media section"),
        ("v=0\r\nm=audio\r\n", "can't be read"),
        ("v=0\r\nm=audio 99999 RTP/AVP 0\r\n", "can't be read"),
        ("v=0\r\n" + "a=x\r\n" * LONGEST_SDP, "at most"),
        ("v=0\r\n" + AUDIO * (MOST_SECTIONS + 1), f"at most {MOST_SECTIONS} media"),
    ],
)
def test_what_is_no_offer_is_refused_with_a_reason(text, words):
    assert words in refusal(text)


@given(st.text(alphabet="vma=0:/ \r\n123udptyphos.-", max_size=300))
def test_no_text_raises_anything_else(text):
    for begun in (text, "v=0\r\nm=audio 9 UDP/TLS/RTP/SAVPF 111\r\na=" + text):
        try:
            parse_offer(begun)
        except ProtocolError as error:
            assert error.code == "invalid_sdp"


@given(st.data())
def test_an_offer_with_lines_gone_or_spoilt_raises_nothing_else(data):
    name = data.draw(st.sampled_from(sorted(path.stem for path in OFFERS.glob("*.sdp"))))
    lines = (OFFERS / f"{name}.sdp").read_text().splitlines()
    for _ in range(data.draw(st.integers(1, 6))):
        index = data.draw(st.integers(0, len(lines) - 1))
        lines[index] = data.draw(st.sampled_from(["", lines[index][:7], lines[index] + "x", "m="]))
    try:
        parse_offer("\n".join(lines))
    except ProtocolError as error:
        assert error.code == "invalid_sdp"


def test_the_longest_offer_is_read_too():
    lines = "a=candidate:1 1 udp 9 192.0.2.1 9 typ host\r\na=rtpmap:111 opus/48000/2\r\n"
    text = "v=0\r\n" + AUDIO + lines * ((LONGEST_SDP - 100) // len(lines))
    assert len(parse_offer(text).sections[0].candidates) == MOST_CANDIDATES
