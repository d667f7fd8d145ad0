"""A video section of an offer: what of it is taken, and its lines in the answer.

VP8 (RFC 7741) before H.264 (RFC 6184, packetization mode 1 alone: a mode 0 stream could not carry
pictures larger than a packet). Loss is repaired by NACK and PLI (RFC 4585), by retransmission under
a payload type of its own where that is offered (RFC 4588), and by a full intra request (RFC 5104);
the bit rate follows REMB.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from duologue.realtime.sdp_offer import MID_EXTENSION, OfferedCodec, Section

VP8: Final = "VP8"
H264: Final = "H264"
CLOCK_RATE: Final = 90_000

_CODECS: Final = (VP8, H264)
"""What is understood, best first: VP8 costs a server less in both directions."""
_FEEDBACK: Final = ("goog-remb", "ccm fir", "nack", "nack pli")


@dataclass(frozen=True, slots=True)
class VideoChoice:
    """The video section that is taken, by its place in the offer.

    ``sends`` and ``receives`` are ours. ``retransmission``: the payload type of resent packets.
    """

    index: int
    codec: OfferedCodec
    retransmission: int | None
    sends: bool
    receives: bool
    mid: str | None
    mid_extension: int | None

    @property
    def name(self) -> str:
        return self.codec.name.upper()

    @property
    def direction(self) -> str:
        """As the answer says it."""
        if self.sends and self.receives:
            return "sendrecv"
        if self.sends:
            return "sendonly"
        return "recvonly" if self.receives else "inactive"


def choose_video(index: int, section: Section, *, sees: bool, shows: bool) -> VideoChoice | None:
    """None where there is no codec of ours. Where nothing would flow the section is inactive and
    not refused: some clients can't read an answer that refuses one.

    ``sees``: pictures of a camera are of use; ``shows``: there is video to send.
    """
    receives = sees and section.direction in ("sendrecv", "sendonly")
    sends = shows and section.direction in ("sendrecv", "recvonly")
    codec = next((c for name in _CODECS if (c := _find(section, name)) is not None), None)
    if codec is None:
        return None
    return VideoChoice(
        index=index,
        codec=codec,
        retransmission=_retransmission(section, codec),
        sends=sends,
        receives=receives,
        mid=section.mid,
        mid_extension=section.extensions.get(MID_EXTENSION) if section.mid else None,
    )


def _find(section: Section, name: str) -> OfferedCodec | None:
    found = [
        codec
        for codec in section.codecs
        if codec.name.upper() == name
        and codec.clock_rate == CLOCK_RATE
        and (name != H264 or codec.parameters.get("packetization-mode") == "1")
    ]
    # Of H.264's profiles the plainest, since that is what is sent; any of them can be read.
    plain = [c for c in found if c.parameters.get("profile-level-id", "").lower()[:2] == "42"]
    return next(iter(plain or found), None)


def _retransmission(section: Section, codec: OfferedCodec) -> int | None:
    for other in section.codecs:
        if other.name.lower() == "rtx" and other.parameters.get("apt") == str(codec.payload_type):
            return other.payload_type
    return None


def video_lines(
    section: Section, video: VideoChoice, *, stream: str, ssrc: int, cname: str
) -> Sequence[str]:
    """The section of the answer, without its transport. ``ssrc`` is of what we send."""
    codec, number = video.codec, video.codec.payload_type
    types = [number] if video.retransmission is None else [number, video.retransmission]
    lines = [
        f"m=video 9 {section.profile} {' '.join(map(str, types))}",
        "c=IN IP4 0.0.0.0",
        "a=rtcp:9 IN IP4 0.0.0.0",
        *([] if section.mid is None else [f"a=mid:{section.mid}"]),
        f"a={video.direction}",
        "a=rtcp-mux",
    ]
    if video.mid_extension is not None:
        lines.append(f"a=extmap:{video.mid_extension} {MID_EXTENSION}")
    lines.append(f"a=rtpmap:{number} {codec.name}/{codec.clock_rate}")
    if codec.parameters:
        written = ";".join(f"{name}={value}" for name, value in codec.parameters.items())
        lines.append(f"a=fmtp:{number} {written}")
    lines += [f"a=rtcp-fb:{number} {kind}" for kind in _FEEDBACK]
    if video.retransmission is not None:
        lines += [
            f"a=rtpmap:{video.retransmission} rtx/{CLOCK_RATE}",
            f"a=fmtp:{video.retransmission} apt={number}",
        ]
    if video.sends:
        lines += [
            f"a=msid:{stream} video",
            f"a=ssrc:{ssrc} cname:{cname}",
            f"a=ssrc:{ssrc} msid:{stream} video",
        ]
    return lines
