"""Server events: each is as the ``openai`` package's types want it."""

import base64
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from duologue.codecs.g711 import decode_alaw, decode_mulaw
from duologue.engines.engine import TokenLogprob, Usage
from duologue.realtime.server_wire import EVENT_TYPES, LONGEST_RECORDING, Encoder
from duologue.sessions import effects
from duologue.sessions.effects import ServerEvent
from duologue.sessions.errors import ProtocolError
from duologue.sessions.items import InputAudio, MessageItem
from duologue.sessions.session_config import AudioFormat, SessionConfig

Event = dict[str, Any]
Validated = Callable[[str], Event]


def test_every_server_event_has_a_type_of_its_own() -> None:
    assert set(EVENT_TYPES) == set(get_args(ServerEvent))
    assert len(set(EVENT_TYPES.values())) == len(EVENT_TYPES)


@pytest.mark.parametrize("kind", EVENT_TYPES, ids=lambda kind: kind.__name__)
@settings(max_examples=25)
@given(data=st.data())
def test_any_event_is_one_that_openai_knows(
    kind: type[ServerEvent],
    server_events: Callable[[type[ServerEvent]], st.SearchStrategy[ServerEvent]],
    validated: Validated,
    data: st.DataObject,
) -> None:
    for text in Encoder("sess_1", 1_800_000_000).encode(data.draw(server_events(kind))):
        validated(text)


def encoded(event: ServerEvent, validated: Validated, encoder: Encoder | None = None) -> Event:
    (text,) = (encoder or Encoder("sess_1", 1)).encode(event)
    return validated(text)


def test_no_two_events_have_one_id(validated: Validated) -> None:
    encoders = [Encoder("s", 1), Encoder("s", 1)]
    ids = {
        encoded(effects.InputCleared(), validated, encoder)["event_id"]
        for encoder in encoders
        for _ in range(20)
    }
    assert len(ids) == 40


def test_an_error_carries_the_id_of_the_clients_event(validated: Validated) -> None:
    error = ProtocolError("rate_limit_exceeded", "Slow down.", "p", "mine", 250)
    assert encoded(effects.ErrorReported(error), validated)["error"] == {
        "type": "rate_limit_error",
        "code": "rate_limit_exceeded",
        "message": "Slow down.",
        "param": "p",
        "event_id": "mine",
        "retry_after_ms": 250,
    }


def test_a_content_part_is_called_otherwise_than_in_an_item(validated: Validated) -> None:
    added = effects.ContentPartAdded("r", "i", 0, 0, "audio")
    assert encoded(added, validated)["part"] == {"type": "audio", "transcript": ""}
    done = effects.ContentPartDone("r", "i", 0, 0, "text", "words")
    assert encoded(done, validated)["part"] == {"type": "text", "text": "words"}


def test_a_transcription_tells_its_duration_and_its_tokens(validated: Validated) -> None:
    event = effects.TranscriptionCompleted("i", 0, "é", 1.5, (TokenLogprob("é", -0.5),))
    shown = encoded(event, validated)
    assert shown["usage"] == {"type": "duration", "seconds": 1.5}
    assert shown["logprobs"] == [{"token": "é", "logprob": -0.5, "bytes": [195, 169]}]


def response(**fields: Any) -> effects.ResponseView:
    return effects.ResponseView(
        **{
            "id": "resp_1",
            "status": "completed",
            "conversation_id": "conv_1",
            "modality": "audio",
            "voice": "v",
            "output_format": AudioFormat.PCM,
            "max_output_tokens": None,
            "metadata": {"client_event_id": "x"},
            **fields,
        }
    )


def test_a_response_repeats_its_metadata_from_the_start(validated: Validated) -> None:
    shown = encoded(effects.ResponseCreated(response(status="in_progress")), validated)["response"]
    assert shown["metadata"] == {"client_event_id": "x"}
    assert (shown["status"], shown["status_details"], shown["usage"]) == ("in_progress", None, None)


def test_a_response_says_why_it_ended(validated: Validated) -> None:
    cut = response(status="cancelled", reason="turn_detected")
    shown = encoded(effects.ResponseDone(cut), validated)["response"]
    assert shown["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    failed = response(status="failed", error=ProtocolError("engine_error", "It broke."))
    shown = encoded(effects.ResponseDone(failed), validated)["response"]
    assert shown["status_details"]["error"]["message"] == "It broke."


def test_usage_adds_up(validated: Validated) -> None:
    usage = effects.AudioUsage(Usage(input_tokens=10, cached_tokens=4, output_tokens=20), 5, 7)
    shown = encoded(effects.ResponseDone(response(usage=usage)), validated)["response"]["usage"]
    assert (shown["input_tokens"], shown["output_tokens"], shown["total_tokens"]) == (15, 27, 42)
    assert shown["output_token_details"] == {"text_tokens": 20, "audio_tokens": 7}


# -- audio ----------------------------------------------------------------------------------


def delta(pcm: bytes, form: AudioFormat = AudioFormat.PCM, item: str = "i") -> effects.AudioDelta:
    return effects.AudioDelta("r", item, 0, 0, pcm, form)


def test_pcm_leaves_as_it_is(validated: Validated) -> None:
    shown = encoded(delta(b"\x01\x02\xff\xff"), validated)
    assert base64.b64decode(shown["delta"]) == b"\x01\x02\xff\xff"
    assert (shown["response_id"], shown["item_id"]) == ("r", "i")


def test_ids_that_need_escaping_are_escaped(validated: Validated) -> None:
    assert encoded(delta(b"ab", item='"\\\n'), validated)["item_id"] == '"\\\n'


def spoken(encoder: Encoder, pieces: list[bytes], form: AudioFormat, check: Validated) -> bytes:
    texts: list[str] = []
    for piece in pieces:
        texts += encoder.encode(delta(piece, form))
    *rest, done = encoder.encode(effects.AudioDone("r", "i", 0, 0))
    assert check(done)["type"] == "response.output_audio.done"
    return b"".join(base64.b64decode(check(text)["delta"]) for text in [*texts, *rest])


@pytest.mark.parametrize("form", [AudioFormat.PCMU, AudioFormat.PCMA])
def test_g711_has_a_third_of_the_samples_however_it_is_cut(
    form: AudioFormat, validated: Validated
) -> None:
    time = np.arange(24_000) / 24_000
    pcm = (8_000 * np.sin(2 * np.pi * 440 * time)).astype(np.int16).tobytes()
    whole = spoken(Encoder("s", 1), [pcm], form, validated)
    cut = spoken(
        Encoder("s", 1), [pcm[at : at + 962] for at in range(0, len(pcm), 962)], form, validated
    )
    assert whole == cut
    assert len(whole) == 8_000
    heard = (decode_mulaw if form is AudioFormat.PCMU else decode_alaw)(whole)
    expected = 8_000 * np.sin(2 * np.pi * 440 * np.arange(8_000) / 8_000)
    assert np.abs(heard[100:-100] - expected[100:-100]).max() < 400


def test_a_part_that_never_ended_is_forgotten_with_its_response(validated: Validated) -> None:
    encoder = Encoder("s", 1)
    encoder.encode(delta(bytes(960), AudioFormat.PCMU))
    encoder.encode(effects.ResponseDone(response(id="r")))
    assert len(encoder.encode(effects.AudioDone("r", "i", 0, 0))) == 1


# -- a retrieved item -----------------------------------------------------------------------


def retrieved(pcm: bytes | None, form: AudioFormat, validated: Validated) -> dict[str, Any]:
    encoder = Encoder("s", 1)
    encoder.encode(effects.SessionCreated(SessionConfig(input_format=form)))
    item = MessageItem("i", "user", (InputAudio("hm"),))
    shown = encoded(effects.ItemRetrieved(item, pcm), validated, encoder)
    part: dict[str, Any] = shown["item"]["content"][0]
    return part


def test_a_retrieved_item_has_its_transcript_and_its_audio(validated: Validated) -> None:
    part = retrieved(bytes(960), AudioFormat.PCM, validated)
    assert (part["transcript"], len(base64.b64decode(part["audio"]))) == ("hm", 960)
    assert "audio" not in retrieved(None, AudioFormat.PCM, validated)


def test_retrieved_audio_is_in_the_sessions_input_format(validated: Validated) -> None:
    part = retrieved(bytes(960), AudioFormat.PCMU, validated)
    assert len(base64.b64decode(part["audio"])) == 160


@pytest.mark.parametrize("form", [AudioFormat.PCM, AudioFormat.PCMA])
def test_a_retrieved_item_stays_below_a_mebibyte(form: AudioFormat, validated: Validated) -> None:
    assert "audio" not in retrieved(bytes(LONGEST_RECORDING * 6 + 2), form, validated)
    part = retrieved(bytes(LONGEST_RECORDING), form, validated)
    assert len(part["audio"]) < 1024 * 1024 - 10_000
