"""A WebRTC offer, read: RFC 8866 (SDP), 8829 (JSEP), 8839 (ICE), 8841 (SCTP), 9143 (BUNDLE).

What this server has no use for is skipped. Anything that can't be read as an offer is the client's
error; nothing in an offer makes this raise anything else.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from duologue.sessions.errors import ProtocolError

LONGEST_SDP: Final = 256 * 1024
"""Characters; browsers' offers have a few thousand."""
MOST_SECTIONS: Final = 64
MID_EXTENSION: Final = "urn:ietf:params:rtp-hdrext:sdes:mid"
MOST_CANDIDATES: Final = 32
"""Remote candidates that are tried; later ones are left out."""

_STATIC_TYPES: Final = {0: ("PCMU", 8_000, 1), 8: ("PCMA", 8_000, 1), 9: ("G722", 8_000, 1)}
_DIRECTIONS: Final = frozenset({"sendrecv", "sendonly", "recvonly", "inactive"})
_MEDIA: Final = re.compile(r"(\w+) (\d{1,5})(?:/\d+)? ([A-Za-z/]+) (.+)")
_RTPMAP: Final = re.compile(r"(\d{1,3}) ([\w.+-]+)/(\d{1,6})(?:/(\d{1,2}))?")


@dataclass(frozen=True, slots=True)
class OfferedCodec:
    """``parameters`` are those of ``a=fmtp``; a bare one, as RED's, has its text as its name."""

    payload_type: int
    name: str
    clock_rate: int
    channels: int
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OfferedCandidate:
    """A UDP candidate with a literal address (RFC 8839 section 5.1)."""

    foundation: str
    priority: int
    ip: str
    port: int
    type: str


@dataclass(frozen=True, slots=True)
class Fingerprint:
    algorithm: str
    value: str


@dataclass(frozen=True, slots=True)
class Section:
    """One media section. ``lines`` are those of its codecs, for an answer that rejects it."""

    kind: str
    port: int
    profile: str
    formats: tuple[str, ...]
    mid: str | None = None
    direction: str = "sendrecv"
    codecs: tuple[OfferedCodec, ...] = ()
    ufrag: str = ""
    password: str = ""
    fingerprints: tuple[Fingerprint, ...] = ()
    setup: str = "actpass"
    candidates: tuple[OfferedCandidate, ...] = ()
    extensions: Mapping[str, int] = field(default_factory=dict)
    rtcp_mux: bool = False
    bundle_only: bool = False
    sctp_port: int = 5000
    sctp_map: str | None = None
    max_message_size: int = 65_536

    @property
    def dead(self) -> bool:
        """Stopped or rejected: it only keeps its place."""
        return self.port == 0 and not self.bundle_only


@dataclass(frozen=True, slots=True)
class Offer:
    sections: tuple[Section, ...]
    bundle: tuple[str, ...] = ()
    ice_lite: bool = False


def invalid_sdp(message: str) -> ProtocolError:
    return ProtocolError("invalid_sdp", message, "sdp")


def parse_offer(text: str) -> Offer:
    """The offer in an SDP text. Raises ProtocolError (``invalid_sdp``)."""
    if len(text) > LONGEST_SDP:
        raise invalid_sdp(f"The SDP may have at most {LONGEST_SDP} characters.")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or lines[0] != "v=0":
        raise invalid_sdp("The body is not SDP: it must begin with v=0.")
    groups: list[list[str]] = [[]]
    for line in lines:
        if line.startswith("m="):
            groups.append([])
            if len(groups) > MOST_SECTIONS + 1:
                raise invalid_sdp(f"An offer may have at most {MOST_SECTIONS} media sections.")
        groups[-1].append(line)
    if len(groups) == 1:
        raise invalid_sdp("The offer has no media section.")
    session = _Attributes(groups[0])
    bundle: tuple[str, ...] = ()
    for group in session.all("group"):
        semantics, *mids = group.split() or [""]
        if semantics == "BUNDLE" and not bundle:
            bundle = tuple(mids)
    sections = tuple(_section(group, session) for group in groups[1:])
    return Offer(sections, bundle, session.has("ice-lite"))


class _Attributes:
    """The ``a=`` lines of a section, by name."""

    def __init__(self, lines: list[str]) -> None:
        self._values: dict[str, list[str]] = {}
        for line in lines:
            if line.startswith("a="):
                name, _, value = line[2:].partition(":")
                self._values.setdefault(name, []).append(value.strip())

    def has(self, name: str) -> bool:
        return name in self._values

    def all(self, name: str) -> list[str]:
        return self._values.get(name, [])

    def first(self, name: str) -> str | None:
        return self._values.get(name, [None])[0]


def _section(lines: list[str], session: _Attributes) -> Section:
    match = _MEDIA.fullmatch(lines[0][2:])
    if match is None or int(match[2]) > 65_535:
        raise invalid_sdp(f"The media section can't be read: {lines[0][:80]!r}.")
    kind, port, profile, formats = match[1], int(match[2]), match[3], tuple(match[4].split())
    own = _Attributes(lines)

    def inherited(name: str) -> list[str]:
        return own.all(name) or session.all(name)

    direction = next((name for name in _DIRECTIONS if own.has(name)), None)
    direction = direction or next((name for name in _DIRECTIONS if session.has(name)), "sendrecv")
    sctp_map = own.first("sctpmap")
    sctp_port = own.first("sctp-port") or (formats[0] if sctp_map is not None else "5000")
    return Section(
        kind=kind,
        port=port,
        profile=profile,
        formats=formats,
        mid=own.first("mid") or None,
        direction=direction,
        codecs=_codecs(formats, own) if kind in ("audio", "video") else (),
        ufrag=(inherited("ice-ufrag") or [""])[0],
        password=(inherited("ice-pwd") or [""])[0],
        fingerprints=_fingerprints(inherited("fingerprint")),
        setup=(inherited("setup") or ["actpass"])[0],
        candidates=_candidates(own.all("candidate")),
        extensions=_extensions(own.all("extmap")),
        rtcp_mux=own.has("rtcp-mux"),
        bundle_only=own.has("bundle-only"),
        sctp_port=_number(sctp_port, 1, 65_535, 5000),
        sctp_map=sctp_map,
        max_message_size=_number(own.first("max-message-size"), 0, 2**53, 65_536),
    )


def _number(text: str | None, low: int, high: int, otherwise: int) -> int:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 16:
        return otherwise
    return int(text) if low <= int(text) <= high else otherwise


def _codecs(formats: tuple[str, ...], own: _Attributes) -> tuple[OfferedCodec, ...]:
    """In the order of the formats; those without a usable map are left out."""
    maps: dict[int, tuple[str, int, int]] = dict(_STATIC_TYPES)
    for value in own.all("rtpmap"):
        match = _RTPMAP.match(value)
        if match is not None:
            maps[int(match[1])] = (match[2], int(match[3]), int(match[4] or 1))
    parameters: dict[str, dict[str, str]] = {}
    for value in own.all("fmtp"):
        number, _, text = value.partition(" ")
        parameters[number] = _parameters(text)
    found = []
    for number in dict.fromkeys(formats):
        payload_type = _number(number, 0, 127, -1)
        if payload_type in maps:
            found.append(
                OfferedCodec(payload_type, *maps[payload_type], parameters.get(number, {}))
            )
    return tuple(found)


def _parameters(text: str) -> dict[str, str]:
    found = {}
    for part in text.split(";"):
        name, _, value = part.strip().partition("=")
        if name:
            found[name.strip().lower()] = value.strip()
    return found


def _fingerprints(values: list[str]) -> tuple[Fingerprint, ...]:
    found = []
    for value in values[:8]:
        algorithm, _, digest = value.partition(" ")
        found.append(Fingerprint(algorithm.lower(), digest.strip().upper()))
    return tuple(found)


def _candidates(values: list[str]) -> tuple[OfferedCandidate, ...]:
    """Those that can be tried: UDP, first component, an address rather than a ``.local`` name."""
    found: list[OfferedCandidate] = []
    for value in values:
        parts = value.split()
        if len(parts) < 8 or parts[1] != "1" or parts[2].lower() != "udp" or parts[6] != "typ":
            continue
        port = _number(parts[5], 1, 65_535, 0)
        try:
            address = ipaddress.ip_address(parts[4])
        except ValueError:
            continue
        if port and len(found) < MOST_CANDIDATES and parts[7] in ("host", "srflx", "relay"):
            priority = _number(parts[3], 0, 2**32 - 1, 1)
            found.append(OfferedCandidate(parts[0], priority, str(address), port, parts[7]))
    return tuple(found)


def _extensions(values: list[str]) -> dict[str, int]:
    """URI to id (RFC 8285); a direction after the id is read over."""
    found: dict[str, int] = {}
    for value in values:
        number, _, rest = value.partition(" ")
        identifier = _number(number.partition("/")[0], 1, 255, 0)
        uri = rest.split()
        if identifier and uri:
            found.setdefault(uri[0], identifier)
    return found
