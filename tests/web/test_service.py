"""What the routes see of the server."""

from typing import cast

import pytest

from duologue.engines.engine import EngineSpec, EngineUnavailable
from duologue.realtime.calls import Calls
from duologue.realtime.live_sessions import LiveSessions
from duologue.sessions.clock import ManualClock
from duologue.sessions.registry import SessionRegistry
from duologue.web.auth import Gate
from duologue.web.metrics import Metrics
from duologue.web.service import Service
from duologue.web.settings import Settings

SPEC = EngineSpec(model="m", voices=("v",), default_voice="v", context_tokens=1)


class FakeEngine:
    def __init__(self, spec: EngineSpec | None, ready: bool) -> None:
        self._spec = spec
        self.ready = ready

    @property
    def spec(self) -> EngineSpec:
        if self._spec is None:
            raise EngineUnavailable(1.0)
        return self._spec


class FakeRegistry:
    def __init__(self, draining: bool) -> None:
        self.draining = draining


def service(
    *,
    spec: EngineSpec | None = SPEC,
    ready: bool = True,
    draining: bool = False,
    settings: Settings | None = None,
) -> Service:
    return Service(
        settings or Settings(),
        Gate([]),
        cast(SessionRegistry, FakeRegistry(draining)),
        FakeEngine(spec, ready),  # type: ignore[arg-type]
        ManualClock(),
        Metrics(),
        cast(Calls, None),
        cast(LiveSessions, None),
    )


def test_it_is_ready_when_a_new_session_would_be_taken() -> None:
    assert service().ready
    assert service().spec is SPEC
    assert not service(ready=False).ready
    assert not service(draining=True).ready


@pytest.mark.parametrize(
    ("spec", "draining", "word"),
    [(None, False, "starting"), (SPEC, False, "restarting"), (SPEC, True, "draining")],
)
def test_it_says_why_it_is_not_ready(spec: EngineSpec | None, draining: bool, word: str) -> None:
    assert service(spec=spec, ready=False, draining=draining).not_ready() == word


def test_it_says_what_its_models_are() -> None:
    assert service().kind == "cascade"
    assert service(settings=Settings(engine="scripted")).kind == "scripted"
    chat = Settings(chat_url="http://127.0.0.1:1/v1", chat_model="m")
    assert service(settings=chat).kind == "chat"
    assert service().trouble() == ""
