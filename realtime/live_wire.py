"""JSON text to Live commands and back: the names of the Live protocol.

Source: ``openai.types.live`` of the ``openai`` package, version 3.57. What is honoured, mapped,
echoed and refused is told in ``docs/live.md``.
"""

import binascii
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
import numpy as np

from duologue.codecs.g711 import encode_alaw, encode_mulaw
from duologue.codecs.media import Int16Samples
from duologue.codecs.pcm import bytes_from_int16, int16_from_bytes
from duologue.codecs.resample import Resampler
from duologue.realtime.item_wire import MAX_AUDIO_BYTES, decode_base64
from duologue.realtime.json_fields import Fields, Json, missing, shown
from duologue.realtime.live_items import decode_decision_item, decode_response_item
from duologue.realtime.live_session_wire import (
    Medium,
    decode_fork,
    decode_live_change,
    decode_live_config,
    encode_live_session,
)
from duologue.sessions import live_events as live
from duologue.sessions.errors import ProtocolError
from duologue.sessions.live_config import DataChannelRules, LiveConfig, LiveFormat
from duologue.sessions.live_mixer import RATE
from duologue.sessions.session_config import AudioFormat

APPEND: Final = "session.input_audio.append"
LONGEST_EVENT_ID: Final = 512
LONGEST_EVENT: Final = 21 * 1024 * 1024
LONGEST_CONTENT: Final = 4_000
"""Characters of an appended context: 8 for each of the 500 tokens that are allowed."""
LONGEST_FIXTURE: Final = 30
"""Seconds."""
Link = Literal["socket", "channel", "sideband"]
"""A session's own WebSocket, a call's data channel, or a WebSocket beside either."""

_NOT_ON: Final[Mapping[str, tuple[Link, ...]]] = {
    "session.start": ("channel", "sideband"),
    APPEND: ("channel", "sideband"),
    "session.output_audio.fixture.play": ("channel",),
}
_encode = msgspec.json.Encoder().encode


class LiveDecoder:
    """One client's events.

    ``config`` is what the session's will be once everything decoded so far has been applied, by
    whomever it was sent; ``None`` before the session starts.
    """

    def __init__(
        self,
        link: Link,
        config: LiveConfig | None = None,
        *,
        fork_of: LiveConfig | None = None,
        rules: DataChannelRules | None = None,
        lead: "LiveDecoder | None" = None,
    ) -> None:
        """``fork_of``: the settings of the session that is forked. ``lead``: the decoder of the
        session's own client."""
        self._config = config
        self._lead = lead
        self._link = link
        self._fork_of = fork_of
        self._rules = rules

    @property
    def config(self) -> LiveConfig | None:
        return self._config if self._lead is None else self._lead.config

    @config.setter
    def config(self, config: LiveConfig) -> None:
        if self._lead is None:
            self._config = config
        else:
            self._lead.config = config

    def decode(self, text: str) -> live.Command:
        """The event in a text frame. Raises ProtocolError, with the client's ``event_id``."""
        if len(text) > LONGEST_EVENT:
            message = f"An event may have at most {LONGEST_EVENT} characters."
            raise ProtocolError("event_too_large", message)
        try:
            message_: Json = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise ProtocolError("invalid_json", f"The message is not JSON: {error}.") from None
        except RecursionError:
            raise ProtocolError("invalid_json", "The message is nested too deeply.") from None
        if not isinstance(message_, dict):
            raise ProtocolError("invalid_event", "An event is a JSON object.")
        fields = Fields(message_)
        event_id = fields.string("event_id", LONGEST_EVENT_ID)
        try:
            return self._decode(fields, event_id)
        except ProtocolError as error:
            raise error.answering(event_id) from None

    def _decode(self, fields: Fields, event_id: str | None) -> live.Command:
        kind = fields.required_string("type")
        if self._rules is not None and not self._rules.lets_in(kind):
            message = f"The data channel may not send {shown(kind)} in this session."
            raise ProtocolError("invalid_event_for_transport", message, "type")
        if kind == "transport.dtmf.send":
            message = "Keypresses have a meaning in calls over SIP alone."
            raise ProtocolError("invalid_event_for_transport", message, "type")
        known = _EVENTS.get(kind)
        if known is None:
            supported = ", ".join(self.supported())
            message = f"There is no event {shown(kind)}. Supported here: {supported}."
            raise ProtocolError("unknown_event", message, "type")
        if self._link in _NOT_ON.get(kind, ()):
            message = f"'{kind}' can't be sent here."
            raise ProtocolError("invalid_event_for_transport", message, "type")
        if self.config is None and kind != "session.start":
            message = "Start the session with 'session.start' first, and wait for it."
            raise ProtocolError("session_not_started", message, "type")
        names, decode = known
        fields.only("type", "event_id", *names)
        return decode(self, fields, event_id)

    def supported(self) -> tuple[str, ...]:
        """The types of events that this client may send."""
        return tuple(kind for kind in _EVENTS if self._link not in _NOT_ON.get(kind, ()))

    def start(self, fields: Fields, event_id: str | None) -> live.Command:
        session = fields.required_object("session")
        config = self.config
        if config is None:
            if self._fork_of is not None:
                config = decode_fork(session, self._fork_of, "socket")
            else:
                config = decode_live_config(session, "socket")
            self.config = config
        return live.Start(event_id, config)

    def update(self, fields: Fields, event_id: str | None) -> live.Command:
        assert self.config is not None
        change = decode_live_change(fields.required_object("session"), self.config)
        self.config = self.config.changed(change)
        return live.Update(event_id, change)

    def append(self, fields: Fields, event_id: str | None) -> live.Command:
        assert self.config is not None
        data = decode_base64(fields.required_string("audio"), "audio")
        if len(data) > MAX_AUDIO_BYTES:
            message = f"'audio' holds more than {MAX_AUDIO_BYTES} bytes."
            raise ProtocolError("event_too_large", message, "audio")
        if len(data) % self.config.format.sample_bytes:
            message = "'audio' must hold whole 16-bit samples: it is odd in length."
            raise ProtocolError("invalid_audio", message, "audio")
        return live.AppendAudio(event_id, data)

    def fixture(self, fields: Fields, event_id: str | None) -> live.Command:
        data = decode_base64(fields.required_string("audio"), "audio")
        if not data or len(data) % 2:
            message = "'audio' must hold 16-bit samples at 24 kHz, without a header."
            raise ProtocolError("invalid_audio", message, "audio")
        if data[:4] == b"RIFF":
            message = "'audio' must be raw samples, without a WAV header."
            raise ProtocolError("invalid_audio", message, "audio")
        if len(data) > LONGEST_FIXTURE * RATE * 2:
            message = f"A fixture may last {LONGEST_FIXTURE} seconds at most."
            raise ProtocolError("event_too_large", message, "audio")
        return live.PlayFixture(event_id, int16_from_bytes(data))

    def context(self, fields: Fields, event_id: str | None) -> live.Command:
        kind = fields.required_string("type").split(".")[1]
        content = fields.required_string("content", LONGEST_CONTENT)
        if not content.strip():
            raise ProtocolError("invalid_value", "'content' must not be empty.", "content")
        delegation_id = fields.string("delegation_id", LONGEST_EVENT_ID)
        return live.AppendContext(event_id, kind, content, delegation_id)  # type: ignore[arg-type]

    def create_decision(self, fields: Fields, event_id: str | None) -> live.Command:
        if event_id is None:
            raise missing("event_id")
        return live.CreateDecision(event_id)


def _decision_item(_: LiveDecoder, fields: Fields, event_id: str | None) -> live.Command:
    text = decode_decision_item(fields.required_object("item"))
    kept = fields.kept("item")
    assert isinstance(kept, dict)
    return live.CreateDecisionItem(event_id, kept, text)


def _response_item(_: LiveDecoder, fields: Fields, event_id: str | None) -> live.Command:
    return live.CreateResponseItem(event_id, decode_response_item(fields.required_object("item")))


_Decode = Callable[[LiveDecoder, Fields, str | None], live.Command]
_CONTEXT: Final = (("content", "delegation_id"), LiveDecoder.context)
_EVENTS: Final[Mapping[str, tuple[tuple[str, ...], _Decode]]] = {
    "session.start": (("session",), LiveDecoder.start),
    "session.update": (("session",), LiveDecoder.update),
    APPEND: (("audio",), LiveDecoder.append),
    "session.input_audio.mute": ((), lambda _, f, id: live.Mute(id)),
    "session.input_audio.unmute": ((), lambda _, f, id: live.Unmute(id)),
    "session.output_audio.fixture.play": (("audio",), LiveDecoder.fixture),
    "session.instructions.append": _CONTEXT,
    "session.thinking.append": _CONTEXT,
    "session.commentary.append": _CONTEXT,
    "decision.create": ((), LiveDecoder.create_decision),
    "decision.item.create": (("item",), _decision_item),
    "decision.item.delete": (
        ("item_id",),
        lambda _, f, id: live.DeleteDecisionItem(id, f.required_id("item_id")),
    ),
    "response.item.create": (("item",), _response_item),
    "response.create": ((), lambda _, f, id: live.CreateResponse(id)),
    "session.close": ((), lambda _, f, id: live.Close(id)),
}
LIVE_CLIENT_EVENTS: Final = tuple(_EVENTS)


# -- to the client --------------------------------------------------------------------------


class LiveEncoder:
    """Server events as JSON text for one client. Before :meth:`begin` there are only errors."""

    def __init__(
        self,
        link: Link,
        medium: Medium,
        rules: DataChannelRules | None = None,
    ) -> None:
        self._session_id = ""
        self._expires_at = 0
        self._link = link
        self._medium = medium
        self._sound = _Sound(LiveFormat())
        self._rules = rules
        self._ids = f"event_{secrets.token_hex(6)}"
        self._count = 0

    def begin(self, session_id: str, expires_at: int, audio_format: LiveFormat) -> None:
        """There is a session. ``expires_at``: seconds since the Unix epoch."""
        self._session_id = session_id
        self._expires_at = expires_at
        self._sound = _Sound(audio_format)

    def encode(self, event: live.LiveEvent) -> tuple[str, ...]:
        """The event's text frame; none where this client does not get the event."""
        if isinstance(event, live.OutputAudio):
            return self._audio(event)
        if isinstance(event, live.InputAudio):
            return (_reflected(event),) if self._link == "sideband" else ()
        kind, fields = _ENCODE[type(event)](event)
        if self._rules is not None and not self._let_out(kind, event):
            return ()
        self._count += 1
        message: dict[str, object] = {
            "type": kind,
            "event_id": f"{self._ids}{self._count:x}",
            **fields,
        }
        if isinstance(event, live.Started | live.Updated | live.Closed):
            message["session"] = encode_live_session(
                event.config, self._session_id, self._expires_at, self._medium
            )
        return (_encode(message).decode(),)

    def _let_out(self, kind: str, event: live.LiveEvent) -> bool:
        inner = event.event.get("type") if isinstance(event, live.ResponseTold) else ""
        return self._rules is None or self._rules.lets_out(kind, str(inner))

    def _audio(self, event: live.OutputAudio) -> tuple[str, ...]:
        if self._link == "channel":
            return ()
        if self._link == "sideband":
            delta = binascii.b2a_base64(bytes_from_int16(event.samples), newline=False)
            times = b',"start_ms":%d,"end_ms":%d}' % (event.start_ms, event.end_ms)
        else:
            delta = binascii.b2a_base64(self._sound.encode(event.samples), newline=False)
            times = b"}"
        return ((b'{"type":"session.output_audio.delta","delta":"%b"' % delta + times).decode(),)


def _reflected(event: live.InputAudio) -> str:
    audio = binascii.b2a_base64(bytes_from_int16(event.samples), newline=False)
    return (b'{"type":"%b","audio":"%b"}' % (APPEND.encode(), audio)).decode()


class _Sound:
    """24 kHz PCM to the session's format, without an end."""

    def __init__(self, audio_format: LiveFormat) -> None:
        self._resampler = None
        if audio_format.rate != RATE:
            self._resampler = Resampler(RATE, audio_format.rate, np.int16)
        self._encode = _LAWS[audio_format.kind]

    def encode(self, samples: Int16Samples) -> bytes:
        if self._resampler is not None:
            samples = self._resampler.push(samples)
        return self._encode(samples)


_LAWS: Final[Mapping[AudioFormat, Callable[[Int16Samples], bytes]]] = {
    AudioFormat.PCM: bytes_from_int16,
    AudioFormat.PCMU: encode_mulaw,
    AudioFormat.PCMA: encode_alaw,
}
_Shape = tuple[str, dict[str, object]]


def _named(kind: str, client_event_id: str | None, **fields: object) -> _Shape:
    if client_event_id is not None:
        fields["client_event_id"] = client_event_id
    return kind, fields


def _error(event: live.LiveError) -> _Shape:
    error = event.error
    told: dict[str, object] = {"type": error.type, "code": error.code, "message": error.message}
    if error.param is not None:
        told["param"] = error.param
    if error.event_id is not None:
        told["client_event_id"] = error.event_id
    if error.retry_after_ms is not None:
        told["retry_after_ms"] = error.retry_after_ms
    return _named("error", error.event_id, error=told)


def _delegated(event: live.DelegationCreated) -> _Shape:
    delegation: dict[str, object] = {
        "id": event.delegation_id,
        "type": "delegation",
        "target": event.target,
    }
    if event.response_id is not None:
        delegation["response_id"] = event.response_id
    return "session.delegation.created", {"delegation": delegation, "offset_ms": event.offset_ms}


def _usage(usage: live.LiveUsage) -> dict[str, object]:
    told: dict[str, object] = {"seconds": usage.seconds}
    if usage.active is not None:
        told["active_seconds"] = usage.active
        told["paused_seconds"] = usage.paused
    return told


def _transcript(kind: str, event: live.InputTranscript | live.OutputTranscript) -> _Shape:
    return kind, {"delta": event.delta, "start_ms": event.start_ms, "end_ms": event.end_ms}


def _decided(event: live.DecisionMade) -> _Shape:
    return "decision.event", {
        "event": {"type": "decision.completed", "decision": event.decision},
        "delegation_id": event.delegation_id,
        "source_event_id": None,
        "source_event_type": event.source_event_type,
        "trigger_id": event.trigger_id,
    }


# A class and its function belong together; the type of a table can't say so.
_ENCODE: Final[Mapping[type, Callable[[Any], _Shape]]] = {
    live.Started: lambda e: _named("session.started", e.client_event_id),
    live.Updated: lambda e: _named("session.updated", e.client_event_id),
    live.Resumed: lambda e: ("session.resumed", {}),
    live.Paused: lambda e: ("session.paused", {}),
    live.Muted: lambda e: _named("session.input_audio.muted", e.client_event_id),
    live.Unmuted: lambda e: _named("session.input_audio.unmuted", e.client_event_id),
    live.FixturePlaying: lambda e: _named(
        "session.output_audio.fixture.playing", e.client_event_id
    ),
    live.FixturePlayed: lambda e: _named("session.output_audio.fixture.played", e.client_event_id),
    live.ContextAppended: lambda e: _named(
        f"session.{e.kind}.appended", e.client_event_id, start_ms=e.start_ms, end_ms=e.end_ms
    ),
    live.InputTranscript: lambda e: _transcript("session.input_transcript.delta", e),
    live.OutputTranscript: lambda e: _transcript("session.output_transcript.delta", e),
    live.DelegationCreated: _delegated,
    live.DecisionMade: _decided,
    live.DecisionItemCreated: lambda e: _named(
        "decision.item.created", e.client_event_id, item=e.item
    ),
    live.DecisionItemDeleted: lambda e: _named(
        "decision.item.deleted", e.client_event_id, item_id=e.item_id
    ),
    live.ResponseTold: lambda e: _named(
        "response.event", e.client_event_id, event=e.event, delegation_id=e.delegation_id
    ),
    live.UsageUpdated: lambda e: ("session.usage.updated", {"usage": _usage(e.usage)}),
    live.Closed: lambda e: _named(
        "session.closed", e.client_event_id, reason=e.reason, usage=_usage(e.usage)
    ),
    live.LiveError: _error,
    live.Info: lambda e: _named("info", e.client_event_id, code=e.code, message=e.message),
    live.TurnMarked: lambda e: (
        f"duologue.turn.{e.state}",
        {"speaker": e.speaker, "offset_ms": e.offset_ms},
    ),
}
