"""The session object both ways: a client's update to a patch, a configuration to JSON.

Only fields that are present change anything. A nested object is merged field by field; ``null``
clears what can be off. Fields without effect here are checked, kept and shown back; fields that
nobody knows are ignored. One wrong field refuses the whole update.
"""

from collections.abc import Callable, Mapping
from typing import Final

from duologue.realtime.json_fields import Fields, Json, wrong_type, wrong_value
from duologue.realtime.tool_wire import (
    decode_format,
    decode_max_output_tokens,
    decode_modality,
    decode_tool_choice,
    decode_tools,
    decode_voice,
    encode_format,
    encode_max_output_tokens,
    encode_modality,
    encode_tool,
    encode_tool_choice,
)
from duologue.sessions.session_config import (
    LOGPROBS,
    UNSET,
    SemanticVad,
    ServerVad,
    SessionConfig,
    SessionPatch,
    Transcription,
    Truncation,
    TurnDetection,
    TurnDetectionPatch,
    TurnPolicy,
    Unset,
)

NOISE_REDUCTION: Final = "audio.input.noise_reduction"
LONGEST_MS: Final = 3_600_000
LONGEST_SILENCE_MS: Final = 60_000
_DELAYS = ("minimal", "low", "medium", "high", "xhigh")
_EFFORTS = ("minimal", "low", "medium", "high", "xhigh")
_EAGERNESS = ("low", "medium", "high", "auto")
_KINDS: Mapping[str, type[ServerVad] | type[SemanticVad]] = {
    "server_vad": ServerVad,
    "semantic_vad": SemanticVad,
}
_KIND_NAMES = {ServerVad: "server_vad", SemanticVad: "semantic_vad"}


# -- from the client ------------------------------------------------------------------------


def decode_patch(session: Fields, config: SessionConfig) -> SessionPatch:
    """The patch that a ``session`` object means for a session configured as ``config``.

    Raises ProtocolError; then nothing of it may be applied.
    """
    kind = session.choice("type", ("realtime", "transcription"))
    if kind is not None and kind != config.kind:
        raise wrong_value(session.at("type"), f"must be '{config.kind}' in this session.")
    session.string("model")
    changes: dict[str, object] = {}
    echoed: dict[str, object] = {}
    turn_detection = _decode_audio_input(session, config, changes, echoed)
    if session.has("include"):
        changes["include"] = _decode_include(session)
    if config.kind == "realtime":
        _decode_realtime(session, changes)
        _decode_audio_output(session, changes)
        for name, decode in _ECHOED.items():
            if session.has(name):
                echoed[name] = decode(session, name)
    return SessionPatch(changes, turn_detection, echoed)


def _set(changes: dict[str, object], name: str, value: object) -> None:
    if value is not None:
        changes[name] = value


def _decode_realtime(session: Fields, changes: dict[str, object]) -> None:
    _set(changes, "instructions", session.string("instructions"))
    _set(changes, "modality", decode_modality(session))
    _set(changes, "tools", decode_tools(session))
    _set(changes, "tool_choice", decode_tool_choice(session))
    _set(changes, "parallel_tool_calls", session.boolean("parallel_tool_calls"))
    if session.has("max_output_tokens"):
        changes["max_output_tokens"] = decode_max_output_tokens(session)
    if session.has("truncation"):
        changes["truncation"] = _decode_truncation(session)
    extension = session.object("duologue")
    if extension is not None:
        policy = extension.choice("turn_policy", ("barge_in", "backchannel_aware"))
        if extension.has("turn_policy"):
            changes["turn_policy"] = None if policy is None else TurnPolicy(policy)


def _decode_audio_input(
    session: Fields,
    config: SessionConfig,
    changes: dict[str, object],
    echoed: dict[str, object],
) -> TurnDetectionPatch | None | Unset:
    audio = session.object("audio")
    given = audio.object("input") if audio is not None else None
    if given is None:
        return UNSET
    _set(changes, "input_format", decode_format(given))
    if given.has("transcription"):
        changes["transcription"] = _decode_transcription(given, config.transcription)
    if given.has("noise_reduction"):
        echoed[NOISE_REDUCTION] = _decode_noise_reduction(given, config)
    if not given.has("turn_detection"):
        return UNSET
    return _decode_turn_detection(given, config.turn_detection)


def _decode_audio_output(session: Fields, changes: dict[str, object]) -> None:
    audio = session.object("audio")
    given = audio.object("output") if audio is not None else None
    if given is None:
        return
    _set(changes, "output_format", decode_format(given))
    _set(changes, "voice", decode_voice(given))
    _set(changes, "speed", given.number("speed", 0.25, 1.5))


def _decode_turn_detection(
    fields: Fields, current: TurnDetection | None
) -> TurnDetectionPatch | None:
    given = fields.object("turn_detection")
    if given is None:
        return None
    name = given.choice("type", ("server_vad", "semantic_vad"))
    kind = _KINDS[name] if name is not None else type(current or ServerVad())
    changes: dict[str, object] = {}
    _set(changes, "create_response", given.boolean("create_response"))
    _set(changes, "interrupt_response", given.boolean("interrupt_response"))
    if kind is SemanticVad:
        _set(changes, "eagerness", given.choice("eagerness", _EAGERNESS))
        return TurnDetectionPatch(kind, changes)
    _set(changes, "threshold", given.number("threshold", 0.0, 1.0))
    for field in ("prefix_padding_ms", "silence_duration_ms"):
        _set(changes, field, given.integer(field, 0, LONGEST_SILENCE_MS))
    if given.has("idle_timeout_ms"):
        changes["idle_timeout_ms"] = given.integer("idle_timeout_ms", 1, LONGEST_MS)
    return TurnDetectionPatch(kind, changes)


def _decode_transcription(fields: Fields, current: Transcription | None) -> Transcription | None:
    given = fields.object("transcription")
    if given is None:
        return None
    base = current or Transcription()
    extra = dict(base.extra)
    _set(extra, "delay", given.choice("delay", _DELAYS))
    for name in ("keywords", "languages"):
        words = given.strings(name)
        if words is not None:
            extra[name] = list(words)
    return Transcription(
        _given(given.string("model"), base.model),
        _given(given.string("language", 64), base.language),
        _given(given.string("prompt"), base.prompt),
        extra,
    )


def _given(value: str | None, base: str) -> str:
    return base if value is None else value


def _decode_include(session: Fields) -> tuple[str, ...]:
    values = session.strings("include") or ()
    for index, value in enumerate(values):
        if value != LOGPROBS:
            raise wrong_value(f"{session.at('include')}[{index}]", f"must be '{LOGPROBS}'.")
    return tuple(dict.fromkeys(values))


def _decode_truncation(session: Fields) -> Truncation:
    name = "truncation"
    if isinstance(session.value(name), str):
        return Truncation(session.choice(name, ("auto", "disabled")) or "auto")
    given = session.object(name)
    if given is None:
        return Truncation()
    given.choice("type", ("retention_ratio",))
    ratio = given.number("retention_ratio", 0.0, 1.0)
    limits = given.object("token_limits")
    post_instructions = None if limits is None else limits.integer("post_instructions", 0)
    return Truncation("retention_ratio", 1.0 if ratio is None else ratio, post_instructions)


def _decode_noise_reduction(fields: Fields, config: SessionConfig) -> Json:
    given = fields.object("noise_reduction")
    if given is None:
        return None
    current = config.echoed.get(NOISE_REDUCTION)
    merged: dict[str, Json] = {"strength": 1.0}
    if isinstance(current, dict):
        merged.update(current)
    kind = given.choice("type", ("near_field", "far_field"))
    if kind is not None:
        merged["type"] = kind
    strength = given.number("strength", 0.0, 1.0)
    if strength is not None:
        merged["strength"] = strength
    return merged


def _decode_tracing(session: Fields, name: str) -> Json:
    if isinstance(session.value(name), str):
        return session.choice(name, ("auto",))
    given = session.object(name)
    if given is None:
        return None
    kept: dict[str, Json] = {}
    for field in ("workflow_name", "group_id"):
        if given.has(field):
            kept[field] = given.string(field)
    if given.has("metadata"):
        kept["metadata"] = given.kept("metadata")
    return kept


def _decode_reasoning(session: Fields, name: str) -> Json:
    given = session.object(name)
    if given is None:
        return None
    effort = given.choice("effort", _EFFORTS)
    return {} if effort is None else {"effort": effort}


def _decode_prompt(session: Fields, name: str) -> Json:
    given = session.object(name)
    if given is None:
        return None
    kept: dict[str, Json] = {"id": given.required_string("id")}
    if given.has("version"):
        kept["version"] = given.string("version")
    variables = given.object("variables")
    if variables is not None:
        kept["variables"] = {key: _decode_variable(variables, key) for key, _ in variables.items()}
    return kept


def _decode_variable(variables: Fields, key: str) -> Json:
    """A string, or an input of text, image or file of which the strings are kept."""
    value = variables.value(key)
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        raise wrong_type(variables.at(key), "string or object", value)
    given = variables.required_object(key)
    kind = given.choice("type", ("input_text", "input_image", "input_file"))
    if kind is None or kind == "input_text":
        return {"type": "input_text", "text": given.required_string("text")}
    kept: dict[str, Json] = {"type": kind, "detail": "auto"}
    names = ("image_url", "file_id") if kind == "input_image" else _FILE_FIELDS
    for name in names:
        if given.string(name) is not None:
            kept[name] = given.string(name)
    detail = given.choice("detail", ("auto", "low", "high"))
    return kept if detail is None else {**kept, "detail": detail}


_FILE_FIELDS = ("file_data", "file_id", "file_url", "filename")
_ECHOED: Mapping[str, Callable[[Fields, str], Json]] = {
    "prompt": _decode_prompt,
    "reasoning": _decode_reasoning,
    "tracing": _decode_tracing,
}


# -- to the client --------------------------------------------------------------------------


def encode_session(config: SessionConfig, session_id: str, expires_at: int) -> dict[str, object]:
    """The ``session`` of ``session.created`` and ``session.updated``."""
    if config.kind == "transcription":
        return {
            "type": "transcription",
            "object": "realtime.transcription_session",
            "id": session_id,
            "expires_at": expires_at,
            "audio": {"input": _encode_audio_input(config)},
            "include": list(config.include) or None,
        }
    session: dict[str, object] = {
        "type": "realtime",
        "object": "realtime.session",
        "id": session_id,
        "model": config.model,
        "expires_at": expires_at,
        "output_modalities": encode_modality(config.modality),
        "instructions": config.instructions,
        "audio": {
            "input": _encode_audio_input(config),
            "output": {
                "format": encode_format(config.output_format),
                "voice": config.voice,
                "speed": config.speed,
            },
        },
        "tools": [encode_tool(tool) for tool in config.tools],
        "tool_choice": encode_tool_choice(config.tool_choice),
        "parallel_tool_calls": config.parallel_tool_calls,
        "max_output_tokens": encode_max_output_tokens(config.max_output_tokens),
        "truncation": _encode_truncation(config.truncation),
        "include": list(config.include) or None,
    }
    for name in _ECHOED:
        if name != "reasoning" or name in config.echoed:
            session[name] = config.echoed.get(name)
    if config.turn_policy is not None:
        session["duologue"] = {"turn_policy": config.turn_policy.value}
    return session


def _encode_audio_input(config: SessionConfig) -> dict[str, object]:
    return {
        "format": encode_format(config.input_format),
        "transcription": _encode_transcription(config.transcription),
        "noise_reduction": config.echoed.get(NOISE_REDUCTION),
        "turn_detection": _encode_turn_detection(config.turn_detection),
    }


def _encode_transcription(transcription: Transcription | None) -> dict[str, object] | None:
    if transcription is None:
        return None
    return {
        "model": transcription.model,
        "language": transcription.language or None,
        "prompt": transcription.prompt,
        **transcription.extra,
    }


def _encode_turn_detection(detection: TurnDetection | None) -> dict[str, object] | None:
    if detection is None:
        return None
    encoded: dict[str, object] = {"type": _KIND_NAMES[type(detection)]}
    for name in type(detection).__slots__:
        encoded[name] = getattr(detection, name)
    return encoded


def _encode_truncation(truncation: Truncation) -> Json:
    if truncation.kind != "retention_ratio":
        return truncation.kind
    encoded: dict[str, Json] = {
        "type": truncation.kind,
        "retention_ratio": truncation.retention_ratio,
    }
    if truncation.post_instructions is not None:
        encoded["token_limits"] = {"post_instructions": truncation.post_instructions}
    return encoded
