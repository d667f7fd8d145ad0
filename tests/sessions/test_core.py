"""Conversations as a client and an engine see them, with time passed in."""

from duologue.engines import engine
from duologue.sessions import effects, events
from duologue.sessions.items import (
    FunctionCallItem,
    FunctionOutputItem,
    InputAudio,
    InputImage,
    InputText,
    MessageItem,
    OutputAudio,
)
from duologue.sessions.session_config import (
    SemanticVad,
    ServerVad,
    SessionConfig,
    SessionLimits,
    SessionPatch,
    Transcription,
    TurnDetectionPatch,
    TurnPolicy,
)
from duologue.sessions.turns import Assistant, Connection


def typed(talk, text, item_id=""):
    talk.receive(events.CreateItem(None, MessageItem(item_id, "user", (InputText(text),))))


def ask(talk, **params):
    return talk.receive(events.CreateResponse(None, events.ResponseParams(**params)))


def texts(message):
    return " ".join(part.text for part in message.parts)


# -- a spoken turn --------------------------------------------------------------------------


def test_a_spoken_turn_is_told_in_the_order_that_clients_rely_on(talk, named):
    t = talk()
    t.speak(1.0)
    t.pause(0.6)
    t.says("Hello there.", 400)
    t.ends()
    assert named(t.done) == [
        "SessionCreated",
        "OpenUtterance",
        "SpeechStarted",
        "SpeechStopped",
        "InputCommitted",
        "ItemAdded",
        "ItemDone",
        "CloseUtterance",
        "ResponseCreated",
        "OutputItemAdded",
        "ItemAdded",
        "ContentPartAdded",
        "TranscriptDeltaSaid",
        "AudioDelta",
        "AudioDelta",
        "AudioDone",
        "TranscriptSaid",
        "ContentPartDone",
        "OutputItemDone",
        "ItemDone",
        "ResponseDone",
    ]
    assert t.all(effects.SpeechStarted)[0].item_id == t.all(effects.InputCommitted)[0].item_id
    assert t.all(effects.ResponseDone)[0].response.status == "completed"


def test_speech_starts_with_its_padding_and_stops_with_its_silence(talk):
    t = talk()
    t.pause(1.024)
    t.speak(0.96)
    t.pause(0.6)
    assert t.all(effects.SpeechStarted)[0].audio_start_ms == 1024 - 300
    stopped = t.all(effects.SpeechStopped)[0].audio_end_ms
    assert 1024 + 960 + 500 <= stopped <= 1024 + 960 + 500 + 32


def test_nothing_of_a_draft_is_on_the_wire_until_the_turn_is_over(talk, named):
    t = talk()
    t.speak(1.0)
    t.pause(0.3)
    assert t.commands(engine.Respond)[0].request.speculative
    t.says("Too early.", 200)
    t.ends()
    assert named(t.done)[-1] == "SpeechStarted"
    t.pause(0.3)
    assert len(t.commands(engine.Respond)) == 1
    assert t.all(effects.TranscriptDeltaSaid)[0].delta == "Too early."


def test_a_draft_is_dropped_and_the_utterances_merge_when_the_user_goes_on(talk):
    t = talk()
    t.speak(1.0)
    t.pause(0.3)
    first = t.generation
    t.speak(0.5)
    assert t.commands(engine.CancelResponse)[0].generation == first
    t.says("Stale.", 100, generation=first)
    t.pause(0.6)
    assert len(t.all(effects.InputCommitted)) == 1
    assert t.all(effects.TranscriptDeltaSaid) == []
    assert t.generation != first


def test_a_confirmed_turn_ends_the_utterance_where_the_draft_heard_it_end(talk):
    t = talk()
    t.speak(1.0)
    t.pause(0.6)
    drafted = t.commands(engine.Respond)[0].request.messages[-1].parts[-1]
    assert isinstance(drafted, engine.UtterancePart)
    assert t.all(effects.CloseUtterance)[0].end == drafted.until


def test_semantic_turns_end_early_when_the_detector_is_sure(talk):
    t = talk(turn_detection=SemanticVad())
    t.speak(1.0)
    t.pause(0.256)
    t.judges(0.9)
    assert not t.all(effects.SpeechStopped)
    t.pause(0.256)
    assert t.all(effects.SpeechStopped)


def test_semantic_turns_end_at_the_cap_when_the_detector_doubts(talk):
    t = talk(turn_detection=SemanticVad("high"))
    t.speak(1.0)
    t.pause(0.5)
    t.judges(0.1)
    assert not t.all(effects.SpeechStopped)
    t.pause(0.2)
    assert t.all(effects.SpeechStopped)


def test_the_detector_is_asked_again_as_silence_goes_on(talk):
    t = talk(turn_detection=SemanticVad("low"))
    t.speak(1.0)
    for asked in range(1, 5):
        t.pause(0.21)
        assert len(t.commands(engine.JudgeTurn)) == asked
        t.judges(0.1)


def test_a_muted_client_still_ends_its_turn(talk):
    t = talk()
    t.speak(1.0)
    t.wait(0.7)
    assert t.all(effects.SpeechStopped)


def test_without_create_response_the_turn_is_committed_and_nothing_answers(talk):
    t = talk(turn_detection=ServerVad(create_response=False))
    t.speak(1.0)
    t.pause(0.6)
    assert t.all(effects.InputCommitted)
    assert t.commands(engine.Respond) == []


def test_a_transcript_reaches_the_client_only_when_it_asked_for_it(talk):
    quiet, told = talk(), talk(transcription=Transcription("any"))
    for t in (quiet, told):
        t.speak(1.0)
        t.pause(0.6)
        t.transcribes("hello")
    assert quiet.all(effects.TranscriptionCompleted) == []
    assert told.all(effects.TranscriptionCompleted)[0].transcript == "hello"
    for t in (quiet, told):
        item = t.session.history.get(t.all(effects.InputCommitted)[0].item_id)
        assert item.content == (InputAudio("hello"),)


def test_partial_words_are_told_while_the_user_speaks(talk):
    t = talk(transcription=Transcription("any"))
    t.speak(1.0)
    utterance = t.all(effects.OpenUtterance)[0].utterance
    t.receive(engine.TranscriptDelta(session="s", utterance=utterance, delta="hel"))
    t.receive(engine.TranscriptDelta(session="s", utterance="other", delta="no"))
    assert [d.delta for d in t.all(effects.TranscriptionDelta)] == ["hel"]


def test_a_transcription_session_makes_no_responses(talk):
    t = talk(kind="transcription", transcription=Transcription("any"))
    t.speak(1.0)
    t.pause(0.6)
    ask(t)
    assert t.all(effects.InputCommitted)
    assert t.commands(engine.Respond) == []
    assert t.errors == ["invalid_event_for_session"]


# -- interruption ---------------------------------------------------------------------------


def spoken(t, *clauses):
    """A typed question answered with clauses of (text, ms)."""
    typed(t, "Tell me.")
    ask(t)
    for text, ms in clauses:
        t.says(text, ms)
    return t.all(effects.OutputItemAdded)[-1].item.id


def test_a_barge_in_cancels_the_response_and_names_the_reason(talk):
    t = talk()
    spoken(t, ("One two three.", 1000))
    t.speak(0.1)
    done = t.all(effects.ResponseDone)[0].response
    assert (done.status, done.reason) == ("cancelled", "turn_detected")
    assert t.commands(engine.CancelResponse)
    assert done.output[0].status == "incomplete"


def test_audio_after_a_barge_in_does_not_resume_the_response(talk):
    t = talk()
    spoken(t, ("One.", 400))
    generation = t.generation
    t.speak(0.1)
    before = len(t.all(effects.AudioDelta))
    t.says("Two.", 400, generation=generation)
    t.ends(generation=generation)
    assert len(t.all(effects.AudioDelta)) == before
    assert len(t.all(effects.ResponseDone)) == 1


def test_speech_started_comes_before_the_cancelled_response(talk, named):
    t = talk()
    spoken(t, ("One.", 400))
    taken = named(t.speak(0.1))
    assert taken.index("SpeechStarted") < taken.index("ResponseDone")


def test_a_barge_in_after_the_response_is_done_emits_no_second_done(talk):
    t = talk()
    spoken(t, ("One two.", 1000), ("Three four.", 1000))
    t.ends()
    t.wait(0.5)
    t.speak(0.1)
    assert len(t.all(effects.ResponseDone)) == 1
    assert t.all(effects.ResponseDone)[0].response.status == "completed"
    assert t.all(effects.SpeechStarted)


def test_the_next_prompt_holds_only_the_words_that_were_played(talk):
    t = talk()
    spoken(t, ("One two. ", 1000), ("Three four.", 1000))
    t.ends()
    t.wait(1.2)
    t.speak(1.0)
    t.pause(0.6)
    assistant = [m for m in t.prompt if m.role == "assistant"]
    assert [texts(m) for m in assistant] == ["One two. Three"]


def test_a_truncate_from_the_client_outweighs_our_estimate(talk):
    t = talk()
    item = spoken(t, ("One two. ", 1000), ("Three four. ", 1000), ("Five.", 500))
    t.ends()
    t.wait(0.3)
    t.speak(0.1)
    t.receive(events.TruncateItem(None, item, 0, 2000))
    t.speak(0.5)
    t.pause(0.6)
    assert texts(next(m for m in t.prompt if m.role == "assistant")) == "One two. Three four."


def test_words_inside_a_clause_are_counted_once_they_are_aligned(talk):
    t = talk()
    spoken(t, ("One two three four.", 1000))
    t.ends()
    t.wait(0.6)
    t.speak(0.064)
    asked = t.commands(engine.AlignSpeech)[0]
    words = tuple(
        engine.WordTime(text, end)
        for text, end in (("One ", 100), ("two ", 200), ("three ", 600), ("four.", 1000))
    )
    t.receive(engine.SpeechAligned(session="s", reference=asked.reference, words=words))
    t.speak(0.5)
    t.pause(0.6)
    assert texts(next(m for m in t.prompt if m.role == "assistant")) == "One two three"


def test_an_answer_that_was_not_heard_leaves_the_prompt_and_joins_the_user(talk):
    t = talk()
    typed(t, "Where is")
    ask(t)
    t.speak(0.5)
    t.pause(0.6)
    t.transcribes("the museum?")
    typed(t, "Please.")
    t.ends(generation=t.generation)
    ask(t)
    assert [m.role for m in t.prompt] == ["user"]
    assert texts(t.prompt[0]) == "Where is the museum? Please."
    assert len(t.session.history) == 3


def test_truncating_before_any_audio_gives_zero_and_no_error(talk):
    t = talk()
    typed(t, "Tell me.")
    ask(t)
    t.says("", 0)
    item = t.all(effects.OutputItemAdded)[-1].item.id
    t.receive(events.TruncateItem("e", item, 0, 0))
    assert t.all(effects.ItemTruncated)[0].audio_end_ms == 0
    assert t.errors == []


def test_truncating_a_little_beyond_the_end_is_clamped(talk):
    t = talk()
    item = spoken(t, ("One.", 1000))
    t.ends()
    t.receive(events.TruncateItem("e", item, 0, 1400))
    assert t.all(effects.ItemTruncated)[0].audio_end_ms == 1000


def test_truncating_far_beyond_the_end_is_one_error_and_the_session_goes_on(talk):
    t = talk()
    item = spoken(t, ("One.", 1000))
    t.ends()
    t.receive(events.TruncateItem("e", item, 0, 9000))
    assert t.errors == ["item_truncate_invalid_audio_end"]
    assert t.all(effects.ErrorReported)[0].error.event_id == "e"
    assert "already shorter" in t.all(effects.ErrorReported)[0].error.message
    ask(t)
    assert t.all(effects.ResponseCreated)[-1]


def test_what_has_no_audio_cannot_be_truncated(talk):
    t = talk()
    typed(t, "Hello", "mine")
    item = spoken(t, ("One.", 1000))
    t.ends()
    t.receive(events.TruncateItem("a", "nothing", 0, 0))
    t.receive(events.TruncateItem("b", "mine", 0, 0))
    t.receive(events.TruncateItem("c", item, 3, 0))
    assert t.errors == [
        "item_truncate_invalid_item_id",
        "item_truncate_invalid_item_id",
        "invalid_value",
    ]


def test_without_interrupt_response_the_assistant_goes_on_and_the_turn_queues(talk):
    t = talk(turn_detection=ServerVad(interrupt_response=False))
    spoken(t, ("One.", 400))
    t.speak(1.0)
    t.pause(0.6)
    assert len(t.all(effects.ResponseCreated)) == 1
    t.says("Two.", 200)
    t.ends()
    assert [d.response.status for d in t.all(effects.ResponseDone)] == ["completed"]
    assert len(t.all(effects.ResponseCreated)) == 2


def test_turns_that_queue_make_one_response(talk):
    t = talk(turn_detection=ServerVad(interrupt_response=False))
    spoken(t, ("One.", 400))
    for _ in range(3):
        t.speak(0.5)
        t.pause(0.6)
    t.ends()
    t.ends()
    assert len(t.all(effects.ResponseCreated)) == 2


def test_a_backchannel_interrupts_nothing_and_leaves_no_trace(talk):
    t = talk(SessionLimits(turn_policy=TurnPolicy.BACKCHANNEL_AWARE))
    spoken(t, ("One.", 5000))
    t.speak(0.2)
    t.pause(0.7)
    assert t.all(effects.SpeechStarted) == []
    assert t.all(effects.ResponseDone) == []
    assert t.all(effects.DropUtterance)


def test_an_overlap_that_goes_on_interrupts_and_is_dated_back(talk):
    t = talk(turn_policy=TurnPolicy.BACKCHANNEL_AWARE)
    spoken(t, ("One.", 5000))
    t.pause(0.512)
    t.speak(0.6)
    assert t.all(effects.SpeechStarted)[0].audio_start_ms == 512 - 300
    assert t.all(effects.ResponseDone)[0].response.reason == "turn_detected"


def test_an_overlap_that_goes_on_after_a_pause_interrupts(talk):
    t = talk(turn_policy=TurnPolicy.BACKCHANNEL_AWARE)
    spoken(t, ("One.", 5000))
    t.speak(0.2)
    t.pause(0.3)
    assert t.all(effects.SpeechStarted) == []
    t.speak(0.1)
    assert t.all(effects.SpeechStarted)


def test_where_the_server_plays_out_an_overlap_ducks_and_is_restored(talk):
    t = talk(turn_policy=TurnPolicy.BACKCHANNEL_AWARE, plays_out=True)
    spoken(t, ("One.", 5000))
    t.speak(0.2)
    assert t.session.answering.state is Assistant.DUCKED
    t.pause(0.7)
    assert t.all(effects.DuckPlayout) and t.all(effects.RestorePlayout)
    assert t.session.answering.state is Assistant.SPEAKING


def test_where_the_server_plays_out_an_interruption_truncates_by_itself(talk, named):
    t = talk(plays_out=True)
    spoken(t, ("One. ", 1000), ("Two.", 1000))
    t.ends()
    t.wait(0.5)
    t.speak(0.1)
    assert t.all(effects.PlaybackStarted)
    assert t.all(effects.FlushPlayout)
    assert t.all(effects.PlaybackCleared)
    assert 500 <= t.all(effects.ItemTruncated)[0].audio_end_ms <= 700


def test_where_the_server_plays_out_the_end_of_playback_is_told(talk):
    t = talk(plays_out=True)
    spoken(t, ("One.", 1000))
    t.ends()
    assert t.all(effects.PlaybackStopped) == []
    t.wait(1.1)
    assert t.all(effects.PlaybackStopped)


def test_the_client_may_clear_playout_only_where_the_server_plays_it(talk):
    over_websocket, over_webrtc = talk(), talk(plays_out=True)
    for t in (over_websocket, over_webrtc):
        spoken(t, ("One.", 1000))
        t.ends()
        t.receive(events.ClearOutput("e"))
    assert over_websocket.errors == ["invalid_event_for_transport"]
    assert over_webrtc.all(effects.PlaybackCleared)


# -- pacing ---------------------------------------------------------------------------------


def test_audio_leads_the_listener_by_a_bound(talk):
    t = talk(SessionLimits(audio_lead=2.0))
    spoken(t, ("Long.", 10_000))
    t.ends()
    sent = sum(len(d.pcm) for d in t.all(effects.AudioDelta)) / 48
    assert 2000 <= sent <= 2200
    assert t.all(effects.ResponseDone) == []
    t.wait(1.0)
    assert 3000 <= sum(len(d.pcm) for d in t.all(effects.AudioDelta)) / 48 <= 3200
    t.wait(9.0)
    assert sum(len(d.pcm) for d in t.all(effects.AudioDelta)) / 48 == 10_000
    assert t.all(effects.ResponseDone)


def test_the_engine_learns_how_much_has_been_sent(talk):
    t = talk(SessionLimits(audio_lead=2.0))
    spoken(t, ("Long.", 10_000))
    t.wait(3.0)
    sent = [c.sent_ms for c in t.commands(engine.Acknowledge)]
    assert sent == sorted(sent) and sent[-1] >= 4000


def test_a_long_answer_is_played_to_its_last_sample(talk):
    t = talk()
    spoken(t, *((f"Sentence {n}. ", 1500) for n in range(12)))
    t.ends()
    t.wait(20.0)
    assert sum(len(d.pcm) for d in t.all(effects.AudioDelta)) == 12 * 1500 * 48
    assert t.all(effects.ResponseDone)[0].response.status == "completed"


# -- responses ------------------------------------------------------------------------------


def test_text_comes_as_text(talk, named):
    t = talk(modality="text")
    typed(t, "Hi")
    ask(t)
    t.writes("Hel")
    t.writes("lo")
    t.ends()
    assert [d.delta for d in t.all(effects.TextDelta)] == ["Hel", "lo"]
    assert t.all(effects.TextDone)[0].text == "Hello"
    done = t.all(effects.ResponseDone)[0].response
    assert done.usage.text.output_tokens == 4
    assert named(t.done)[-1] == "ResponseDone"


def test_a_second_response_is_refused_while_one_is_active(talk):
    t = talk()
    typed(t, "Hi")
    ask(t)
    t.receive(events.CreateResponse("e", events.ResponseParams()))
    assert t.errors == ["conversation_already_has_active_response"]
    assert len(t.all(effects.ResponseCreated)) == 1


def test_out_of_band_responses_run_beside_and_leave_no_item(talk):
    t = talk()
    typed(t, "Hi")
    ask(t)
    ask(
        t,
        conversation=False,
        modality="text",
        metadata={"topic": "x"},
        input=(MessageItem("", "user", (InputText("Classify."),)),),
    )
    aside = t.generation
    assert texts(t.prompt[0]) == "Classify."
    t.writes("spam", generation=aside)
    t.ends(generation=aside)
    done = t.all(effects.ResponseDone)[0].response
    assert done.conversation_id is None and done.metadata == {"topic": "x"}
    assert len(t.session.history) == 1
    assert len(t.all(effects.ItemAdded)) == 1


def test_out_of_band_responses_are_bounded(talk):
    t = talk(SessionLimits(max_out_of_band=2))
    for _ in range(3):
        ask(t, conversation=False)
    assert t.errors == ["bad_response_create"]


def test_input_may_name_items_of_the_conversation(talk):
    t = talk()
    typed(t, "First", "one")
    typed(t, "Second", "two")
    ask(t, conversation=False, input=(events.ItemReference("two"),))
    assert [texts(m) for m in t.prompt] == ["Second"]
    t.receive(
        events.CreateResponse("e", events.ResponseParams(input=(events.ItemReference("no"),)))
    )
    assert t.errors == ["bad_response_create"]


def test_cancelling_tells_the_engine_and_is_told_once(talk):
    t = talk()
    spoken(t, ("One.", 400))
    response = t.all(effects.ResponseCreated)[0].response.id
    t.receive(events.CancelResponse("a", response))
    t.receive(events.CancelResponse("b", response))
    assert t.all(effects.ResponseDone)[0].response.reason == "client_cancelled"
    assert t.errors == ["response_cancel_not_active"]
    assert len(t.commands(engine.CancelResponse)) == 1


def test_yielding_never_delays_the_next_response(talk):
    t = talk()
    spoken(t, ("One.", 400))
    t.receive(events.CancelResponse(None))
    ask(t)
    assert len(t.all(effects.ResponseCreated)) == 2
    t.says("Two.", 100)
    assert t.all(effects.TranscriptDeltaSaid)[-1].delta == "Two."


def test_a_limit_on_tokens_makes_the_response_incomplete(talk):
    t = talk(modality="text", max_output_tokens=5)
    typed(t, "Hi")
    ask(t)
    assert t.commands(engine.Respond)[0].request.max_output_tokens == 5
    t.writes("cut")
    t.ends("max_output_tokens")
    done = t.all(effects.ResponseDone)[0].response
    assert (done.status, done.reason) == ("incomplete", "max_output_tokens")


def test_a_failure_of_the_engine_is_one_error_and_a_failed_response(talk):
    t = talk()
    typed(t, "Hi")
    ask(t)
    t.receive(
        engine.ResponseEnded(
            session="s",
            generation=t.generation,
            reason="failed",
            failure=engine.EngineFailure("upstream_error", "It said no."),
        )
    )
    assert t.errors == ["upstream_error"]
    done = t.all(effects.ResponseDone)[0].response
    assert done.status == "failed" and done.error.message == "It said no."


def test_response_settings_win_over_the_sessions(talk):
    t = talk(instructions="Be brief.", voice="one")
    typed(t, "Hi")
    ask(t, instructions="Be long.", voice="two", modality="text", max_output_tokens=7)
    request = t.commands(engine.Respond)[0].request
    assert (request.instructions, request.voice, request.modality, request.max_output_tokens) == (
        "Be long.",
        "two",
        "text",
        7,
    )


# -- tools ----------------------------------------------------------------------------------


def test_a_tool_call_streams_and_its_output_comes_back(talk, named):
    t = talk(modality="text")
    typed(t, "Weather?")
    ask(t)
    number = t.generation
    t.receive(engine.ToolCallStarted(session="s", generation=number, call_id="c", name="get"))
    t.receive(engine.ToolCallDelta(session="s", generation=number, call_id="c", delta='{"a"'))
    t.receive(engine.ToolCallDelta(session="s", generation=number, call_id="c", delta=":1}"))
    t.receive(
        engine.ToolCallEnded(session="s", generation=number, call_id="c", arguments='{"a":1}')
    )
    t.ends()
    call = t.all(effects.OutputItemDone)[0].item
    assert call.status == "completed" and call.arguments == '{"a":1}'
    assert t.all(effects.ArgumentsDone)[0].name == "get"
    order = named(t.done)
    assert order.index("ItemAdded", 3) < order.index("ArgumentsDone") < order.index("ResponseDone")
    t.receive(events.CreateItem(None, FunctionOutputItem("", "c", "sunny")))
    ask(t)
    assert [m.role for m in t.prompt] == ["user", "assistant", "tool"]
    assert t.prompt[1].tool_calls[0].name == "get"
    assert texts(t.prompt[2]) == "sunny"


def test_a_call_that_was_interrupted_is_never_run(talk):
    t = talk()
    typed(t, "Weather?")
    ask(t)
    number = t.generation
    t.receive(engine.ToolCallStarted(session="s", generation=number, call_id="c", name="get"))
    t.receive(engine.ToolCallDelta(session="s", generation=number, call_id="c", delta='{"a"'))
    t.speak(0.1)
    assert t.all(effects.ArgumentsDone) == []
    assert t.all(effects.OutputItemDone)[0].item.status == "incomplete"


def test_speech_before_a_call_ends_when_its_audio_has_left(talk, named):
    t = talk(SessionLimits(audio_lead=1.0))
    spoken(t, ("Let me look.", 3000))
    number = t.generation
    t.receive(engine.ToolCallStarted(session="s", generation=number, call_id="c", name="get"))
    t.receive(engine.ToolCallEnded(session="s", generation=number, call_id="c", arguments="{}"))
    t.ends()
    assert t.all(effects.ArgumentsDone) and not t.all(effects.AudioDone)
    t.wait(4.0)
    assert [d.output_index for d in t.all(effects.OutputItemDone)] == [1, 0]
    assert [type(i).__name__ for i in t.all(effects.ResponseDone)[0].response.output] == [
        "MessageItem",
        "FunctionCallItem",
    ]


# -- items ----------------------------------------------------------------------------------


def test_items_go_where_the_client_puts_them(talk):
    t = talk()
    typed(t, "b", "b")
    t.receive(events.CreateItem(None, MessageItem("a", "user", (InputText("a"),)), "root"))
    t.receive(events.CreateItem(None, MessageItem("c", "user", (InputText("c"),)), "a"))
    assert [item.id for item in t.session.history] == ["a", "c", "b"]
    assert [a.previous_item_id for a in t.all(effects.ItemAdded)] == [None, None, "a"]


def test_bad_items_are_answered_with_the_clients_event_id(talk):
    t = talk()
    typed(t, "a", "a")
    t.receive(events.CreateItem("1", MessageItem("a", "user", (InputText("again"),))))
    t.receive(events.CreateItem("2", MessageItem("b", "user", (InputText("b"),)), "nowhere"))
    t.receive(events.DeleteItem("3", "nowhere"))
    t.receive(events.RetrieveItem("rci_x", "x"))
    t.receive(events.CreateItem("5", MessageItem("d", "user", (InputAudio(None),))))
    assert t.errors == [
        "item_create_duplicate_item_id",
        "item_create_invalid_previous_item_id",
        "item_delete_invalid_item_id",
        "item_retrieve_invalid_item_id",
        "missing_required_parameter",
    ]
    assert [e.error.event_id for e in t.all(effects.ErrorReported)] == ["1", "2", "3", "rci_x", "5"]


def test_an_item_can_be_retrieved_and_deleted(talk):
    t = talk()
    typed(t, "a", "a")
    t.receive(events.RetrieveItem(None, "a"))
    t.receive(events.DeleteItem(None, "a"))
    assert t.all(effects.ItemRetrieved)[0].item.id == "a"
    assert t.all(effects.ItemDeleted)[0].item_id == "a"
    assert len(t.session.history) == 0


def test_the_id_of_what_is_being_said_is_taken(talk):
    t = talk()
    t.speak(0.5)
    typed(t, "x", t.all(effects.SpeechStarted)[0].item_id)
    assert t.errors == ["item_create_duplicate_item_id"]


def test_a_users_audio_item_is_transcribed(talk):
    t = talk()
    item = MessageItem("a", "user", (InputAudio(None),))
    t.receive(events.CreateItem(None, item, audio=bytes(100)))
    assert t.all(effects.SupplyUtterance)[0].utterance == "a"
    t.transcribes("words", "a")
    ask(t)
    assert texts(t.prompt[0]) == "words"


def test_seeded_history_is_what_the_model_sees(talk):
    t = talk()
    typed(t, "Who are you?")
    t.receive(events.CreateItem(None, MessageItem("x", "assistant", (OutputAudio("A model."),))))
    t.receive(events.CreateItem(None, MessageItem("y", "system", (InputText("Be kind."),))))
    ask(t)
    assert [(m.role, texts(m)) for m in t.prompt] == [
        ("user", "Who are you?"),
        ("assistant", "A model."),
        ("system", "Be kind."),
    ]


def test_images_reach_a_model_that_sees(talk):
    t = talk()
    image = MessageItem("i", "user", (InputText("What?"), InputImage("data:x")))
    t.receive(events.CreateItem(None, image))
    ask(t)
    assert t.prompt[0].parts[1] == engine.ImagePart("data:x", "auto")


def test_the_newest_picture_of_a_camera_goes_to_the_engine(talk):
    t = talk()
    t.receive(events.PictureSeen(b"one"))
    t.receive(events.PictureSeen(None))
    assert t.commands(engine.See) == [
        engine.See(session=t.session.id, jpeg=b"one"),
        engine.See(session=t.session.id, jpeg=b""),
    ]


def test_pictures_for_an_engine_that_is_away_are_dropped(talk):
    t = talk()
    t.receive(events.EngineLost())
    t.receive(events.PictureSeen(b"one"))
    assert t.commands(engine.See) == []


def test_a_full_conversation_refuses_items(talk):
    t = talk(SessionLimits(max_items=2))
    for n in range(3):
        typed(t, str(n))
    assert t.errors == ["item_create_limit_reached"]


# -- the input buffer -----------------------------------------------------------------------


def test_push_to_talk_commits_what_was_said_and_answers_when_asked(talk, named):
    t = talk(turn_detection=None)
    t.speak(1.0)
    assert named(t.done)[-1] == "OpenUtterance"
    t.receive(events.CommitAudio(None))
    assert named(t.done)[-4:] == ["InputCommitted", "ItemAdded", "ItemDone", "CloseUtterance"]
    assert t.commands(engine.Respond) == []
    ask(t)
    committed = t.all(effects.InputCommitted)[0].item_id
    assert t.prompt[0].parts == (engine.UtterancePart(committed),)


def test_too_little_audio_can_not_be_committed(talk):
    t = talk(turn_detection=None)
    t.receive(events.CommitAudio("a"))
    t.hear(0.064, 0.0)
    t.receive(events.CommitAudio("b"))
    assert t.errors == ["input_audio_buffer_commit_empty"] * 2


def test_clearing_forgets_what_was_said(talk):
    t = talk()
    t.speak(0.5)
    t.receive(events.ClearAudio(None))
    t.pause(0.7)
    assert t.all(effects.InputCleared) and t.all(effects.DropUtterance)
    assert t.all(effects.InputCommitted) == []


def test_a_commit_in_the_middle_of_speech_ends_the_utterance(talk):
    t = talk()
    t.speak(0.8)
    t.receive(events.CommitAudio(None))
    started = t.all(effects.SpeechStarted)[0].item_id
    assert t.all(effects.InputCommitted)[0].item_id == started
    t.speak(0.3)
    assert t.all(effects.SpeechStarted)[1].item_id != started


def test_an_endless_utterance_is_ended(talk):
    t = talk(SessionLimits(max_buffer_seconds=3.0))
    t.speak(4.0)
    assert t.all(effects.InputCommitted)


def test_a_full_buffer_has_no_room(talk):
    t = talk(SessionLimits(max_buffer_seconds=1.0), turn_detection=None)
    t.speak(1.024)
    assert t.session.room() <= 0
    t.receive(events.ClearAudio(None))
    assert t.session.room() == 16_000


def test_a_silent_user_is_prompted_after_the_answer_was_heard(talk):
    t = talk(turn_detection=ServerVad(idle_timeout_ms=2000))
    spoken(t, ("One.", 1000))
    t.ends()
    t.pause(2.5)
    assert t.all(effects.InputTimedOut) == []
    t.pause(1.0)
    timed_out = t.all(effects.InputTimedOut)
    assert len(timed_out) == 1
    assert t.all(effects.InputCommitted)[0].item_id == timed_out[0].item_id
    assert len(t.all(effects.ResponseCreated)) == 2
    assert t.prompt[-1].role == "system"


# -- settings -------------------------------------------------------------------------------


def update(t, event_id=None, detection=None, **changes):
    patch = SessionPatch(changes) if detection is None else SessionPatch(changes, detection)
    t.receive(events.UpdateSession(event_id, patch))


def test_an_update_changes_what_it_names_and_is_answered_with_everything(talk):
    t = talk(instructions="a", voice="one")
    update(t, instructions="b")
    config = t.all(effects.SessionUpdated)[0].config
    assert (config.instructions, config.voice) == ("b", "one")
    assert t.commands(engine.Prepare)


def test_the_voice_is_fixed_once_it_was_heard(talk):
    t = talk(voice="one")
    update(t, voice="two")
    spoken(t, ("One.", 100))
    t.ends()
    update(t, "e", voice="one", instructions="x")
    assert t.errors == ["cannot_update_voice"]
    assert t.session.config.instructions == ""
    update(t, voice="two", instructions="y")
    assert t.session.config.instructions == "y"


def test_turn_detection_merges_within_a_kind_and_starts_anew_across(talk):
    t = talk(turn_detection=ServerVad(threshold=0.7))
    update(t, detection=TurnDetectionPatch(ServerVad, {"silence_duration_ms": 300}))
    assert t.session.config.turn_detection == ServerVad(threshold=0.7, silence_duration_ms=300)
    update(t, detection=TurnDetectionPatch(SemanticVad, {"eagerness": "low"}))
    assert t.session.config.turn_detection == SemanticVad("low")
    t.receive(events.UpdateSession(None, SessionPatch(turn_detection=None)))
    assert t.session.config.turn_detection is None


def test_transcription_settings_reach_the_recogniser(talk):
    t = talk()
    update(t, transcription=Transcription("any", "de", "Namen"))
    asked = t.commands(engine.ConfigureListening)[-1]
    assert (asked.language, asked.hint, asked.partials) == ("de", "Namen", True)


# -- the engine and the connection ----------------------------------------------------------


def test_a_lost_engine_fails_what_was_under_way_and_the_next_turn_works(talk):
    t = talk(transcription=Transcription("any"))
    t.speak(1.0)
    t.pause(0.6)
    t.says("One.", 100)
    t.receive(events.EngineLost())
    assert t.errors == ["engine_unavailable"]
    assert [d.response.status for d in t.all(effects.ResponseDone)] == ["failed"]
    assert t.all(effects.TranscriptionFailed)
    t.receive(events.EngineReady())
    t.speak(1.0)
    t.pause(0.6)
    t.says("Two.", 100)
    t.ends()
    assert t.all(effects.ResponseDone)[-1].response.status == "completed"


def test_a_response_without_an_engine_fails_at_once(talk):
    t = talk()
    t.receive(events.EngineLost())
    ask(t)
    assert t.errors == ["engine_unavailable"]
    assert t.all(effects.ResponseDone)[0].response.status == "failed"


def test_an_engine_that_returns_hears_the_utterance_from_its_beginning(talk):
    t = talk()
    t.speak(0.5)
    t.receive(events.EngineLost())
    t.receive(events.EngineReady())
    opened = t.all(effects.OpenUtterance)
    assert opened[0] == opened[1]


def test_a_client_that_goes_ends_its_session(talk):
    t = talk()
    spoken(t, ("One.", 100))
    t.receive(events.Detached())
    assert t.session.connection is Connection.CLOSING
    assert t.all(effects.ResponseDone)[0].response.status == "cancelled"
    assert t.commands(engine.CancelResponse)
    assert len(t.all(effects.CleanUp)) == 1
    t.receive(events.Detached())
    t.receive(events.CloseRequested(1000, "again"))
    assert len(t.all(effects.CleanUp)) == 1
    t.receive(events.CleanedUp(False))
    assert t.session.connection is Connection.CLEANUP_FAILED
    t.receive(events.CleanedUp(True))
    assert t.session.connection is Connection.CLOSED


def test_a_resumable_session_waits_for_its_client(talk):
    t = talk(SessionLimits(grace=30))
    t.receive(events.Detached(resumable=True))
    t.wait(20)
    t.receive(events.Attached())
    t.wait(20)
    assert t.session.connection is Connection.ATTACHED
    t.receive(events.Detached(resumable=True))
    t.wait(31)
    assert t.session.connection is Connection.CLOSING


def test_idle_sessions_expire_and_say_so(talk):
    t = talk(SessionLimits(idle_timeout=300))
    t.wait(299)
    assert t.session.connection is Connection.ATTACHED
    t.wait(2)
    assert t.errors == ["session_idle"]
    assert t.all(effects.CloseTransport)[0].code == 1000


def test_sessions_have_a_longest_duration(talk):
    t = talk(SessionLimits(max_duration=10, idle_timeout=300))
    t.wait(11)
    assert t.errors == ["session_expired"]


def test_a_session_whose_surroundings_broke_has_failed(talk):
    t = talk()
    t.session.abandon()
    assert t.session.connection is Connection.FAILED
    t.receive(events.CleanedUp(True))
    t.session.abandon()
    assert t.session.connection is Connection.CLOSED


def test_a_rejected_message_gets_its_error_in_turn(talk):
    t = talk()
    error = effects.ProtocolError("invalid_json", "no", event_id="x")
    t.receive(events.Rejected(error))
    assert t.errors == ["invalid_json"]


def test_the_configuration_is_shown_when_the_session_begins(talk):
    t = talk(instructions="a")
    assert t.all(effects.SessionCreated)[0].config == SessionConfig(instructions="a")


def test_incomplete_calls_never_reach_the_prompt(talk):
    t = talk()
    t.receive(events.CreateItem(None, FunctionCallItem("f", "c", "get", "{", "incomplete")))
    typed(t, "Hi")
    ask(t)
    assert [m.role for m in t.prompt] == ["user"]


def test_an_id_that_a_client_has_taken_is_not_made_again(talk):
    t = talk(turn_detection=None)
    numbers = iter(["x", "x", "y"])
    t.session._make_id = lambda prefix: f"{prefix}_{next(numbers)}"
    typed(t, "Hi", "item_x")
    typed(t, "there")
    assert [item.id for item in t.session.history] == ["item_x", "item_y"]


def test_images_are_refused_for_a_model_that_can_not_see(talk):
    t = talk()
    t.session._spec = engine.EngineSpec(
        model="blind", voices=("one",), default_voice="one", context_tokens=4096
    )
    image = MessageItem("i", "user", (InputImage("data:x"),))
    t.receive(events.CreateItem("e", image))
    assert t.errors == ["unsupported"]
    assert len(t.session.history) == 0


def test_a_transcription_session_warms_no_prompt(talk):
    t = talk(kind="transcription", transcription=Transcription("any"))
    t.receive(events.EngineLost())
    t.receive(events.EngineReady())
    assert t.commands(engine.ConfigureListening) and not t.commands(engine.Prepare)


def test_a_truncate_without_an_engine_counts_by_the_letters(talk):
    t = talk()
    item = spoken(t, ("One two three four.", 1000))
    t.ends()
    t.receive(events.EngineLost())
    t.receive(events.TruncateItem(None, item, 0, 550))
    assert t.commands(engine.AlignSpeech) == []
    assert t.session.history.get(item).content == (OutputAudio("One two three"),)


def test_after_its_end_a_session_needs_no_timer(talk):
    t = talk()
    t.receive(events.CloseRequested(1000, "done"))
    t.session.handle_timer(1e9)
    assert t.session.take_effects() == []
