"""What the settings mean for calls."""

import pytest

from duologue.web.rtc_setup import ice_servers, peer_settings
from duologue.web.settings import Settings, SettingsError


def ice(**settings):
    return peer_settings(Settings(**settings)).ice


def test_a_single_port_is_shared_by_all_calls() -> None:
    for text in ("40000", "40000-40000"):
        made = ice(rtc_ports=text)
        assert made.ports is None
        assert made.shared is not None and made.shared.port == 40_000


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("127.0.0.1", ("127.0.0.1",)),
        ("localhost", ("127.0.0.1",)),
        ("192.0.2.7", ("192.0.2.7",)),
        ("0.0.0.0", None),
        ("::", None),
    ],
)
def test_media_is_where_the_server_is(host, addresses):
    assert ice(host=host).addresses == addresses


def test_ports_and_an_outside_address_are_passed_on():
    made = ice(rtc_ports="40000-40100", rtc_address="2001:DB8::1")
    assert (made.ports, made.public_address) == ((40_000, 40_100), "2001:db8::1")
    assert ice().ports is None


def test_servers_have_defaults_for_what_they_leave_out():
    made = ice(stun_server="stun:stun.test", turn_server="turn:turn.test", turn_username="u")
    assert (made.stun, made.turn) == (("stun.test", 3478), ("turn.test", 3478))
    assert (made.turn_transport, made.turn_tls, made.turn_username) == ("udp", False, "u")
    made = ice(turn_server="turns:turn.test:443?transport=tcp")
    assert (made.turn, made.turn_transport, made.turn_tls) == (("turn.test", 443), "tcp", True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rtc_ports", "40000-"),
        ("rtc_ports", "0"),
        ("rtc_ports", "9-1"),
        ("rtc_ports", "1-70000"),
        ("rtc_address", "example.org"),
        ("stun_server", "turn:turn.test"),
        ("stun_server", "stun.test"),
        ("stun_server", "stun:["),
        ("stun_server", "stun:a:99999"),
        ("stun_server", "stun:a:0"),
        ("turn_server", "turn:[:1"),
        ("turn_server", "turn:turn.test?transport=pigeon"),
        ("turn_username", "alone"),
    ],
)
def test_what_makes_no_sense_is_named(name, value):
    with pytest.raises(SettingsError, match=name):
        ice(**{name: value})


def test_browsers_gather_with_what_the_server_has():
    assert ice_servers(Settings()) == ()
    (stun,) = ice_servers(Settings(stun_server="stun:stun.test"))
    assert (stun.urls, stun.username, stun.credential) == ("stun:stun.test", None, None)
