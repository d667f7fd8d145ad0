"""What of an offer is taken, and how the answer says so."""

from dataclasses import replace
from pathlib import Path

import pytest

from duologue.realtime.sdp_answer import LocalSide, choose, write_answer
from duologue.realtime.sdp_offer import parse_offer
from duologue.sessions.errors import ProtocolError

OFFERS = Path(__file__).parent.parent / "data" / "sdp"
LOCAL = LocalSide(
    ufrag="ours",
    password="secret",
    fingerprint="AA:BB",
    candidates=["1 1 udp 9 192.0.2.9 4000 typ host"],
    ssrc=7,
    cname="c",
    origin=1,
)
HEAD = "v=0\r\na=group:BUNDLE 0 1\r\n"
AUDIO = """m=audio 9 UDP/TLS/RTP/SAVPF 111
a=mid:0
a=rtcp-mux
a=rtpmap:111 opus/48000/2
a=ice-ufrag:u
a=ice-pwd:p
a=fingerprint:sha-256 AA
a=setup:actpass
"""
DATA = """m=application 9 UDP/DTLS/SCTP webrtc-datachannel
a=mid:1
a=ice-ufrag:u
a=ice-pwd:p
a=fingerprint:sha-256 AA
a=sctp-port:5001
a=max-message-size:1000
"""


def named(name):
    return parse_offer((OFFERS / f"{name}.sdp").read_text())


def answered(offer):
    """The answer's sections, as lists of lines, and what was chosen."""
    choice = choose(offer)
    text = write_answer(offer, choice, LOCAL)
    head, *sections = text.split("m=")
    return choice, head.split("\r\n"), [("m=" + section).split("\r\n") for section in sections]


def refusal(text):
    with pytest.raises(ProtocolError) as caught:
        choose(parse_offer(text))
    assert caught.value.code == "invalid_sdp"
    return caught.value.message


# -- what browsers offer --------------------------------------------------------------------


def test_an_answer_has_per_section_what_the_offer_had_for_all():
    choice, _, sections = answered(named("firefox-session-level-attributes"))
    assert choice.fingerprints[0].algorithm == "sha-256"
    for lines in sections:
        assert "a=fingerprint:sha-256 AA:BB" in lines
        assert "a=ice-ufrag:ours" in lines
        assert "a=setup:active" in lines
    assert "a=sendrecv" in sections[0]
    assert "a=extmap:3 urn:ietf:params:rtp-hdrext:sdes:mid" in sections[0]


def test_a_stopped_section_keeps_its_place_and_is_rejected():
    choice, head, sections = answered(named("firefox-stopped-audio-section"))
    assert [lines[0] for lines in sections] == [
        "m=audio 0 UDP/TLS/RTP/SAVPF 0",
        "m=audio 9 UDP/TLS/RTP/SAVPF 109",
        "m=application 9 UDP/DTLS/SCTP webrtc-datachannel",
    ]
    assert "a=inactive" in sections[0]
    assert "a=group:BUNDLE 1 2" in head
    assert choice.audio.index == 1


def test_a_data_channel_alone_is_a_session():
    choice, head, sections = answered(named("safari-data-channel-only-mdns"))
    assert choice.audio is None
    assert choice.candidates == ()
    assert "a=candidate:1 1 udp 9 192.0.2.9 4000 typ host" in sections[0]
    assert "a=group:BUNDLE 0" in head


def test_of_many_codecs_opus_is_taken_and_video_rests_where_it_is_of_no_use():
    choice, head, sections = answered(named("safari-old-audio-video-data"))
    assert choice.audio.codec.name == "opus"
    assert sections[0][0] == "m=audio 9 UDP/TLS/RTP/SAVPF 111"
    assert sections[1][0].startswith("m=video 9 UDP/TLS/RTP/SAVPF ")
    assert {"a=mid:video", "a=inactive"} <= set(sections[1])
    assert "a=group:BUNDLE audio video data" in head
    assert choice.candidates[0].port == 61015


def test_an_old_data_channel_is_answered_in_the_old_form():
    choice, _, sections = answered(named("safari-old-audio-video-data"))
    assert choice.data.legacy
    assert sections[2][0] == "m=application 9 DTLS/SCTP 5000"
    assert "a=sctpmap:5000 webrtc-datachannel 1024" in sections[2]
    assert not any(line.startswith("a=sctp-port") for line in sections[2])


def test_redundant_audio_is_taken_whole():
    choice, _, sections = answered(named("chrome-no-candidates-red"))
    assert (choice.audio.red, choice.audio.codec.payload_type) == (63, 111)
    assert sections[0][0] == "m=audio 9 UDP/TLS/RTP/SAVPF 63 111"
    assert "a=rtpmap:63 red/48000/2" in sections[0]
    assert "a=fmtp:63 111/111" in sections[0]


def test_redundancy_of_another_codec_is_refused():
    offer = parse_offer(
        HEAD + AUDIO.replace("111\n", "111 63\n", 1) + "a=rtpmap:63 red/48000/2\na=fmtp:63 9/9\n"
    )
    choice, _, sections = answered(offer)
    assert choice.audio.red is None
    assert sections[0][0] == "m=audio 9 UDP/TLS/RTP/SAVPF 111"


def test_plain_rtp_is_refused_with_the_reason():
    text = (OFFERS / "sip-plain-rtp.sdp").read_text()
    assert "ICE and DTLS" in refusal(text)


# -- what is taken --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offered", "answer", "sends", "receives"),
    [
        ("sendrecv", "sendrecv", True, True),
        ("sendonly", "recvonly", False, True),
        ("recvonly", "sendonly", True, False),
        ("inactive", "inactive", False, False),
    ],
)
def test_directions_are_answered_from_our_side(offered, answer, sends, receives):
    choice, _, sections = answered(parse_offer(HEAD + AUDIO + f"a={offered}\n"))
    assert f"a={answer}" in sections[0]
    assert (choice.audio.sends, choice.audio.receives) == (sends, receives)
    assert any(line.startswith("a=ssrc:7") for line in sections[0]) == sends


@pytest.mark.parametrize(
    ("setup", "role", "answer"),
    [
        ("actpass", "client", "active"),
        ("passive", "client", "active"),
        ("active", "server", "passive"),
    ],
)
def test_of_two_sides_one_begins_dtls(setup, role, answer):
    choice, _, sections = answered(parse_offer(HEAD + AUDIO.replace("actpass", setup)))
    assert choice.role == role
    assert f"a=setup:{answer}" in sections[0]


def test_g711_is_taken_where_there_is_no_opus():
    text = AUDIO.replace("SAVPF 111", "SAVPF 9 8 0").replace("a=rtpmap:111 opus/48000/2\n", "")
    choice, _, sections = answered(parse_offer(HEAD + text))
    assert choice.audio.codec.name == "PCMU"
    assert "a=rtpmap:0 PCMU/8000" in sections[0]


def test_the_first_audio_that_can_be_met_is_taken():
    other = AUDIO.replace("opus", "speex").replace("mid:0", "mid:9")
    choice, _, sections = answered(parse_offer(HEAD + other + AUDIO))
    assert choice.audio.index == 1
    assert sections[0][0].startswith("m=audio 0")


def test_a_data_channel_with_a_transport_of_its_own_is_rejected():
    choice, head, sections = answered(parse_offer("v=0\n" + AUDIO + DATA))
    assert choice.data is None
    assert sections[1][0].startswith("m=application 0")
    assert not any(line.startswith("a=group") for line in head)


def test_candidates_of_bundled_sections_count_together_and_once():
    candidate = "a=candidate:1 1 udp 9 192.0.2.1 5000 typ host\n"
    choice = choose(parse_offer(HEAD + AUDIO + candidate + DATA + candidate))
    assert len(choice.candidates) == 1


def test_what_a_caller_says_of_its_data_channel_is_known():
    choice, _, sections = answered(parse_offer(HEAD + AUDIO + DATA))
    assert (choice.data.port, choice.data.max_message_size) == (5001, 1000)
    assert "a=sctp-port:5001" in sections[1]


def test_another_application_is_rejected():
    text = DATA.replace("webrtc-datachannel", "bfcp").replace("mid:1", "mid:2")
    choice, _, _ = answered(parse_offer(HEAD + AUDIO + text))
    assert choice.data is None
    assert answered(parse_offer(HEAD + AUDIO + text.replace("UDP/DTLS/SCTP", "TCP")))[0].audio


def test_a_later_answer_has_a_later_version():
    offer = parse_offer(HEAD + AUDIO)
    text = write_answer(offer, choose(offer), replace(LOCAL, version=2))
    assert "o=- 1 2 IN" in text


# -- what can't be met ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (AUDIO.replace("opus", "speex"), "codecs"),
        (AUDIO.replace("m=audio", "m=video"), "neither audio nor a data channel"),
        (AUDIO.replace("m=audio 9", "m=audio 0"), "neither audio nor a data channel"),
        (AUDIO.replace("a=ice-pwd:p\n", ""), "ICE credentials"),
        (AUDIO.replace("sha-256", "sha-1"), "fingerprint"),
        (AUDIO.replace("actpass", "holdconn"), "a=setup"),
        (AUDIO.replace("opus", "speex") + DATA, "codecs"),
    ],
)
def test_an_offer_that_cannot_be_met_is_refused_with_the_reason(text, words):
    assert words in refusal(HEAD + text)
