"""A self-signed TLS certificate, kept so that a device has to accept it once only.

Source: RFC 5280; extensions as browsers ask of a server's certificate: names as subjectAltName,
serverAuth, at most 397 days.
"""

import contextlib
import ipaddress
import os
import socket
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_DAYS: Final = 397
RENEW_DAYS: Final = 30
"""A certificate with less than this left is made anew."""


def own_names(host: str) -> list[str]:
    """Names and addresses under which this machine may be asked for."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    if host not in ("0.0.0.0", "::", ""):
        names.append(host)
    address = lan_address()
    if address is not None:
        names.append(address)
    return sorted({name for name in names if name})


def lan_address() -> str | None:
    """The address that other devices of the local network use; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # RFC 5737: documentation only, no one is there
        address: str = probe.getsockname()[0]
        return address
    return None


def self_signed(folder: Path, names: list[str], now: datetime) -> tuple[Path, Path]:
    """Files of a certificate for these names and of its key, made if they are not there yet."""
    chain, key = folder / "self-signed.pem", folder / "self-signed.key"
    if _still_good(chain, key, names, now):
        return chain, key
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Duologue, self-signed")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=VALID_DAYS))
        .add_extension(x509.SubjectAlternativeName(_general_names(names)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(private, hashes.SHA256())
    )
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(key, secret)
    _write(chain, certificate.public_bytes(serialization.Encoding.PEM))
    return chain, key


def _general_names(names: list[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in names:
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            found.append(x509.DNSName(name))
    return found


def _still_good(chain: Path, key: Path, names: list[str], now: datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(chain.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), None)
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    return (
        certificate.not_valid_after_utc - now > timedelta(days=RENEW_DAYS)
        and set(_general_names(names)) <= set(alternative.value)
        and certificate.public_key() == private.public_key()
    )


def _write(path: Path, data: bytes) -> None:
    """Replace a file in one step, readable by its owner only."""
    part = path.with_suffix(".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    part.replace(path)
