"""A Live session: its clock, its rest, its end, and what its clients command."""

import math

import numpy as np
import pytest

from duologue.sessions import live_events as live
from duologue.sessions.errors import ProtocolError
from duologue.sessions.live_config import (
    ClientDelegation,
    LiveChange,
    LiveConfig,
    ResponsesDelegation,
    Trigger,
)
from duologue.sessions.session_config import SessionLimits
from tests.live_bench import LiveBench

FRAME = 960


def test_a_session_says_that_it_has_started_and_then_frames_for_ever() -> None:
    bench = LiveBench()
    assert isinstance(bench.events[0], live.Started)
    bench.pass_time(10.0)
    frames = bench.all(live.OutputAudio)
    assert len(frames) == 251
    assert [frame.start_ms for frame in frames] == list(range(0, 10_001, 40))
    assert not any(bench.sounding())


def test_a_frame_leaves_when_it_begins_and_not_before() -> None:
    bench = LiveBench()
    bench.pass_time(0.0)
    assert len(bench.all(live.OutputAudio)) == 1
    bench.pass_time(0.039)
    assert len(bench.all(live.OutputAudio)) == 1
    bench.pass_time(0.002)
    assert len(bench.all(live.OutputAudio)) == 2


def test_a_server_that_was_held_up_makes_up_for_a_second_at_most() -> None:
    bench = LiveBench()
    bench.pass_time(1.0)
    before = len(bench.all(live.OutputAudio))
    bench.now += 0.5
    bench.session.handle_timer(bench.now)
    bench.settle()
    assert len(bench.all(live.OutputAudio)) - before in (12, 13)
    bench.now += 60
    bench.session.handle_timer(bench.now)
    bench.settle()
    frames = bench.all(live.OutputAudio)
    assert len(frames) < before + 13 + 27
    assert 61_400 <= frames[-1].start_ms <= 61_600


def test_after_its_timer_the_next_deadline_lies_ahead() -> None:
    bench = LiveBench()
    for _ in range(200):
        bench.now = bench.session.next_deadline()
        bench.session.handle_timer(bench.now)
        assert bench.session.next_deadline() > bench.now


def test_closing_is_answered_once_and_ends_all() -> None:
    bench = LiveBench()
    bench.pass_time(2.5)
    bench.command(live.Close("bye"))
    bench.command(live.Close("again"))
    [closed] = bench.all(live.Closed)
    assert (closed.reason, closed.client_event_id) == ("close_requested", "bye")
    assert closed.usage == live.LiveUsage(3)
    assert bench.session.next_deadline() == math.inf
    bench.command(live.Mute(None))
    assert isinstance(bench.events[-1], live.Closed)


def test_a_session_expires() -> None:
    bench = LiveBench(limits=SessionLimits(max_duration=5.0))
    bench.pass_time(6.0)
    [closed] = bench.all(live.Closed)
    assert closed.reason == "expired"


def test_usage_is_told_as_it_grows() -> None:
    bench = LiveBench()
    bench.pass_time(31.0)
    assert [event.usage.seconds for event in bench.all(live.UsageUpdated)] == [10, 20, 30]


def test_what_is_muted_is_silence_to_the_model() -> None:
    bench = LiveBench()
    bench.command(live.Mute("m"))
    assert bench.all(live.Muted) == [live.Muted("m")]
    heard: list[bytes] = []
    bench.voice._hear = heard.append
    bench.sound(64, 0.9)
    assert all(not any(pcm) for pcm in heard)
    bench.command(live.Unmute("u"))
    bench.sound(64, 0.9)
    assert any(heard[-1])


def test_a_fixture_is_played_once_and_nothing_is_told_to_the_model_meanwhile() -> None:
    bench = LiveBench()
    bench.command(live.PlayFixture("f", np.full(5 * FRAME, 9, np.int16)))
    bench.command(live.PlayFixture("g", np.full(FRAME, 9, np.int16)))
    bench.command(live.AppendContext("h", "thinking", "x"))
    errors = bench.all(live.LiveError)
    assert [error.error.code for error in errors] == ["fixture_active"] * 2
    assert [error.error.event_id for error in errors] == ["g", "h"]
    bench.pass_time(1.0)
    assert bench.all(live.FixturePlaying) == [live.FixturePlaying("f")]
    assert bench.all(live.FixturePlayed) == [live.FixturePlayed("f")]
    assert sum(bench.sounding()) == 5


def test_a_session_rests_and_wakes_on_speech() -> None:
    speech = 0.1
    config = LiveConfig(model="m", voice="v", idle_timeout=5.0)
    bench = LiveBench(config, wake=lambda samples: speech)
    bench.pass_time(6.0)
    assert len(bench.all(live.Paused)) == 1
    heard = bench.heard
    bench.sound(320, 0.0)
    assert bench.heard == heard
    assert not bench.all(live.Resumed)
    bench.pass_time(4.0)
    speech = 0.8
    bench.sound(32, 0.8)
    assert len(bench.all(live.Resumed)) == 1
    assert bench.heard > heard
    usage = bench.session.usage(bench.now)
    assert usage.active is not None
    assert usage.paused == 5
    assert usage.active + usage.paused == usage.seconds


def test_what_is_to_be_said_wakes_it() -> None:
    bench = LiveBench(LiveConfig(model="m", idle_timeout=5.0), wake=lambda samples: 0.0)
    bench.pass_time(6.0)
    bench.command(live.AppendContext(None, "commentary", "Hello."))
    assert len(bench.all(live.Resumed)) == 1


def test_items_for_decisions_are_kept_within_bounds() -> None:
    bench = LiveBench()
    bench.command(live.CreateDecisionItem("a", {"role": "user", "id": "x"}, "t"))
    bench.command(live.CreateDecisionItem("b", {"role": "user", "id": "x"}, "t"))
    bench.command(live.DeleteDecisionItem("c", "x"))
    bench.command(live.DeleteDecisionItem("d", "x"))
    codes = [error.error.code for error in bench.all(live.LiveError)]
    assert codes == ["item_create_duplicate_item_id", "item_delete_invalid_item_id"]
    for _ in range(300):
        bench.command(live.CreateDecisionItem(None, {}, "t"))
    assert bench.all(live.LiveError)[-1].error.code == "item_create_limit_reached"


def test_an_update_changes_what_it_names() -> None:
    bench = LiveBench(LiveConfig(model="m", delegation=ResponsesDelegation()))
    trigger = Trigger("session.input_transcript.delta", (), {})
    bench.command(live.Update("u", LiveChange(triggers=(trigger,))))
    [updated] = bench.all(live.Updated)
    assert updated.config.triggers == (trigger,)
    assert updated.config.delegation == ResponsesDelegation()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (live.Start("e", LiveConfig()), "session_already_started"),
        (live.CreateDecision("e"), "invalid_event_for_session"),
        (live.CreateResponse("e"), "invalid_event_for_session"),
        (live.AppendContext("e", "thinking", "x", "dlg_9"), "delegation_not_found"),
        (live.Refused(ProtocolError("invalid_json", "x", None, "e")), "invalid_json"),
    ],
)
def test_what_has_no_meaning_is_told_to_whoever_asked(command: live.Command, code: str) -> None:
    bench = LiveBench(LiveConfig(model="m", delegation=ClientDelegation()))
    bench.command(command)
    [error] = bench.all(live.LiveError)
    assert (error.error.code, error.error.event_id) == (code, "e")
