"""The assistant's side: drafts, the queue, stopping, and whose turn it is."""

import math

import pytest

from duologue.engines import engine
from duologue.sessions import effects, events
from duologue.sessions.answering import DRAFT_PICTURES, OF_NO_ANSWER
from duologue.sessions.items import InputAudio, InputImage, InputText, MessageItem
from duologue.sessions.playback import LINGER
from duologue.sessions.session_config import (
    FunctionTool,
    ServerVad,
    SessionLimits,
    SessionPatch,
    Transcription,
    Truncation,
    TurnDetectionPatch,
    TurnPolicy,
)
from duologue.sessions.turns import Assistant

NO_INTERRUPTION = ServerVad(interrupt_response=False)


def typed(t, text, item_id=""):
    t.receive(events.CreateItem(None, MessageItem(item_id, "user", (InputText(text),))))


def ask(t, event_id=None, **params):
    return t.receive(events.CreateResponse(event_id, events.ResponseParams(**params)))


def texts(message):
    return " ".join(part.text for part in message.parts)


def answered(t, *clauses, ends=True):
    """A typed question answered with clauses of (text, ms)."""
    typed(t, "Tell me.")
    ask(t)
    for text, ms in clauses:
        t.says(text, ms)
    if ends:
        t.ends()
    return t.all(effects.OutputItemAdded)[-1].item.id


def update(t, **changes):
    t.receive(events.UpdateSession(None, SessionPatch(changes)))


def detect(t, kind=ServerVad, **changes):
    patch = SessionPatch(turn_detection=TurnDetectionPatch(kind, changes))
    t.receive(events.UpdateSession(None, patch))


def statuses(t):
    return [done.response.status for done in t.all(effects.ResponseDone)]


def spoken_by_assistant(t):
    return [texts(m) for m in t.prompt if m.role == "assistant"]


def drafted(t):
    """The user has said something and paused."""
    t.speak(1.0)
    t.pause(0.3)
    assert t.commands(engine.Respond)[-1].request.speculative
    return t.generation


# -- drafts ---------------------------------------------------------------------------------


def test_a_draft_that_is_released_is_no_longer_the_last_in_the_line(talk):
    t = talk()
    number = drafted(t)
    t.pause(0.3)
    (told,) = t.commands(engine.Acknowledge)
    assert (told.generation, told.sent_ms) == (number, 0)


def test_a_draft_that_was_ready_is_heard_the_moment_the_turn_is_over(talk, named):
    t = talk()
    drafted(t)
    t.says("Hello.", 400)
    t.ends()
    before = len(t.done)
    t.pause(0.3)
    assert named(t.done[before:])[-1] == "ResponseDone"
    assert statuses(t) == ["completed"]


def test_a_draft_is_thrown_away_when_the_settings_change(talk):
    t = talk()
    number = drafted(t)
    update(t, instructions="Speak like a pirate.")
    assert t.commands(engine.CancelResponse)[-1].generation == number
    t.says("Stale.", 100, generation=number)
    t.pause(0.3)
    assert t.generation != number
    assert t.commands(engine.Respond)[-1].request.instructions == "Speak like a pirate."
    assert not t.all(effects.TranscriptDeltaSaid)


def test_a_draft_survives_an_update_that_changes_nothing(talk):
    t = talk(instructions="Be brief.")
    number = drafted(t)
    update(t, instructions="Be brief.")
    t.pause(0.3)
    assert t.generation == number
    assert not t.commands(engine.CancelResponse)


def test_a_draft_is_thrown_away_when_the_conversation_changes(talk):
    t = talk()
    number = drafted(t)
    typed(t, "By the way.")
    t.pause(0.3)
    assert t.generation != number
    assert t.commands(engine.CancelResponse)[-1].generation == number


def test_a_draft_that_had_ended_needs_no_cancelling(talk):
    t = talk()
    drafted(t)
    t.says("Hello.", 100)
    t.ends()
    t.speak(0.1)
    assert not t.commands(engine.CancelResponse)


def test_a_client_that_asks_during_a_pause_is_answered_instead_of_the_draft(talk):
    t = talk()
    number = drafted(t)
    ask(t)
    assert t.commands(engine.CancelResponse)[-1].generation == number
    t.says("Here.", 100)
    t.pause(0.3)
    assert len(t.all(effects.ResponseCreated)) == 1


def test_an_out_of_band_response_leaves_the_draft_alone(talk):
    t = talk()
    number = drafted(t)
    ask(t, conversation=False)
    t.says("Hello.", 100, generation=number)
    t.pause(0.3)
    assert t.all(effects.TranscriptDeltaSaid)[0].delta == "Hello."


def test_a_draft_ends_with_the_engine_and_the_turn_is_answered_by_the_next(talk):
    t = talk()
    number = drafted(t)
    t.receive(events.EngineLost())
    assert t.errors == []
    t.receive(events.EngineReady())
    t.says("Stale.", 100, generation=number)
    t.pause(0.3)
    assert t.generation != number
    t.says("Fresh.", 100)
    t.ends()
    assert [d.delta for d in t.all(effects.TranscriptDeltaSaid)] == ["Fresh."]
    assert statuses(t) == ["completed"]


def test_without_an_engine_nothing_is_drafted(talk):
    t = talk()
    t.speak(1.0)
    t.receive(events.EngineLost())
    t.pause(0.3)
    assert not t.commands(engine.Respond)


def test_while_a_response_is_active_nothing_is_drafted(talk):
    t = talk(turn_detection=NO_INTERRUPTION)
    answered(t, ("Long.", 9000), ends=False)
    t.speak(1.0)
    t.pause(0.3)
    assert len(t.commands(engine.Respond)) == 1


def test_a_prompt_that_is_too_long_is_not_drafted_but_told_when_it_is_asked_for(talk):
    t = talk(truncation=Truncation("disabled"), instructions="x" * 20_000)
    t.speak(1.0)
    t.pause(0.3)
    assert t.errors == []
    t.pause(0.3)
    assert t.errors == ["context_too_long"]
    assert not t.all(effects.ResponseCreated)


def test_a_failed_draft_is_told_as_a_failed_response(talk):
    t = talk()
    drafted(t)
    t.receive(
        engine.ResponseEnded(
            session="s",
            generation=t.generation,
            reason="failed",
            failure=engine.EngineFailure("upstream_error", "It said no."),
        )
    )
    assert t.errors == []
    t.pause(0.3)
    assert t.errors == ["upstream_error"]
    assert statuses(t) == ["failed"]


# -- the queue ------------------------------------------------------------------------------


def queued(t):
    """A turn that waits for the active response."""
    answered(t, ("Long.", 9000), ends=False)
    t.speak(1.0)
    t.pause(0.6)
    assert len(t.all(effects.ResponseCreated)) == 1


def test_an_interruption_drops_what_was_queued_and_the_new_turn_answers_for_both(talk):
    t = talk(turn_detection=NO_INTERRUPTION)
    queued(t)
    detect(t, interrupt_response=True)
    t.speak(1.0)
    assert statuses(t) == ["cancelled"]
    assert len(t.all(effects.ResponseCreated)) == 1
    t.pause(0.6)
    assert len(t.all(effects.ResponseCreated)) == 2
    heard = [p for m in t.prompt for p in m.parts if isinstance(p, engine.UtterancePart)]
    assert len(heard) == 2


def test_what_was_queued_follows_a_cancelled_response(talk):
    t = talk(turn_detection=NO_INTERRUPTION)
    queued(t)
    t.receive(events.CancelResponse(None))
    assert statuses(t) == ["cancelled"]
    assert len(t.all(effects.ResponseCreated)) == 2


def test_what_was_queued_is_dropped_with_the_engine(talk):
    t = talk(turn_detection=NO_INTERRUPTION)
    queued(t)
    t.receive(events.EngineLost())
    assert statuses(t) == ["failed"]
    assert len(t.all(effects.ResponseCreated)) == 1


def test_a_queued_turn_whose_prompt_is_too_long_is_told(talk):
    t = talk(turn_detection=NO_INTERRUPTION)
    queued(t)
    update(t, truncation=Truncation("disabled"), instructions="x" * 20_000)
    t.receive(events.CancelResponse(None))
    assert t.errors == ["context_too_long"]
    assert len(t.all(effects.ResponseCreated)) == 1


# -- asking ---------------------------------------------------------------------------------


def test_what_is_given_with_the_request_is_checked(talk):
    t = talk()
    t.session.answering._spec = engine.EngineSpec(
        model="blind", voices=("one",), default_voice="one", context_tokens=4096
    )
    ask(t, input=(MessageItem("", "user", (InputImage("data:x"),)),))
    ask(t, input=(MessageItem("", "user", (InputAudio(None),)),))
    assert t.errors == ["unsupported", "missing_required_parameter"]
    ask(t, input=(MessageItem("", "user", (InputAudio("Said."),)),))
    assert texts(t.prompt[0]) == "Said."


def test_what_stands_in_the_conversation_may_be_referred_to_before_its_words_are_known(talk):
    t = talk()
    item = MessageItem("a", "user", (InputAudio(None),))
    t.receive(events.CreateItem(None, item, audio=bytes(100)))
    ask(t, input=(events.ItemReference("a"),))
    assert t.prompt[0].parts == (engine.UtterancePart("a"),)


def test_the_answer_is_promised_room_in_the_context(talk):
    t = talk(truncation=Truncation("disabled"))
    typed(t, "x" * (4096 - 600) * 3)
    ask(t)
    assert t.errors == []
    ask_id = t.all(effects.ResponseCreated)[-1].response.id
    t.receive(events.CancelResponse(None, ask_id))
    typed(t, "x" * 600)
    ask(t, max_output_tokens=100)
    assert t.errors == []
    t.receive(events.CancelResponse(None))
    ask(t)
    assert t.errors == ["context_too_long"]


def test_tools_are_part_of_the_request_and_of_what_it_takes(talk):
    tool = FunctionTool("get", "Looks up.", "{}")
    t = talk(tools=(tool,), tool_choice="required", parallel_tool_calls=False)
    ask(t)
    request = t.commands(engine.Respond)[-1].request
    assert request.tools == (engine.Tool("get", "Looks up.", "{}"),)
    assert (request.tool_choice, request.parallel_tool_calls) == ("required", False)
    t.ends()
    ask(t, tools=(), tool_choice="none", parallel_tool_calls=True)
    request = t.commands(engine.Respond)[-1].request
    assert (request.tools, request.tool_choice) == ((), "none")
    assert request.parallel_tool_calls
    t.ends()
    ask(t, tools=(FunctionTool("get", "x" * 20_000),))
    assert t.errors == ["context_too_long"]


def test_an_engine_that_returns_warms_the_prompt(talk):
    t = talk(instructions="Be brief.")
    t.receive(events.EngineLost())
    assert not t.commands(engine.Prepare)
    t.receive(events.EngineReady())
    assert t.commands(engine.Prepare)[-1].request.instructions == "Be brief."
    t.receive(events.EngineReady())
    assert len(t.commands(engine.Prepare)) == 1


def test_instructions_that_can_not_fit_are_refused_only_when_they_are_asked_for(talk):
    t = talk()
    update(t, instructions="x" * 20_000)
    assert t.errors == []
    assert not t.commands(engine.Prepare)


def test_what_is_being_said_is_warmed_with_the_history_before_it(talk):
    t = talk()
    t.receive(events.CreateItem(None, MessageItem("i", "user", (InputText("Hello."),))))
    t.speak(0.5)
    (prepared,) = t.commands(engine.Prepare)
    (message,) = prepared.request.messages
    name = t.all(effects.SpeechStarted)[-1].item_id
    assert message.parts == (engine.TextPart("Hello."), engine.UtterancePart(name))


def test_what_will_not_be_answered_by_itself_is_not_warmed(talk):
    t = talk(turn_detection=ServerVad(create_response=False))
    t.speak(0.5)
    assert not t.commands(engine.Prepare)


def test_nothing_is_warmed_beside_an_answer_that_goes_on(talk):
    t = talk(turn_detection=ServerVad(interrupt_response=False))
    ask(t)
    t.speak(0.5)
    assert not t.commands(engine.Prepare)


def test_without_an_engine_nothing_is_warmed(talk):
    t = talk()
    t.receive(events.EngineLost())
    update(t, instructions="Be brief.")
    assert not t.commands(engine.Prepare)


# -- cancelling -----------------------------------------------------------------------------


def test_cancelling_an_out_of_band_response_leaves_the_other_alone(talk):
    t = talk()
    answered(t, ("One.", 400), ends=False)
    active = t.generation
    ask(t, conversation=False)
    aside = t.generation
    t.says("Aside it is.", 400, generation=aside)
    created = t.all(effects.ResponseCreated)[-1].response.id
    t.receive(events.CancelResponse(None, created))
    assert [c.generation for c in t.commands(engine.CancelResponse)] == [aside]
    assert [d.response.id for d in t.all(effects.ResponseDone)] == [created]
    assert t.commands(engine.AlignSpeech) == []
    t.says("Two.", 100, generation=active)
    t.ends(generation=active)
    assert statuses(t) == ["cancelled", "completed"]


def test_without_an_id_only_the_conversations_response_is_cancelled(talk):
    t = talk()
    ask(t, conversation=False)
    t.receive(events.CancelResponse("e"))
    assert t.errors == ["response_cancel_not_active"]
    assert statuses(t) == []


def test_what_a_client_cancels_may_still_be_heard_and_interrupted(talk):
    t = talk()
    answered(t, ("One two. ", 2000), ("Three four.", 2000), ends=False)
    t.wait(1.0)
    t.receive(events.CancelResponse(None))
    assert t.session.answering.state is Assistant.SPEAKING
    t.wait(1.2)
    t.speak(1.0)
    t.pause(0.6)
    assert spoken_by_assistant(t) == ["One two."]


def test_what_a_client_cancels_is_over_when_it_has_been_heard(talk):
    t = talk()
    answered(t, ("One.", 1000), ends=False)
    number = t.generation
    t.receive(events.CancelResponse(None))
    t.wait(0.9)
    assert t.session.answering.state is Assistant.SPEAKING
    t.wait(0.2)
    assert t.session.answering.state is Assistant.QUIET
    t.ends("cancelled", generation=number)
    assert statuses(t) == ["cancelled"]


def test_what_was_not_heard_at_all_yields_until_the_engine_confirms(talk):
    t = talk()
    ask(t)
    t.receive(events.CancelResponse(None))
    assert t.session.answering.state is Assistant.YIELDING
    assert t.session.next_deadline() > t.now
    t.ends("cancelled")
    assert t.session.answering.state is Assistant.QUIET


# -- interrupting ---------------------------------------------------------------------------


def test_a_second_interruption_gives_back_nothing_of_the_first_answer(talk):
    t = talk()
    answered(t, ("One two. ", 1000), ("Three four. ", 1000), ("Five six.", 2000))
    t.wait(1.1)
    t.speak(0.3)
    t.pause(0.6)
    assert spoken_by_assistant(t) == ["One two. Three"]
    t.speak(0.5)
    t.pause(0.6)
    assert spoken_by_assistant(t) == ["One two. Three"]


def test_every_answer_that_still_plays_is_cut(talk):
    t = talk()
    for word in ("One.", "Two.", "Three.", "Four.", "Five.", "Six."):
        answered(t, (word, 500))
    t.wait(0.6)
    t.speak(0.5)
    t.pause(0.6)
    assert spoken_by_assistant(t) == ["One."]


def test_every_item_of_a_response_is_cut_by_itself(talk):
    t = talk()
    typed(t, "Tell me.")
    ask(t)
    number = t.generation
    t.says("One two.", 1000)
    for call_id in ("c", "d"):
        common = {"session": "s", "generation": number, "call_id": call_id}
        t.receive(engine.ToolCallStarted(**common, name="get"))
        t.receive(engine.ToolCallEnded(**common, arguments="{}"))
        t.says(f"About {call_id}.", 1000)
    t.wait(1.9)
    t.speak(0.5)
    t.pause(0.6)
    assert [said for said in spoken_by_assistant(t) if said] == ["One two.", "About c."]


def test_an_answer_beside_the_conversation_is_not_interrupted(talk):
    t = talk(plays_out=True)
    answered(t, ("One two three.", 1000), ends=False)
    ask(t, conversation=False)
    aside = t.generation
    t.says("Aside it is.", 1000, generation=aside)
    aside_item = t.all(effects.OutputItemAdded)[-1].item.id
    t.wait(0.5)
    t.speak(0.1)
    assert statuses(t) == ["cancelled"]
    assert aside_item not in [cut.item_id for cut in t.all(effects.ItemTruncated)]
    assert {a.reference.split("@")[0] for a in t.commands(engine.AlignSpeech)} <= {
        t.all(effects.OutputItemAdded)[0].item.id
    }
    t.ends(generation=aside)
    assert statuses(t) == ["cancelled", "completed"]


def test_an_answer_that_was_deleted_while_it_was_spoken_can_be_interrupted(talk):
    t = talk(plays_out=True)
    item = answered(t, ("One two three.", 3000), ends=False)
    t.receive(events.DeleteItem(None, item))
    t.speak(0.1)
    assert statuses(t) == ["cancelled"]
    assert t.all(effects.ItemTruncated) == []
    assert t.commands(engine.AlignSpeech) == []
    assert item not in t.session.history


def test_words_of_a_clause_are_asked_for_once_however_often_it_is_truncated(talk):
    t = talk()
    item = answered(t, ("One two three four.", 2000))
    t.wait(1.0)
    for at in range(500, 1500, 10):
        t.receive(events.TruncateItem(None, item, 0, at))
    assert len(t.commands(engine.AlignSpeech)) == 1


def test_a_client_that_truncates_is_ready_for_the_next_answer_at_once(talk):
    t = talk(SessionLimits(audio_lead=2.0), turn_detection=None)
    item = answered(t, ("Long.", 9000), ends=False)
    t.wait(0.5)
    t.receive(events.CancelResponse(None))
    t.receive(events.TruncateItem(None, item, 0, 400))
    before = len(t.all(effects.AudioDelta))
    ask(t)
    t.says("Short and new.", 1500)
    sent = sum(len(delta.pcm) for delta in t.all(effects.AudioDelta)[before:])
    assert sent == 1500 * 48
    t.ends()
    t.wait(1.6)
    ask(t)
    assert spoken_by_assistant(t)[-1] == "Short and new."


# -- overlaps that are judged ---------------------------------------------------------------


def judging(talk, **more):
    """An overlap with an answer is being judged, softly."""
    t = talk(turn_policy=TurnPolicy.BACKCHANNEL_AWARE, plays_out=True, **more)
    answered(t, ("Long.", 1000), ("Longer.", 4000), ends=False)
    t.wait(0.5)
    t.speak(0.1)
    assert t.session.answering.state is Assistant.DUCKED
    return t


def test_an_answer_that_ends_while_it_is_judged_is_followed_at_full_level(talk):
    t = talk(turn_policy=TurnPolicy.BACKCHANNEL_AWARE, plays_out=True)
    answered(t, ("Short.", 500))
    t.wait(0.3)
    t.speak(0.1)
    assert t.session.answering.state is Assistant.DUCKED
    t.wait(0.15)
    assert t.session.answering.state is Assistant.QUIET
    assert len(t.all(effects.RestorePlayout)) == 1


@pytest.mark.parametrize(
    ("event", "probability"),
    [
        (events.ClearAudio(None), 0.0),
        (events.UpdateSession(None, SessionPatch(turn_detection=None)), 0.9),
        (
            events.UpdateSession(
                None,
                SessionPatch(
                    turn_detection=TurnDetectionPatch(ServerVad, {"interrupt_response": False})
                ),
            ),
            0.9,
        ),
    ],
    ids=["clear", "manual", "no interruption"],
)
def test_when_nobody_judges_any_more_the_level_is_restored(talk, event, probability):
    t = judging(talk)
    t.receive(event)
    t.hear(0.6, probability)
    assert t.session.answering.state is Assistant.SPEAKING
    assert len(t.all(effects.RestorePlayout)) == 1
    assert statuses(t) == []


def test_committing_by_hand_restores_the_level(talk):
    t = judging(talk)
    t.speak(0.1)
    t.receive(events.CommitAudio(None))
    assert t.session.answering.state is Assistant.SPEAKING
    assert t.all(effects.InputCommitted)


def test_an_overlap_that_becomes_an_interruption_needs_no_restoring(talk):
    t = judging(talk)
    t.speak(0.6)
    assert statuses(t) == ["cancelled"]
    assert t.all(effects.FlushPlayout) and not t.all(effects.RestorePlayout)


# -- where the server plays out -------------------------------------------------------------


def test_a_short_answer_that_was_drafted_begins_and_ends_to_be_heard(talk):
    t = talk(plays_out=True)
    drafted(t)
    t.says("Yes.", 300)
    t.ends()
    t.pause(0.3)
    t.wait(1.0)
    response = t.all(effects.ResponseCreated)[0].response.id
    assert t.all(effects.PlaybackStarted) == [effects.PlaybackStarted(response)]
    assert t.all(effects.PlaybackStopped) == [effects.PlaybackStopped(response)]


def test_a_reported_position_is_where_an_answer_is_cut(talk):
    t = talk(plays_out=True)
    item = answered(t, ("One. ", 1000), ("Two.", 1000))
    t.receive(events.PlaybackReported(item, 700))
    t.receive(events.PlaybackReported("nothing", 700))
    t.wait(1.5)
    t.speak(0.1)
    assert t.all(effects.ItemTruncated) == [effects.ItemTruncated(item, 0, 700)]


def test_the_client_may_stop_what_is_heard(talk):
    t = talk(plays_out=True)
    item = answered(t, ("One. ", 1000), ("Two.", 1000))
    t.wait(1.0)
    t.receive(events.ClearOutput(None))
    assert t.all(effects.PlaybackCleared)
    assert t.all(effects.ItemTruncated) == [effects.ItemTruncated(item, 0, 1000)]
    assert t.session.answering.state is Assistant.QUIET


# -- memory ---------------------------------------------------------------------------------


def held_audio(t):
    playback = t.session.answering.playout.playback
    return sum(
        len(clause.pcm) for item in playback._items.values() for clause in item.clauses
    ) + sum(len(clause.pcm) for item in playback._fresh for clause in item.clauses)


def test_an_hour_of_answers_and_interruptions_keeps_no_audio(talk):
    t = talk(transcription=Transcription("any"))
    for _ in range(100):
        answered(t, *((f"Sentence {n}. ", 1500) for n in range(8)), ends=False)
        t.wait(2.0)
        t.speak(0.3)
        t.pause(0.6)
        t.transcribes("Stop.")
        t.says("Yes, of course.", 2000)
        t.ends()
        t.wait(2.0)
    t.wait(LINGER + 3.0)
    t.pause(0.1)
    assert held_audio(t) == 0
    assert not t.session.answering.playout.playback._fresh
    assert not t.session.answering._out_of_band
    assert not t.session.listening._transcripts._awaited


def test_a_session_that_rests_needs_only_its_own_deadlines(talk):
    t = talk()
    answered(t, ("One.", 500))
    t.wait(10.0)
    assert t.session.answering.next_deadline() == math.inf


# -- pictures -------------------------------------------------------------------------------


def picture(t, generation, at_ms=0.0):
    made = engine.PictureGenerated(generation, at_ms, 2, 2, bytes(6), session=t.session.id)
    t.receive(made)
    return made


def test_a_picture_is_shown_with_its_response(talk):
    t = talk()
    t.receive(events.CreateResponse(None, events.ResponseParams()))
    made = picture(t, t.generation, 40.0)
    response = t.all(effects.ResponseCreated)[0].response
    assert t.all(effects.ShowPicture) == [effects.ShowPicture(response.id, made)]


def test_a_picture_of_no_answer_is_shown_at_once(talk):
    t = talk()
    made = picture(t, OF_NO_ANSWER)
    assert t.all(effects.ShowPicture) == [effects.ShowPicture("", made)]


def test_a_picture_of_an_older_answer_is_never_shown(talk):
    t = talk()
    t.receive(events.CreateResponse(None, events.ResponseParams()))
    number = t.generation
    t.receive(events.CancelResponse(None))
    picture(t, number)
    picture(t, number + 7)
    assert t.all(effects.ShowPicture) == []


def test_a_drafts_pictures_wait_and_the_first_ones_are_kept(talk):
    t = talk()
    number = drafted(t)
    for n in range(DRAFT_PICTURES + 10):
        picture(t, number, n * 40.0)
    assert t.all(effects.ShowPicture) == []
    t.pause(0.5)
    shown = [effect.picture.at_ms for effect in t.all(effects.ShowPicture)]
    assert shown == [n * 40.0 for n in range(DRAFT_PICTURES)]
