"""What a gateway is told arrives as it was meant."""

from pathlib import Path

from duologue.sessions.session_config import SessionLimits, TurnPolicy
from duologue.web.gateway_options import GatewayOptions, decode_options, encode_options
from duologue.web.settings import Settings


def test_options_arrive_as_they_were() -> None:
    settings = Settings(
        engine="scripted",
        api_keys=("a-long-key",),
        cache=Path("/some/where"),
        tls_cert=Path("/c"),
        tls_key=Path("/k"),
        limits=SessionLimits(audio_lead=float("inf"), turn_policy=TurnPolicy.BACKCHANNEL_AWARE),
    )
    options = GatewayOptions(
        settings=settings,
        port=8765,
        certificate=("/c", "/k"),
        number=1,
        directories=("/run/a", "/run/b"),
        workers=("/run/w",),
        scribes=(),
        names=("w-0",),
        board=7,
    )
    assert decode_options(encode_options(options)) == options
