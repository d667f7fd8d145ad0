"""What of an offer is taken, and the SDP that says so.

One ICE and DTLS transport carries one audio section, one data channel and, where pictures are of
use or there are any, one video section (BUNDLE, RFC 9143); every other section is rejected in its
place (port 0, RFC 3264 section 6). An offer that brings nothing of use, or can't be met, is the
client's error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from duologue.realtime.sdp_offer import (
    MID_EXTENSION,
    Fingerprint,
    Offer,
    OfferedCandidate,
    OfferedCodec,
    Section,
    invalid_sdp,
)
from duologue.realtime.sdp_video import VideoChoice, choose_video, video_lines

LARGEST_MESSAGE: Final = 256 * 1024
"""Bytes of one data-channel message that we take."""
FINGERPRINTS: Final = frozenset({"sha-256", "sha-384", "sha-512"})

_MEDIA_PROFILES: Final = frozenset({"UDP/TLS/RTP/SAVPF", "UDP/TLS/RTP/SAVP", "RTP/SAVPF"})
_DATA_PROFILES: Final = frozenset({"UDP/DTLS/SCTP", "TCP/DTLS/SCTP", "DTLS/SCTP"})
_CODECS: Final = (("opus", 48_000, 2), ("pcmu", 8_000, 1), ("pcma", 8_000, 1))
"""What is understood, best first."""
_OPUS_PARAMETERS: Final = {"minptime": "10", "useinbandfec": "1", "stereo": "0"}
_REVERSED: Final = {"sendonly": "recvonly", "recvonly": "sendonly"}

Role = Literal["client", "server"]


@dataclass(frozen=True, slots=True)
class AudioChoice:
    """The audio section that is taken, by its place in the offer.

    ``sends`` and ``receives`` are ours. ``red``: the payload type of its RED (RFC 2198), if any.
    """

    index: int
    codec: OfferedCodec
    red: int | None
    sends: bool
    receives: bool
    mid: str | None
    mid_extension: int | None


@dataclass(frozen=True, slots=True)
class DataChoice:
    """The data-channel section that is taken. ``legacy``: in the form of before RFC 8841."""

    index: int
    mid: str | None
    port: int
    legacy: bool
    max_message_size: int


@dataclass(frozen=True, slots=True)
class Choice:
    """What of an offer is taken. ``role`` is ours in DTLS."""

    audio: AudioChoice | None
    data: DataChoice | None
    ufrag: str
    password: str
    fingerprints: tuple[Fingerprint, ...]
    candidates: tuple[OfferedCandidate, ...]
    role: Role
    ice_lite: bool
    video: VideoChoice | None = None


@dataclass(frozen=True, slots=True)
class LocalSide:
    """Our side of the transport. ``candidates`` are values of ``a=candidate``."""

    ufrag: str
    password: str
    fingerprint: str
    """Of SHA-256."""
    candidates: Sequence[str]
    ssrc: int
    cname: str
    origin: int
    version: int = 1
    stream: str = field(default="duologue")
    video_ssrc: int = 0


def choose(offer: Offer, *, sees: bool = False, shows: bool = False) -> Choice:
    """Raises ProtocolError (``invalid_sdp``) for an offer that can't be met.

    ``sees``: pictures of a camera are of use; ``shows``: there is video to send.
    """
    live = [(i, section) for i, section in enumerate(offer.sections) if not section.dead]
    audio_sections = [(i, section) for i, section in live if section.kind == "audio"]
    audio = next((a for i, s in audio_sections if (a := _choose_audio(i, s)) is not None), None)
    if audio is None and audio_sections:
        _explain_no_audio([section for _, section in audio_sections])
    data = next((d for i, s in live if (d := _choose_data(i, s)) is not None), None)
    if audio is not None and data is not None and not _bundled(offer, audio.mid, data.mid):
        # Each would want a transport of its own; of the two, audio is what a call is for.
        data = None
    if audio is not None:
        carrier = offer.sections[audio.index]
    elif data is not None:
        carrier = offer.sections[data.index]
    else:
        raise invalid_sdp("The offer has neither audio nor a data channel.")
    videos = (
        choose_video(i, s, sees=sees, shows=shows)
        for i, s in live
        if s.kind == "video"
        and s.profile in _MEDIA_PROFILES
        and _bundled(offer, carrier.mid, s.mid)
    )
    video = next((video for video in videos if video is not None), None)
    return replace(_choose_transport(offer, carrier, audio, data), video=video)


def _choose_audio(index: int, section: Section) -> AudioChoice | None:
    if section.profile not in _MEDIA_PROFILES:
        return None
    for name, rate, channels in _CODECS:
        for codec in section.codecs:
            if (codec.name.lower(), codec.clock_rate, codec.channels) == (name, rate, channels):
                return AudioChoice(
                    index=index,
                    codec=codec,
                    red=_red_of(section, codec),
                    sends=section.direction in ("sendrecv", "recvonly"),
                    receives=section.direction in ("sendrecv", "sendonly"),
                    mid=section.mid,
                    mid_extension=section.extensions.get(MID_EXTENSION) if section.mid else None,
                )
    return None


def _red_of(section: Section, codec: OfferedCodec) -> int | None:
    """The payload type under which this codec comes with its redundancy."""
    for red in section.codecs:
        if red.name.lower() == "red" and red.clock_rate == codec.clock_rate:
            blocks = next(iter(red.parameters), "").split("/")
            if set(blocks) == {str(codec.payload_type)}:
                return red.payload_type
    return None


def _choose_data(index: int, section: Section) -> DataChoice | None:
    if section.kind != "application" or section.profile not in _DATA_PROFILES:
        return None
    legacy = section.sctp_map is not None
    if not legacy and "webrtc-datachannel" not in section.formats:
        return None
    return DataChoice(index, section.mid, section.sctp_port, legacy, section.max_message_size)


def _bundled(offer: Offer, *mids: str | None) -> bool:
    return all(mid is not None and mid in offer.bundle for mid in mids)


def _explain_no_audio(sections: list[Section]) -> None:
    if all(section.profile not in _MEDIA_PROFILES for section in sections):
        raise invalid_sdp(
            "The audio is offered as plain RTP: WebRTC needs ICE and DTLS-SRTP "
            f"(UDP/TLS/RTP/SAVPF, not {sections[0].profile})."
        )
    raise invalid_sdp("None of the offered audio codecs is supported: opus, PCMU or PCMA is.")


def _choose_transport(
    offer: Offer, carrier: Section, audio: AudioChoice | None, data: DataChoice | None
) -> Choice:
    if not carrier.ufrag or not carrier.password:
        raise invalid_sdp("The offer has no ICE credentials (a=ice-ufrag and a=ice-pwd).")
    usable = tuple(print for print in carrier.fingerprints if print.algorithm in FINGERPRINTS)
    if not usable:
        raise invalid_sdp("The offer has no DTLS fingerprint (a=fingerprint) of SHA-256 or better.")
    if carrier.setup not in ("actpass", "active", "passive"):
        raise invalid_sdp("The offer's a=setup must be actpass, active or passive.")
    # Bundled sections share one transport; the candidates may stand in any of them.
    candidates = dict.fromkeys(
        candidate
        for section in offer.sections
        if not section.dead and section.ufrag == carrier.ufrag
        for candidate in section.candidates
    )
    return Choice(
        audio=audio,
        data=data,
        ufrag=carrier.ufrag,
        password=carrier.password,
        fingerprints=usable,
        candidates=tuple(candidates),
        role="server" if carrier.setup == "active" else "client",
        ice_lite=offer.ice_lite,
    )


def write_answer(offer: Offer, choice: Choice, local: LocalSide) -> str:
    """The answer's SDP, with as many sections as the offer and in their order."""
    taken = {
        index: mid
        for index, mid in (
            (choice.audio.index, choice.audio.mid) if choice.audio else (-1, None),
            (choice.data.index, choice.data.mid) if choice.data else (-1, None),
            (choice.video.index, choice.video.mid) if choice.video else (-1, None),
        )
        if index >= 0
    }
    lines = [
        "v=0",
        f"o=- {local.origin} {local.version} IN IP4 127.0.0.1",
        "s=-",
        "t=0 0",
    ]
    mids = [mid for _, mid in sorted(taken.items()) if mid is not None and mid in offer.bundle]
    if mids:
        lines.append(f"a=group:BUNDLE {' '.join(mids)}")
    lines.append(f"a=msid-semantic: WMS {local.stream}")
    first = min(taken)
    for index, section in enumerate(offer.sections):
        candidates = local.candidates if index == first else ()
        if choice.audio is not None and index == choice.audio.index:
            lines += _audio_lines(section, choice.audio, local)
        elif choice.data is not None and index == choice.data.index:
            lines += _data_lines(section, choice.data)
        elif choice.video is not None and index == choice.video.index:
            lines += video_lines(
                section,
                choice.video,
                stream=local.stream,
                ssrc=local.video_ssrc,
                cname=local.cname,
            )
        else:
            lines += _rejected_lines(section)
            continue
        lines += [f"a=candidate:{candidate}" for candidate in candidates]
        if candidates:
            lines.append("a=end-of-candidates")
        lines += [
            f"a=ice-ufrag:{local.ufrag}",
            f"a=ice-pwd:{local.password}",
            f"a=fingerprint:sha-256 {local.fingerprint}",
            f"a=setup:{'active' if choice.role == 'client' else 'passive'}",
        ]
    return "\r\n".join(lines) + "\r\n"


def _audio_lines(section: Section, audio: AudioChoice, local: LocalSide) -> list[str]:
    codec = audio.codec
    # The first is what the other side sends: Opus with redundancy where it can.
    types = [codec.payload_type] if audio.red is None else [audio.red, codec.payload_type]
    shown = f"{codec.name}/{codec.clock_rate}" + (f"/{codec.channels}" * (codec.channels > 1))
    lines = [
        f"m=audio 9 {section.profile} {' '.join(map(str, types))}",
        "c=IN IP4 0.0.0.0",
        "a=rtcp:9 IN IP4 0.0.0.0",
        *_mid_line(section),
        f"a={_REVERSED.get(section.direction, section.direction)}",
        "a=rtcp-mux",
    ]
    if audio.mid_extension is not None:
        lines.append(f"a=extmap:{audio.mid_extension} {MID_EXTENSION}")
    lines.append(f"a=rtpmap:{codec.payload_type} {shown}")
    if codec.name.lower() == "opus":
        lines.append(f"a=fmtp:{codec.payload_type} {_written(_OPUS_PARAMETERS)}")
    if audio.red is not None:
        lines += [
            f"a=rtpmap:{audio.red} red/{codec.clock_rate}/{codec.channels}",
            f"a=fmtp:{audio.red} {codec.payload_type}/{codec.payload_type}",
        ]
    if audio.sends:
        lines += [
            f"a=msid:{local.stream} audio",
            f"a=ssrc:{local.ssrc} cname:{local.cname}",
            f"a=ssrc:{local.ssrc} msid:{local.stream} audio",
        ]
    return lines


def _data_lines(section: Section, data: DataChoice) -> list[str]:
    lines = [
        f"m=application 9 {section.profile} {' '.join(section.formats)}",
        "c=IN IP4 0.0.0.0",
        *_mid_line(section),
    ]
    if data.legacy:
        lines.append(f"a=sctpmap:{section.sctp_map}")
    else:
        lines.append(f"a=sctp-port:{data.port}")
    return [*lines, f"a=max-message-size:{LARGEST_MESSAGE}"]


def _rejected_lines(section: Section) -> list[str]:
    return [
        f"m={section.kind} 0 {section.profile} {section.formats[0]}",
        "c=IN IP4 0.0.0.0",
        "a=inactive",
        *_mid_line(section),
        *(
            f"a=rtpmap:{codec.payload_type} {codec.name}/{codec.clock_rate}"
            for codec in section.codecs
            if str(codec.payload_type) == section.formats[0]
        ),
    ]


def _mid_line(section: Section) -> list[str]:
    return [] if section.mid is None else [f"a=mid:{section.mid}"]


def _written(parameters: Mapping[str, str]) -> str:
    return ";".join(f"{name}={value}" for name, value in parameters.items())
