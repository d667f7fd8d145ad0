"""What of a video section is taken, and how the answer says so."""

from dataclasses import replace
from pathlib import Path

import pytest

from duologue.realtime.sdp_offer import parse_offer
from duologue.realtime.sdp_video import choose_video, video_lines

OFFERS = Path(__file__).parent.parent / "data" / "sdp"
VIDEO = """v=0
m=video 9 UDP/TLS/RTP/SAVPF 96 97 102 103 104 105
a=mid:2
a=sendrecv
a=extmap:4 urn:ietf:params:rtp-hdrext:sdes:mid
a=rtpmap:96 AV1/90000
a=rtpmap:97 rtx/90000
a=fmtp:97 apt=96
a=rtpmap:102 H264/90000
a=fmtp:102 packetization-mode=0;profile-level-id=42e01f
a=rtpmap:103 H264/90000
a=fmtp:103 packetization-mode=1;profile-level-id=64001f
a=rtpmap:104 H264/90000
a=fmtp:104 packetization-mode=1;profile-level-id=42e01f
a=rtpmap:105 rtx/90000
a=fmtp:105 apt=104
"""


def section(text=VIDEO):
    return parse_offer(text).sections[0]


def chosen(text=VIDEO, *, sees=True, shows=True):
    return choose_video(0, section(text), sees=sees, shows=shows)


def answered(text=VIDEO, **flow):
    return list(video_lines(section(text), chosen(text, **flow), stream="s", ssrc=7, cname="c"))


def test_vp8_comes_before_h264():
    text = VIDEO.replace("AV1", "VP8")
    assert (chosen(text).name, chosen(text).retransmission) == ("VP8", 97)


def test_of_h264_the_plain_profile_in_mode_1_is_taken():
    assert (chosen().codec.payload_type, chosen().retransmission) == (104, 105)
    plain_is_missing = VIDEO.replace("packetization-mode=1;profile-level-id=42", "level-id=42")
    assert chosen(plain_is_missing).codec.payload_type == 103


def test_codecs_that_are_not_ours_are_left():
    assert chosen(VIDEO.replace("H264", "VP9")) is None
    assert chosen(VIDEO.replace("H264/90000", "H264/8000")) is None


@pytest.mark.parametrize(
    ("offered", "sees", "shows", "answer"),
    [
        ("sendrecv", True, True, "sendrecv"),
        ("sendrecv", True, False, "recvonly"),
        ("sendrecv", False, True, "sendonly"),
        ("sendonly", True, True, "recvonly"),
        ("recvonly", True, True, "sendonly"),
        ("recvonly", True, False, "inactive"),
        ("inactive", True, True, "inactive"),
    ],
)
def test_pictures_flow_where_both_sides_want_them(offered, sees, shows, answer):
    text = VIDEO.replace("a=sendrecv", f"a={offered}")
    assert chosen(text, sees=sees, shows=shows).direction == answer


def test_the_answer_has_the_codec_its_repair_and_what_is_sent():
    lines = answered()
    assert lines[0] == "m=video 9 UDP/TLS/RTP/SAVPF 104 105"
    assert "a=fmtp:104 packetization-mode=1;profile-level-id=42e01f" in lines
    assert {"a=rtcp-fb:104 nack pli", "a=rtcp-fb:104 goog-remb", "a=fmtp:105 apt=104"} <= {*lines}
    assert "a=extmap:4 urn:ietf:params:rtp-hdrext:sdes:mid" in lines
    assert "a=ssrc:7 cname:c" in lines


def test_what_is_not_sent_has_no_source():
    assert not any(line.startswith("a=ssrc") for line in answered(shows=False))


def test_a_section_without_a_name_has_none_in_the_answer():
    offered = replace(section(), mid=None)
    choice = choose_video(0, offered, sees=True, shows=True)
    assert choice.mid_extension is None
    lines = video_lines(offered, choice, stream="s", ssrc=7, cname="c")
    assert not any("mid" in line.split(":")[0] for line in lines)
