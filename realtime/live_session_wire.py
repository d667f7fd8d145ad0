"""The session object of Live both ways.

Source: ``openai.types.live`` of the ``openai`` package, version 3.57. Unknown fields are refused by
their name; unknown models and voices are taken, shown back and mapped to what there is.
"""

from dataclasses import replace
from typing import Final, Literal

from duologue.realtime.delegation_wire import (
    LONGEST_IDENTIFIER,
    LONGEST_INSTRUCTIONS,
    decode_delegation,
    decode_delegation_change,
    encode_delegation,
)
from duologue.realtime.json_fields import Fields, missing, shown, wrong_value
from duologue.realtime.live_questions import decode_questions
from duologue.sessions.history import text_size
from duologue.sessions.items import InputText, MessageItem, OutputText
from duologue.sessions.live_config import (
    MOST_INPUT,
    DataChannelRules,
    LiveChange,
    LiveConfig,
    LiveFormat,
    ResponsesDelegation,
    TranscriptEvent,
    Trigger,
)
from duologue.sessions.session_config import AudioFormat

LONGEST_HISTORY: Final = 262_144
MOST_IDLE_S: Final = 86_400
Medium = Literal["socket", "media"]
"""Whether sound goes over the WebSocket, or over media of its own (WebRTC)."""

_TRANSCRIPTS: Final[tuple[TranscriptEvent, ...]] = (
    "session.input_transcript.delta",
    "session.output_transcript.delta",
)
# -- from the client ------------------------------------------------------------------------


def decode_live_config(session: Fields, medium: Medium) -> LiveConfig:
    """What a session is started with. Raises ProtocolError."""
    names = ["model", "audio", "client", "delegation", "input", "instructions"]
    names += ["safety_identifier", "store", "triggers", "duologue"]
    if medium == "media":
        names += ["idle_timeout_s", "wake_policy", "type"]
    session.only(*names)
    voice, voice_shown, audio_format = _decode_audio(session, medium)
    history, history_shown = _decode_history(session)
    config = LiveConfig(
        model=session.required_string("model", LONGEST_IDENTIFIER),
        instructions=session.string("instructions", LONGEST_INSTRUCTIONS) or "",
        voice=voice,
        shown_voice=voice_shown,
        format=audio_format,
        history=history,
        shown_history=history_shown,
        delegation=decode_delegation(session),
        triggers=_decode_triggers(session) or (),
        store=session.boolean("store") or False,
        channel=_decode_client(session),
        safety_identifier=session.string("safety_identifier", LONGEST_IDENTIFIER),
        turn_marks=_decode_extension(session),
    )
    return _decode_rest(session, config) if medium == "media" else config


def decode_live_change(session: Fields, config: LiveConfig) -> LiveChange:
    """What an update changes of a session that is configured like this. Raises ProtocolError."""
    session.only("delegation", "triggers")
    return LiveChange(
        decode_delegation_change(session, config.delegation), _decode_triggers(session)
    )


def decode_fork(session: Fields | None, config: LiveConfig, medium: Medium) -> LiveConfig:
    """The settings of a fork of a session with these. Raises ProtocolError."""
    config = replace(config, format=LiveFormat(), idle_timeout=None, history=(), shown_history=())
    if session is None:
        return config
    if medium == "socket":
        session.only("audio", "delegation", "store")
        _, _, audio_format = _decode_audio(session, medium, format_only=True)
        config = replace(config, format=audio_format)
    else:
        session.only("client", "delegation", "store")
        if session.has("client"):
            config = replace(config, channel=_decode_client(session))
    if session.has("delegation") and not isinstance(config.delegation, ResponsesDelegation):
        path = session.at("delegation")
        raise wrong_value(path, "can only be changed where it is of the type 'responses'.")
    delegation = decode_delegation_change(session, config.delegation)
    store = session.boolean("store")
    return replace(
        config.changed(LiveChange(delegation)), store=config.store if store is None else store
    )


def _decode_audio(
    session: Fields, medium: Medium, *, format_only: bool = False
) -> tuple[str, object, LiveFormat]:
    audio = session.object("audio")
    if audio is None:
        return "", None, LiveFormat()
    audio.only(*(["format"] if medium == "socket" else []), *([] if format_only else ["output"]))
    output = audio.object("output")
    voice = ""
    if output is not None:
        output.only("voice")
        if isinstance(output.value("voice"), dict):
            named = output.required_object("voice")
            named.only("id")
            voice = named.required_id("id")
        else:
            voice = output.string("voice", 128) or ""
    return voice, None if output is None else output.value("voice"), decode_live_format(audio)


def decode_live_format(audio: Fields) -> LiveFormat:
    """``format`` of ``audio``."""
    given = audio.object("format")
    if given is None:
        return LiveFormat()
    given.only("type", "rate")
    kind = given.choice("type", ("audio/pcm", "audio/pcmu", "audio/pcma"))
    if kind is None:
        raise missing(given.at("type"))
    rate = given.integer("rate", 1)
    chosen = AudioFormat(kind)
    rates = (24_000, 16_000) if chosen is AudioFormat.PCM else (8_000,)
    if rate is not None and rate not in rates:
        raise wrong_value(given.at("rate"), f"must be {' or '.join(map(str, rates))}.")
    return LiveFormat(chosen, rate or rates[0])


def _decode_history(session: Fields) -> tuple[tuple[MessageItem, ...], tuple[object, ...]]:
    given = session.objects("input") or []
    if len(given) > MOST_INPUT:
        raise wrong_value(session.at("input"), f"must not have more than {MOST_INPUT} messages.")
    items = tuple(_decode_message(message, index) for index, message in enumerate(given))
    written = sum(map(text_size, items))
    if written > LONGEST_HISTORY:
        raise wrong_value(session.at("input"), f"must not exceed {LONGEST_HISTORY} characters.")
    kept = session.kept("input")
    return items, tuple(kept) if isinstance(kept, list) else ()


def _decode_message(message: Fields, index: int) -> MessageItem:
    message.only("role", "content", "id", "status", "type")
    message.choice("type", ("message",))
    message.choice("status", ("incomplete", "completed"))
    message.string("id", 256)
    role = message.choice("role", ("developer", "user", "assistant"))
    if role is None:
        raise missing(message.at("role"))
    parts = message.objects("content")
    if parts is None:
        raise missing(message.at("content"))
    if len(parts) != 1:
        raise wrong_value(message.at("content"), "must have exactly one text part.")
    part = parts[0]
    part.only("type", "text", *(("annotations", "logprobs") if role == "assistant" else ()))
    part.choice("type", ("text", "output_text") if role == "assistant" else ("input_text",))
    text = part.required_string("text")
    item_id = f"item_input{index}"
    if role == "assistant":
        return MessageItem(item_id, "assistant", (OutputText(text),))
    return MessageItem(item_id, "user" if role == "user" else "system", (InputText(text),))


def _decode_triggers(session: Fields) -> tuple[Trigger, ...] | None:
    given = session.objects("triggers")
    if given is None:
        return None
    triggers: list[Trigger] = []
    kept = session.kept("triggers")
    assert isinstance(kept, list)
    for trigger, as_sent in zip(given, kept, strict=True):
        trigger.only("type", "event_type", "decisions")
        if trigger.choice("type", ("decisions",)) is None:
            raise missing(trigger.at("type"))
        event_type = trigger.choice("event_type", _TRANSCRIPTS)
        if event_type is None:
            raise missing(trigger.at("event_type"))
        if any(made.event_type == event_type for made in triggers):
            raise wrong_value(trigger.at("event_type"), "has a trigger already.")
        decisions = trigger.required_object("decisions")
        decisions.only("questions")
        assert isinstance(as_sent, dict)
        triggers.append(Trigger(event_type, decode_questions(decisions), as_sent))
    return tuple(triggers)


def _decode_client(session: Fields) -> DataChannelRules | None:
    given = session.object("client")
    if given is None:
        return None
    given.only("data_channel")
    rules = given.required_object("data_channel")
    rules.only("allowed_client_events", "allowed_server_events")
    client = server = None
    if not _all(rules, "allowed_client_events"):
        names = rules.strings("allowed_client_events")
        client = None if names is None else frozenset(names)
    if not _all(rules, "allowed_server_events"):
        selectors = rules.objects("allowed_server_events")
        if selectors is not None:
            server = frozenset(map(_decode_selector, selectors))
    return DataChannelRules(client, server, {"data_channel": given.kept("data_channel")})


def _all(rules: Fields, name: str) -> bool:
    value = rules.value(name)
    if not isinstance(value, str):
        return False
    if value != "all":
        raise wrong_value(rules.at(name), f"must be 'all' or a list, not {shown(value)}.")
    return True


def _decode_selector(selector: Fields) -> tuple[str, str]:
    selector.only("type", "response_event")
    kind = selector.required_string("type", LONGEST_IDENTIFIER)
    inner = selector.string("response_event", LONGEST_IDENTIFIER) or ""
    if (kind == "response.event") is not bool(inner):
        message = "is needed for 'response.event', and for no other type."
        raise wrong_value(selector.at("response_event"), message)
    return kind, inner


def _decode_rest(session: Fields, config: LiveConfig) -> LiveConfig:
    """``idle_timeout_s`` and ``wake_policy`` of a session with media of its own."""
    session.choice("type", ("live",))
    seconds = session.integer("idle_timeout_s", 1, MOST_IDLE_S)
    policy = session.object("wake_policy")
    threshold = None
    if policy is not None:
        policy.only("type", "vad_threshold")
        if policy.choice("type", ("speech",)) is None:
            raise missing(policy.at("type"))
        threshold = policy.number("vad_threshold", 0.0, 1.0)
    elif seconds is not None:
        raise missing(session.at("wake_policy"))
    if threshold is not None:
        config = replace(config, wake_threshold=threshold)
    return replace(config, idle_timeout=None if seconds is None else float(seconds))


def _decode_extension(session: Fields) -> bool:
    extension = session.object("duologue")
    if extension is None:
        return False
    extension.only("turn_marks")
    return extension.boolean("turn_marks") or False


# -- to the client --------------------------------------------------------------------------


def encode_live_session(
    config: LiveConfig, session_id: str, expires_at: int, medium: Medium
) -> dict[str, object]:
    """``expires_at`` in seconds since the Unix epoch."""
    audio: dict[str, object] = {"output": {"voice": config.shown_voice or config.voice}}
    if medium == "socket":
        audio["format"] = {"type": config.format.kind.value, "rate": config.format.rate}
    encoded: dict[str, object] = {
        "id": session_id,
        "expires_at": expires_at,
        "status": "active",
        "model": config.model,
        "instructions": config.instructions,
        "audio": audio,
        "delegation": encode_delegation(config.delegation),
        "store": config.store,
    }
    if config.shown_history:
        encoded["input"] = list(config.shown_history)
    if config.triggers:
        encoded["triggers"] = [trigger.shown for trigger in config.triggers]
    if config.channel is not None:
        encoded["client"] = config.channel.shown
    if config.safety_identifier is not None:
        encoded["safety_identifier"] = config.safety_identifier
    if config.idle_timeout is not None:
        encoded["idle_timeout_s"] = int(config.idle_timeout)
        encoded["wake_policy"] = {"type": "speech", "vad_threshold": config.wake_threshold}
    if config.turn_marks:
        encoded["duologue"] = {"turn_marks": True}
    return encoded
