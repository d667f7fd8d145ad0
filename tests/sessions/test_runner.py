"""One session with its surroundings: a client, an engine, a clock, all in memory."""

import math

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from duologue.engines import engine
from duologue.sessions import effects, events, runner
from duologue.sessions.items import InputAudio, InputText, MessageItem
from duologue.sessions.ports import AudioBytes
from duologue.sessions.session_config import (
    AudioFormat,
    SessionConfig,
    SessionPatch,
    TurnPolicy,
)
from duologue.sessions.turns import Connection
from tests.patience import PATIENCE_S
from tests.sessions.conftest import Wire, quiet

pytestmark = pytest.mark.anyio


def typed(text):
    return events.CreateItem("typed", MessageItem("", "user", (InputText(text),)))


def ask(**params):
    return events.CreateResponse("ask", events.ResponseParams(**params))


async def tell(wire, *incoming):
    for one in incoming:
        wire.say(one)
    await quiet()


# -- the client's side ----------------------------------------------------------------------


async def test_a_client_is_greeted_with_its_configuration(house):
    async with house() as home:
        conversation, wire, _ = await home.visit(instructions="Be brief.")
        assert wire.sent == [effects.SessionCreated(conversation.session.config)]
        assert conversation.expires_in == 3600.0


async def test_a_typed_question_is_answered(house):
    async with house() as home:
        _, wire, place = await home.visit()
        await tell(wire, typed("Hi"), ask())
        place.says("Hello.", 300)
        await quiet()
        assert wire.all(effects.ResponseDone)[0].response.status == "completed"
        assert sum(len(delta.pcm) for delta in wire.all(effects.AudioDelta)) == 300 * 48


async def test_a_spoken_question_is_heard_whole_before_it_is_answered(house):
    async with house() as home:
        _, wire, place = await home.visit()
        wire.speak(1.0)
        wire.speak(0.7, level=0)
        await quiet()
        heard = place.all(engine.Hear)
        assert all(
            one.start + len(one.pcm) // 2 == two.start
            for one, two in zip(heard, heard[1:], strict=False)
        )
        asked = place.all(engine.Respond)[0]
        until = asked.request.messages[-1].parts[-1].until
        before = place.commands[: place.commands.index(asked)]
        last = [command for command in before if isinstance(command, engine.Hear)][-1]
        assert last.start + len(last.pcm) // 2 >= until
        assert place.all(engine.EndUtterance)[0].end == until
        assert wire.all(effects.SpeechStarted) and wire.all(effects.SpeechStopped)


async def test_audio_that_can_not_be_read_is_told_and_the_session_goes_on(house):
    async with house() as home:
        _, wire, _ = await home.visit()
        await tell(wire, AudioBytes(b"\x00" * 3, "odd"), typed("Hi"))
        (error,) = wire.all(effects.ErrorReported)
        assert (error.error.code, error.error.event_id) == ("invalid_audio", "odd")
        assert wire.all(effects.ItemAdded)


async def test_audio_for_which_there_is_no_room_is_refused_and_told_once(house):
    async with house(max_buffer_seconds=2.0) as home:
        conversation, wire, _ = await home.visit(turn_detection=None)
        await tell(wire, AudioBytes(bytes(48_000 * 5), "much"))
        (error,) = wire.all(effects.ErrorReported)
        assert (error.error.code, error.error.event_id) == ("input_audio_buffer_full", "much")
        assert conversation.session.room() < 16_000
        await tell(wire, events.ClearAudio(None), AudioBytes(bytes(48_000), "more"))
        assert len(wire.all(effects.ErrorReported)) == 1


async def test_an_endless_speech_is_ended_without_a_word_refused(house):
    async with house(max_buffer_seconds=1.0) as home:
        _, wire, _ = await home.visit()
        wire.speak(3.0)
        await quiet()
        assert wire.errors == []
        assert len(wire.all(effects.InputCommitted)) >= 2


async def test_long_audio_leaves_everybody_else_their_turn(house):
    async with house() as home:
        _, wire, place = await home.visit(turn_detection=None)
        turns = 0

        async def somebody_else():
            nonlocal turns
            while not place.all(engine.EndUtterance):
                turns += 1
                await anyio.lowlevel.checkpoint()

        home.tasks.start_soon(somebody_else)
        await tell(wire, AudioBytes(bytes(48_000 * 20)), events.CommitAudio(None))
        assert turns >= 20


async def test_the_format_of_the_audio_is_that_of_the_session_when_it_comes(house):
    async with house() as home:
        _, wire, place = await home.visit(turn_detection=None)
        patch = SessionPatch({"input_format": AudioFormat.PCMU})
        await tell(wire, events.UpdateSession(None, patch), AudioBytes(b"\xff" * 8001))
        assert wire.errors == []
        assert sum(len(heard.pcm) for heard in place.all(engine.Hear)) == pytest.approx(
            32_000, abs=200
        )


async def test_audio_of_an_item_is_read_in_the_format_of_the_session(house):
    async with house() as home:
        _, wire, place = await home.visit(input_format=AudioFormat.PCMU)
        item = MessageItem("a", "user", (InputAudio(None),))
        await tell(wire, events.CreateItem(None, item, audio=b"\xff" * 24_001))
        assert wire.errors == []
        (end,) = place.all(engine.EndUtterance)
        assert (end.utterance, end.end) == ("a", 48_002)
        assert all(len(heard.pcm) <= 2 * 16_000 + 200 for heard in place.all(engine.Hear))


async def test_more_audio_than_an_item_may_have_is_refused(house):
    async with house(max_buffer_seconds=1.0) as home:
        _, wire, place = await home.visit()
        item = MessageItem("a", "user", (InputAudio(None),))
        await tell(wire, events.CreateItem("e", item, audio=bytes(48_002)))
        assert wire.errors == ["event_too_large"]
        assert place.all(engine.Hear) == []


async def test_what_was_said_comes_back_with_its_item(house):
    async with house() as home:
        _, wire, _ = await home.visit(turn_detection=None)
        wire.speak(0.5)
        await tell(wire, events.CommitAudio(None))
        item_id = wire.all(effects.InputCommitted)[0].item_id
        await tell(wire, events.RetrieveItem(None, item_id), typed("Hi"))
        typed_id = wire.all(effects.ItemAdded)[-1].item.id
        await tell(wire, events.RetrieveItem(None, typed_id))
        spoken, written = wire.all(effects.ItemRetrieved)
        assert len(spoken.audio) == pytest.approx(24_000, abs=200)
        assert written.audio is None


async def test_playout_is_steered_and_not_told_of(house):
    async with house() as home:
        conversation = await home.registry.open(
            SessionConfig(turn_policy=TurnPolicy.BACKCHANNEL_AWARE), plays_out=True
        )
        wire = Wire()
        home.tasks.start_soon(conversation.attach, wire)
        await tell(wire, typed("Hi"), ask())
        home.deployment.places[-1].says("A long story.", 9000)
        await quiet()
        wire.speak(0.1)
        wire.speak(0.8, level=0)
        await quiet()
        assert [type(effect) for effect in wire.steered] == [
            effects.DuckPlayout,
            effects.RestorePlayout,
        ]
        assert not set(map(type, wire.sent)) & set(map(type, wire.steered))


async def test_without_a_client_there_is_no_playout_to_steer(house):
    async with house() as home:
        conversation = await home.registry.open(SessionConfig(), plays_out=True)
        conversation.happen(events.ClearOutput(None))
        assert not conversation.over


# -- time -----------------------------------------------------------------------------------


async def test_a_deadline_that_has_come_is_kept(house):
    async with house(max_duration=0.0) as home:
        _, wire, place = await home.visit()
        assert wire.errors == ["session_expired"]
        assert wire.closed[0] == 1000
        assert place.closed


async def test_a_deadline_is_waited_for(house):
    async with house(idle_timeout=0.005) as home:
        _, wire, _ = await home.visit()
        with anyio.fail_after(PATIENCE_S):
            while wire.closed is None:
                await quiet()
        assert wire.errors == ["session_idle"]


async def test_a_nearer_deadline_wakes_the_clock(house):
    async with house(audio_lead=0.01, delta_ms=20) as home:
        conversation, wire, place = await home.visit()
        await tell(wire, typed("Hi"), ask())
        assert conversation._sleeping_until > home.clock.now() + 100
        place.says("Hello.", 100)
        await quiet()
        assert conversation._sleeping_until < home.clock.now() + 0.1
        home.clock.advance(1.0)
        with anyio.fail_after(PATIENCE_S):
            while not wire.all(effects.ResponseDone):
                await quiet()


# -- the engine's side ----------------------------------------------------------------------


@pytest.fixture
def at_once(monkeypatch):
    """A lost place is asked for again without a pause."""
    monkeypatch.setattr(runner, "REOPEN_INTERVAL", 0.0)


async def test_a_session_whose_worker_dies_gets_another_place(house, at_once):
    async with house() as home:
        _, wire, place = await home.visit()
        await tell(wire, typed("Hi"), ask())
        home.deployment.answers = [engine.EngineFull(1.0), engine.EngineUnavailable(1.0)]
        place.dies()
        await quiet()
        with anyio.fail_after(PATIENCE_S):
            while len(home.deployment.places) < 2:
                await quiet()
        assert wire.errors == ["engine_unavailable"]
        assert wire.all(effects.ResponseDone)[0].response.status == "failed"
        assert place.closed
        await tell(wire, ask())
        home.deployment.places[-1].says("Back again.", 100)
        await quiet()
        assert wire.all(effects.ResponseDone)[1].response.status == "completed"


async def test_a_command_to_a_dead_worker_is_lost_and_nothing_else(house):
    async with house() as home:
        home.deployment.gate = anyio.Event()
        home.deployment.gate.set()
        _, wire, place = await home.visit()
        place.lost = True
        await tell(wire, typed("Hi"), ask())
        assert wire.all(effects.ResponseCreated)
        assert wire.closed is None


async def test_a_session_that_ends_while_it_waits_for_a_place_is_gone(house):
    async with house() as home:
        _, wire, place = await home.visit()
        home.deployment.gate = anyio.Event()
        place.dies()
        await quiet()
        wire.hang_up()
        await quiet()
        assert home.registry.active == 0
        assert home.deployment.taken == 0


# -- ending ---------------------------------------------------------------------------------


async def test_a_client_that_goes_takes_its_session_with_it(house):
    async with house() as home:
        conversation, wire, place = await home.visit()
        await tell(wire, typed("Hi"), ask())
        wire.hang_up()
        await quiet()
        assert conversation.over
        assert conversation.session.connection is Connection.CLOSED
        assert place.closed and place.all(engine.CancelResponse)
        assert wire.closed == (1000, "the client is gone")
        assert home.registry.active == 0


async def test_a_session_that_is_closed_from_outside_says_the_code(house):
    async with house() as home:
        conversation, wire, _ = await home.visit()
        conversation.close(1012, "the server is restarting")
        conversation.close(1000, "again")
        await quiet()
        assert wire.closed == (1012, "the server is restarting")
        assert wire.closes == 1


async def test_a_session_that_was_closed_before_its_client_came_closes_it(house):
    async with house() as home:
        conversation = await home.registry.open(SessionConfig())
        conversation.close(1012, "the server is restarting")
        wire = Wire()
        await conversation.attach(wire)
        assert wire.closed == (1012, "the server is restarting")
        assert wire.sent == []


async def test_what_comes_after_the_end_changes_nothing(house):
    async with house() as home:
        conversation, wire, _ = await home.visit()
        conversation.close(1000, "done")
        await quiet()
        seen = len(wire.sent)
        conversation.happen(typed("Hi"))
        conversation.happen(events.Detached())
        assert len(wire.sent) == seen
        assert conversation.expires_in == 3600.0


# -- what breaks ----------------------------------------------------------------------------


class Broken(Exception):
    """Nothing that anybody expects."""


def breaks(*_):
    raise Broken


async def test_a_session_that_raises_for_its_client_ends_alone(house, monkeypatch, caplog):
    async with house() as home:
        conversation, wire, place = await home.visit()
        _, other_wire, other_place = await home.visit()
        monkeypatch.setattr(conversation.session.answering, "settle", breaks)
        wire.say(typed("Hi"))
        await quiet()
        assert wire.closed == (1011, "the session failed")
        assert place.closed
        assert "Broken" in caplog.text
        await tell(other_wire, typed("Hi"), ask())
        other_place.says("Hello.", 100)
        await quiet()
        assert other_wire.all(effects.ResponseDone)
        assert other_wire.closed is None


async def test_a_session_that_raises_for_its_engine_ends_alone(house, monkeypatch):
    async with house() as home:
        conversation, wire, place = await home.visit()
        _, other_wire, _ = await home.visit()
        monkeypatch.setattr(conversation.session.answering, "receive", breaks)
        place.brings(engine.TextGenerated(session="s", generation=1, text="x"))
        await quiet()
        assert wire.closed == (1011, "the session failed")
        assert conversation.session.connection is Connection.CLOSED
        assert home.registry.active == 1
        assert other_wire.closed is None


async def test_a_session_that_raises_in_its_timer_ends_alone(house, monkeypatch):
    async with house(audio_lead=0.01) as home:
        conversation, wire, place = await home.visit()
        _, other_wire, _ = await home.visit()
        monkeypatch.setattr(conversation.session, "handle_timer", breaks)
        monkeypatch.setattr(conversation.session, "next_deadline", lambda: -math.inf)
        await tell(wire, typed("Hi"))
        assert wire.closed == (1011, "the session failed")
        assert place.closed
        assert other_wire.closed is None


@pytest.mark.parametrize("event", [events.CloseRequested, events.Detached])
async def test_a_session_that_raises_when_it_is_to_end_ends_all_the_same(house, monkeypatch, event):
    async with house() as home:
        conversation, wire, place = await home.visit()

        def receive(happened, now, real=conversation.session.receive):
            if isinstance(happened, event):
                raise Broken
            real(happened, now)

        monkeypatch.setattr(conversation.session, "receive", receive)
        if event is events.Detached:
            wire.hang_up()
        else:
            conversation.close(1012, "the server is restarting")
        await quiet()
        assert wire.closed == (1011, "the session failed")
        assert place.closed
        assert home.registry.active == 0


# -- giving the place back ------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch):
    """Nothing is waited for when a session is cleaned up."""
    monkeypatch.setattr(runner, "CLEANUP_SECONDS", 0.0)


@pytest.mark.parametrize("refusal", [engine.EngineError("no"), Broken()], ids=["no", "broken"])
async def test_a_place_that_can_not_be_given_back_is_kept_in_mind(house, caplog, refusal):
    async with house() as home:
        _, other_wire, _ = await home.visit()
        conversation, wire, place = await home.visit()
        home.deployment.refusals = [refusal]
        wire.hang_up()
        await quiet()
        assert conversation.needs_reaping
        assert home.registry.active == 2
        assert "could not be given back" in caplog.text
        await conversation.clean_up()
        assert not conversation.needs_reaping
        assert place.closed
        assert home.registry.active == 1
        assert other_wire.closed is None


async def test_a_place_that_takes_too_long_to_be_given_back_is_kept_in_mind(house, impatient):
    async with house() as home:
        home.deployment.hangs = True
        conversation, wire, _ = await home.visit()
        wire.hang_up()
        with anyio.fail_after(PATIENCE_S):
            while not conversation.needs_reaping:
                await quiet()
        home.deployment.hangs = False
        runner.CLEANUP_SECONDS = 5.0
        await conversation.clean_up()
        assert home.registry.active == 0


# -- cancelling -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(14))
async def test_a_client_that_is_cancelled_at_any_await_leaves_nothing(house, steps):
    async with house() as home:
        conversation = await home.registry.open(SessionConfig(turn_detection=None))
        wire = Wire()
        wire.say(typed("Hi"))
        wire.say(AudioBytes(bytes(48_000 * 3)))
        item = MessageItem("a", "user", (InputAudio(None),))
        wire.say(events.CreateItem(None, item, audio=bytes(48_000 * 3)))
        wire.say(ask())
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(conversation.attach, wire)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        await quiet()
        if steps:
            assert wire.closed == (1000, "the client is gone")
            assert conversation.session.connection is Connection.CLOSED
            assert home.registry.active == 0
            assert home.deployment.taken == 0


# -- who watches ----------------------------------------------------------------------------


class Diary:
    def __init__(self) -> None:
        self.events = []
        self.effects = []

    def event(self, session_id, event, now):
        self.events.append((session_id, type(event), now))

    def effect(self, session_id, effect, now):
        self.effects.append((session_id, type(effect), now))

    def trace(self, session_id, generation):
        return f"{session_id}/{generation}"


async def test_an_observer_sees_all_that_happens(house):
    diary = Diary()
    async with house(observer=diary) as home:
        conversation, wire, stream = await home.visit()
        await tell(wire, typed("Hi"), ask())
    [respond] = [one for one in stream.commands if isinstance(one, engine.Respond)]
    assert respond.trace == f"{conversation.id}/{respond.generation}"
    seen = [kind for _, kind, _ in diary.events]
    assert [events.Attached, events.CreateItem, events.CreateResponse] == seen[:3]
    done = [kind for _, kind, _ in diary.effects]
    assert effects.SessionCreated in done and effects.ToEngine in done
    assert effects.CleanUp in done
    assert {who for who, _, _ in diary.events} == {conversation.id}
    assert {now for _, _, now in diary.events} == {1000.0}


# -- the server's own ends ------------------------------------------------------------------


def heard(seconds, level=8000):
    return np.full(round(seconds * 16_000), level, "<i2").tobytes()


async def test_a_microphone_of_our_own_is_heard_at_once(house):
    async with house() as home:
        conversation, wire, _ = await home.visit()
        for _ in range(50):
            conversation.hear(heard(0.02))
        await quiet()
        assert wire.all(effects.SpeechStarted)
        for _ in range(40):
            conversation.hear(heard(0.02, 0))
        await quiet()
        assert wire.all(effects.InputCommitted)


async def test_a_full_buffer_is_told_of_once_while_it_is_full(house):
    async with house(max_buffer_seconds=1.0) as home:
        conversation, wire, _ = await home.visit(turn_detection=None)
        for _ in range(60):
            conversation.hear(heard(0.02))
        await quiet()
        assert wire.errors == ["input_audio_buffer_full"]
        await tell(wire, events.ClearAudio(None))
        for _ in range(60):
            conversation.hear(heard(0.02))
        await quiet()
        assert wire.errors == ["input_audio_buffer_full"] * 2


async def test_playout_of_our_own_says_what_was_heard(house):
    async with house() as home:
        conversation = await home.registry.open(SessionConfig(), plays_out=True)
        wire = Wire()
        home.tasks.start_soon(conversation.attach, wire)
        await tell(wire, typed("Hi"), ask())
        home.deployment.places[-1].says("Hello.", 1000)
        await quiet()
        conversation.report(wire.all(effects.OutputItemAdded)[0].item.id, 400.0)
        await tell(wire, events.ClearOutput(None))
        assert wire.all(effects.ItemTruncated)[0].audio_end_ms == 400


async def test_sound_that_breaks_a_session_ends_it_alone(house, caplog):
    async with house() as home:
        conversation, wire, _ = await home.visit()
        _, other, _ = await home.visit()
        conversation.hear(b"x")
        await quiet()
        assert wire.closed == (1011, "the session failed")
        assert other.closed is None
        conversation.hear(heard(0.02))
        assert "failed" in caplog.text


async def test_a_client_that_may_come_back_is_waited_for(house):
    async with house() as home:
        conversation, wire, _ = await home.visit()
        await tell(wire, events.Detached(resumable=True))
        assert conversation.session.connection is Connection.DETACHED
        await tell(wire, events.Attached())
        assert conversation.session.connection is Connection.ATTACHED
