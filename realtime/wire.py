"""JSON text to events and back: the names of the Realtime protocol.

Source: the types of the ``openai`` package, version 3.57 (``openai.types.realtime``). What is
honoured, echoed and refused is told in ``docs/wire.md``.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from duologue.realtime.item_wire import check_audio, decode_base64, decode_item
from duologue.realtime.json_fields import Fields, Json, missing, shown, wrong_type
from duologue.realtime.response_wire import decode_response
from duologue.realtime.session_wire import decode_patch
from duologue.sessions.errors import ProtocolError
from duologue.sessions.events import (
    CancelResponse,
    ClearAudio,
    ClearOutput,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    ResponseParams,
    RetrieveItem,
    TruncateItem,
    UpdateSession,
)
from duologue.sessions.ports import AudioBytes, Incoming
from duologue.sessions.session_config import SessionConfig

APPEND: Final = "input_audio_buffer.append"
LONGEST_EVENT_ID: Final = 512
LONGEST_EVENT: Final = 21 * 1024 * 1024
"""Characters of one event: 15 MiB of audio in base64, and room for the rest."""

_EDGE = 640  # characters at either end of an event in which its type is looked for


class _Append(msgspec.Struct, tag_field="type", tag=APPEND):
    audio: bytes
    event_id: str | None = None


_APPEND_DECODER = msgspec.json.Decoder(_Append)


class Decoder:
    """One client's events.

    ``config`` is what the session's configuration will be once everything decoded so far has been
    applied: what follows an update is read by it. Set it when an update was refused after all.
    """

    def __init__(self, config: SessionConfig) -> None:
        self.config = config

    def decode(self, text: str) -> Incoming:
        """The event in a text frame.

        Raises ProtocolError, with the client's ``event_id`` where it could be read.
        """
        if len(text) > LONGEST_EVENT:
            raise ProtocolError(
                "event_too_large", f"An event may have at most {LONGEST_EVENT} characters."
            )
        if APPEND in text[:_EDGE] or APPEND in text[-_EDGE:]:
            # Nearly every event. Whatever is odd about one goes the long way, for its error.
            try:
                append = _APPEND_DECODER.decode(text)
            except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
                pass
            else:
                return self._audio(append.audio, append.event_id)
        return self._decode_any(text)

    def _decode_any(self, text: str) -> Incoming:
        try:
            message: Json = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeEncodeError) as error:
            raise ProtocolError("invalid_json", f"The message is not JSON: {error}.") from None
        except RecursionError:
            raise ProtocolError("invalid_json", "The message is nested too deeply.") from None
        if not isinstance(message, dict):
            raise ProtocolError("invalid_event", "An event is a JSON object.")
        fields = Fields(message)
        event_id = fields.string("event_id", LONGEST_EVENT_ID)
        try:
            kind = fields.required_string("type")
            decode = _DECODE.get(kind)
            if decode is None:
                raise ProtocolError("unknown_event", f"There is no event {shown(kind)}.", "type")
        except ProtocolError as error:
            raise error.answering(event_id) from None
        try:
            return decode(self, fields, event_id)
        except ProtocolError as error:
            # Clients that wait for an answer without an id look for the event's name in it.
            raise ProtocolError(
                error.code, f"{error.message} (in {kind})", error.param, event_id
            ) from None

    def _audio(self, audio: bytes, event_id: str | None) -> AudioBytes:
        try:
            check_audio(audio, self.config.input_format, "audio")
        except ProtocolError as error:
            raise error.answering(event_id) from None
        return AudioBytes(audio, event_id)

    def append(self, fields: Fields, event_id: str | None) -> Incoming:
        audio = fields.value("audio")
        if audio is None:
            raise missing("audio")
        if not isinstance(audio, str):
            raise wrong_type("audio", "string", audio)
        return self._audio(decode_base64(audio, "audio"), event_id)

    def update(self, fields: Fields, event_id: str | None) -> Incoming:
        patch = decode_patch(fields.required_object("session"), self.config)
        self.config = self.config.merged(patch)
        return UpdateSession(event_id, patch)

    def create_item(self, fields: Fields, event_id: str | None) -> Incoming:
        item, audio = decode_item(fields.required_object("item"), self.config.input_format)
        previous = fields.string("previous_item_id")
        return CreateItem(event_id, item, previous or None, audio)

    def create_response(self, fields: Fields, event_id: str | None) -> Incoming:
        response = fields.object("response")
        if response is None:
            return CreateResponse(event_id, ResponseParams())
        return CreateResponse(event_id, decode_response(response, self.config.input_format))


def _truncate(_: Decoder, fields: Fields, event_id: str | None) -> Incoming:
    return TruncateItem(
        event_id,
        fields.required_id("item_id"),
        fields.required_integer("content_index", 0),
        fields.required_integer("audio_end_ms", 0),
    )


_Decode = Callable[[Decoder, Fields, str | None], Incoming]
_DECODE: Mapping[str, _Decode] = {
    "conversation.item.create": Decoder.create_item,
    "conversation.item.delete": lambda _, f, id: DeleteItem(id, f.required_id("item_id")),
    "conversation.item.retrieve": lambda _, f, id: RetrieveItem(id, f.required_id("item_id")),
    "conversation.item.truncate": _truncate,
    APPEND: Decoder.append,
    "input_audio_buffer.clear": lambda _, f, id: ClearAudio(id),
    "input_audio_buffer.commit": lambda _, f, id: CommitAudio(id),
    "output_audio_buffer.clear": lambda _, f, id: ClearOutput(id),
    "response.cancel": lambda _, f, id: CancelResponse(id, f.string("response_id") or None),
    "response.create": Decoder.create_response,
    "session.update": Decoder.update,
}
CLIENT_EVENTS: Final = tuple(_DECODE)
