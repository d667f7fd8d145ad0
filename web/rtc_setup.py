"""What the settings say about WebRTC, as its connections want to know it."""

import ipaddress
import re
from typing import Any, Final

from aiortc.rtcicetransport import parse_stun_turn_uri

from duologue.realtime.http_wire import IceServer
from duologue.realtime.ice_agent import IceSettings
from duologue.realtime.rtc_peer import PeerSettings
from duologue.realtime.shared_port import SharedPort
from duologue.realtime.video_receiver import CameraSettings
from duologue.web.addresses import is_host
from duologue.web.settings import Settings, SettingsError

_EVERYWHERE: Final = ("0.0.0.0", "::", "")
_PORTS: Final = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def peer_settings(settings: Settings) -> PeerSettings:
    """A server on one address gathers on that address: on a loopback address, on no other.

    Raises SettingsError.
    """
    addresses = None
    if settings.host == "localhost":
        addresses = ("127.0.0.1",)
    elif settings.host not in _EVERYWHERE:
        addresses = (settings.host,)
    turn = _server("turn_server", settings.turn_server)
    if turn is None and (settings.turn_username or settings.turn_password):
        raise SettingsError("turn_username and turn_password have no meaning without turn_server")
    stun = _server("stun_server", settings.stun_server)
    ports = _ports(settings.rtc_ports)
    shared = None
    if ports is not None and ports[0] == ports[1]:
        shared = SharedPort(ports[0])
    return PeerSettings(
        IceSettings(
            addresses=addresses,
            ports=ports if shared is None else None,
            shared=shared,
            public_address=_address(settings.rtc_address),
            stun=None if stun is None else (stun["host"], stun["port"]),
            turn=None if turn is None else (turn["host"], turn["port"]),
            turn_transport="udp" if turn is None else turn["transport"],
            turn_tls=turn is not None and turn["scheme"] == "turns",
            turn_username=settings.turn_username,
            turn_password=settings.turn_password,
        ),
        camera=CameraSettings(rate=settings.camera_rate),
    )


def ice_servers(settings: Settings) -> tuple[IceServer, ...]:
    """What a browser that calls this server should gather with: the server's own means."""
    found = []
    if settings.stun_server is not None:
        found.append(IceServer(settings.stun_server))
    if settings.turn_server is not None:
        found.append(
            IceServer(settings.turn_server, settings.turn_username, settings.turn_password)
        )
    return tuple(found)


def _server(name: str, uri: str | None) -> dict[str, Any] | None:
    if uri is None:
        return None
    try:
        found = parse_stun_turn_uri(uri)
    except ValueError:
        found = {"scheme": ""}
    wanted = name.partition("_")[0]
    if found["scheme"] not in (wanted, "turns" if wanted == "turn" else wanted):
        raise SettingsError(f"{name} must look like {wanted}:{wanted}.example.org:3478")
    if not is_host(found["host"].removeprefix("[").removesuffix("]")):
        raise SettingsError(f"{name}: there can't be a host {found['host']!r}")
    if not 0 < found["port"] <= 65_535:
        raise SettingsError(f"{name}: there is no port {found['port']}")
    if found.get("transport", "udp") not in ("udp", "tcp"):
        raise SettingsError(f"{name}: the transport must be udp or tcp")
    return found


def _ports(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    match = _PORTS.fullmatch(text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 0 < low <= high <= 65_535:
        raise SettingsError(f"rtc_ports must be one port or two, as 40000-40100, not {text!r}")
    return low, high


def _address(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        raise SettingsError(f"rtc_address must be an IP address, not {text!r}") from None
