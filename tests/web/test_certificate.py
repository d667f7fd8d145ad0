"""The self-signed certificate."""

import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509

from duologue.web.certificate import VALID_DAYS, lan_address, own_names, self_signed

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NAMES = ["127.0.0.1", "::1", "localhost"]


def load(chain: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(chain.read_bytes())


def test_it_names_everything_it_was_asked_to(tmp_path: Path) -> None:
    chain, _ = self_signed(tmp_path / "tls", NAMES, NOW)
    names = load(chain).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert {str(address) for address in names.get_values_for_type(x509.IPAddress)} == {
        "127.0.0.1",
        "::1",
    }


def test_a_server_can_use_it(tmp_path: Path) -> None:
    chain, key = self_signed(tmp_path, NAMES, NOW)
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(chain, key)


def test_its_key_is_for_its_owner_alone(tmp_path: Path) -> None:
    _, key = self_signed(tmp_path / "tls", NAMES, NOW)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700


def test_it_is_kept_while_it_is_good(tmp_path: Path) -> None:
    chain, _ = self_signed(tmp_path, NAMES, NOW)
    before = load(chain).serial_number
    self_signed(tmp_path, NAMES[:1], NOW + timedelta(days=100))
    assert load(chain).serial_number == before


def test_it_is_renewed_before_it_expires(tmp_path: Path) -> None:
    chain, _ = self_signed(tmp_path, NAMES, NOW)
    before = load(chain).serial_number
    self_signed(tmp_path, NAMES, NOW + timedelta(days=VALID_DAYS - 10))
    assert load(chain).serial_number != before


def test_it_is_made_anew_for_a_new_name_or_when_it_was_spoilt(tmp_path: Path) -> None:
    chain, key = self_signed(tmp_path, NAMES, NOW)
    serials = {load(chain).serial_number}
    self_signed(tmp_path, [*NAMES, "192.168.1.7"], NOW)
    serials.add(load(chain).serial_number)
    key.write_text("spoilt")
    self_signed(tmp_path, NAMES, NOW)
    serials.add(load(chain).serial_number)
    assert len(serials) == 3


def test_this_machine_knows_its_names() -> None:
    assert {"localhost", "127.0.0.1", "::1"} <= set(own_names("0.0.0.0"))
    assert "0.0.0.0" not in own_names("0.0.0.0")
    assert "192.0.2.5" in own_names("192.0.2.5")
    address = lan_address()
    assert address is None or address in own_names("::")
