"""Addresses as the settings write them: what is one, and what could never be met."""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

_NAME: Final = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")


def is_host(text: str) -> bool:
    """Whether it is a host's name or IP address (IPv6 without brackets), without a port."""
    if ":" in text:
        try:
            return ipaddress.ip_address(text).version == 6
        except ValueError:
            return False
    return _NAME.fullmatch(text) is not None


def is_base_url(text: str) -> bool:
    """Whether it is an http or https URL of a host, with a port that there is, if with one."""
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_origin(text: str) -> bool:
    """Whether it is what browsers send as ``Origin``, or ``*``."""
    try:
        parts = urlsplit(text)
        return text in ("*", "null") or bool(parts.scheme and parts.hostname)
    except ValueError:
        return False
