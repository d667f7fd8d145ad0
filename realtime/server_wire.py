"""Server events as JSON text.

Source: ``openai.types.realtime.RealtimeServerEvent``, version 3.57. A content part is ``text`` or
``audio`` in ``response.content_part.*`` and ``output_text`` or ``output_audio`` within an item.
"""

import binascii
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, get_args

import msgspec
import numpy as np

from duologue.codecs.g711 import encode_alaw, encode_mulaw
from duologue.codecs.media import Int16Samples
from duologue.codecs.resample import Resampler
from duologue.realtime.item_wire import encode_item
from duologue.realtime.response_wire import encode_error, encode_response
from duologue.realtime.session_wire import encode_session
from duologue.sessions import effects
from duologue.sessions.effects import ServerEvent
from duologue.sessions.session_config import AudioFormat

EVENT_TYPES: Final[Mapping[type[ServerEvent], str]] = {
    effects.SessionCreated: "session.created",
    effects.SessionUpdated: "session.updated",
    effects.ErrorReported: "error",
    effects.SpeechStarted: "input_audio_buffer.speech_started",
    effects.SpeechStopped: "input_audio_buffer.speech_stopped",
    effects.InputCommitted: "input_audio_buffer.committed",
    effects.InputCleared: "input_audio_buffer.cleared",
    effects.InputTimedOut: "input_audio_buffer.timeout_triggered",
    effects.ItemAdded: "conversation.item.added",
    effects.ItemDone: "conversation.item.done",
    effects.ItemDeleted: "conversation.item.deleted",
    effects.ItemRetrieved: "conversation.item.retrieved",
    effects.ItemTruncated: "conversation.item.truncated",
    effects.TranscriptionDelta: "conversation.item.input_audio_transcription.delta",
    effects.TranscriptionCompleted: "conversation.item.input_audio_transcription.completed",
    effects.TranscriptionFailed: "conversation.item.input_audio_transcription.failed",
    effects.ResponseCreated: "response.created",
    effects.ResponseDone: "response.done",
    effects.OutputItemAdded: "response.output_item.added",
    effects.OutputItemDone: "response.output_item.done",
    effects.ContentPartAdded: "response.content_part.added",
    effects.ContentPartDone: "response.content_part.done",
    effects.TextDelta: "response.output_text.delta",
    effects.TextDone: "response.output_text.done",
    effects.TranscriptDeltaSaid: "response.output_audio_transcript.delta",
    effects.TranscriptSaid: "response.output_audio_transcript.done",
    effects.AudioDelta: "response.output_audio.delta",
    effects.AudioDone: "response.output_audio.done",
    effects.ArgumentsDelta: "response.function_call_arguments.delta",
    effects.ArgumentsDone: "response.function_call_arguments.done",
    effects.PlaybackStarted: "output_audio_buffer.started",
    effects.PlaybackStopped: "output_audio_buffer.stopped",
    effects.PlaybackCleared: "output_audio_buffer.cleared",
}

LONGEST_RECORDING: Final = 720_000
"""Bytes of audio in a retrieved item: some clients take no message of 1 MiB or more."""

_encode = msgspec.json.Encoder().encode


class Encoder:
    """One client's server events. ``expires_at`` is in seconds since the Unix epoch."""

    def __init__(self, session_id: str, expires_at: int) -> None:
        self._session_id = session_id
        self._expires_at = expires_at
        self._ids = f"event_{secrets.token_hex(6)}"
        self._count = 0
        self._narrow: dict[_Part, _Narrowband] = {}
        self._input_format = AudioFormat.PCM

    def encode(self, event: ServerEvent) -> tuple[str, ...]:
        """The event's text frames: one, or two where the last of an audio part was held back."""
        if isinstance(event, effects.AudioDelta):
            return self._encode_audio(event)
        if isinstance(event, effects.AudioDone):
            return (*self._finish_audio(event), self._encode_flat(event))
        if isinstance(event, effects.ResponseDone):
            self._forget(event.response.id)
        return (self._encode_flat(event),)

    def _next_id(self) -> str:
        self._count += 1
        return f"{self._ids}{self._count:x}"

    def _encode_flat(self, event: ServerEvent) -> str:
        kind = type(event)
        shape = _SHAPES.get(kind)
        message: dict[str, object] = {"type": EVENT_TYPES[kind], "event_id": self._next_id()}
        if isinstance(event, effects.SessionCreated | effects.SessionUpdated):
            self._input_format = event.config.input_format
            message["session"] = encode_session(event.config, self._session_id, self._expires_at)
        elif isinstance(event, effects.ItemRetrieved):
            message["item"] = encode_item(event.item, self._recorded(event.audio))
        elif shape is not None:
            message.update(shape(event))
        else:
            for name in _FIELDS[kind]:
                message[name] = getattr(event, name)
        return _encode(message).decode()

    def _recorded(self, pcm: bytes | None) -> bytes | None:
        """A user's audio in the session's input format; ``None`` when it would be too long."""
        if pcm is None or self._input_format is AudioFormat.PCM:
            return pcm if pcm is None or len(pcm) <= LONGEST_RECORDING else None
        if len(pcm) > LONGEST_RECORDING * 6:
            return None
        narrow = _Narrowband(self._input_format)
        return narrow.push(pcm) + narrow.flush()

    def _encode_audio(self, event: effects.AudioDelta) -> tuple[str, ...]:
        part: _Part = (
            event.response_id,
            event.item_id,
            event.output_index,
            event.content_index,
        )
        data = event.pcm
        if event.format is not AudioFormat.PCM:
            narrow = self._narrow.get(part)
            if narrow is None:
                narrow = self._narrow[part] = _Narrowband(event.format)
            data = narrow.push(data)
        return (self._audio_frame(part, data),) if data else ()

    def _audio_frame(self, part: "_Part", data: bytes) -> str:
        response_id, item_id, output_index, content_index = part
        head = _encode(
            {
                "type": "response.output_audio.delta",
                "event_id": self._next_id(),
                "response_id": response_id,
                "item_id": item_id,
                "output_index": output_index,
                "content_index": content_index,
            }
        )
        audio = binascii.b2a_base64(data, newline=False)
        return (b'%b,"delta":"%b"}' % (head[:-1], audio)).decode()

    def _finish_audio(self, event: effects.AudioDone) -> tuple[str, ...]:
        part: _Part = (
            event.response_id,
            event.item_id,
            event.output_index,
            event.content_index,
        )
        narrow = self._narrow.pop(part, None)
        rest = b"" if narrow is None else narrow.flush()
        return (self._audio_frame(part, rest),) if rest else ()

    def _forget(self, response_id: str) -> None:
        for part in [part for part in self._narrow if part[0] == response_id]:
            del self._narrow[part]


_Part = tuple[str, str, int, int]
"""Response, item, output index, content index."""


class _Narrowband:
    """24 kHz PCM to G.711, one audio part from its beginning to its end."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self._resampler = Resampler(AudioFormat.PCM.rate, audio_format.rate, np.int16)
        self._law: Callable[[Int16Samples], bytes] = (
            encode_mulaw if audio_format is AudioFormat.PCMU else encode_alaw
        )

    def push(self, pcm: bytes) -> bytes:
        return self._law(self._resampler.push(np.frombuffer(pcm, np.int16)))

    def flush(self) -> bytes:
        return self._law(self._resampler.flush())


# -- the events whose fields are not simply those of their class -----------------------------


def _error(event: effects.ErrorReported) -> dict[str, object]:
    error = event.error
    shown: dict[str, object] = {
        **encode_error(error),
        "param": error.param,
        "event_id": error.event_id,
    }
    if error.retry_after_ms is not None:
        shown["retry_after_ms"] = error.retry_after_ms
    return {"error": shown}


def _item_in_place(event: effects.ItemAdded | effects.ItemDone) -> dict[str, object]:
    return {"previous_item_id": event.previous_item_id, "item": encode_item(event.item)}


def _output_item(event: effects.OutputItemAdded | effects.OutputItemDone) -> dict[str, object]:
    return {
        "response_id": event.response_id,
        "output_index": event.output_index,
        "item": encode_item(event.item),
    }


def _part(
    event: effects.ContentPartAdded | effects.ContentPartDone, text: str
) -> dict[str, object]:
    field = "transcript" if event.modality == "audio" else "text"
    return {
        "response_id": event.response_id,
        "item_id": event.item_id,
        "output_index": event.output_index,
        "content_index": event.content_index,
        "part": {"type": event.modality, field: text},
    }


def _transcription_completed(event: effects.TranscriptionCompleted) -> dict[str, object]:
    encoded: dict[str, object] = {
        "item_id": event.item_id,
        "content_index": event.content_index,
        "transcript": event.transcript,
        "usage": {"type": "duration", "seconds": event.seconds},
    }
    if event.logprobs is not None:
        encoded["logprobs"] = [
            {
                "token": entry.token,
                "logprob": entry.logprob,
                "bytes": list(entry.token.encode()),
            }
            for entry in event.logprobs
        ]
    return encoded


def _transcription_failed(event: effects.TranscriptionFailed) -> dict[str, object]:
    error = {**encode_error(event.error), "param": event.error.param}
    return {"item_id": event.item_id, "content_index": event.content_index, "error": error}


# A class and its function belong together; the type of a table can't say so.
_SHAPES: Final[Mapping[type[ServerEvent], Callable[[Any], dict[str, object]]]] = {
    effects.ErrorReported: _error,
    effects.ItemAdded: _item_in_place,
    effects.ItemDone: _item_in_place,
    effects.TranscriptionCompleted: _transcription_completed,
    effects.TranscriptionFailed: _transcription_failed,
    effects.ResponseCreated: lambda event: {"response": encode_response(event.response)},
    effects.ResponseDone: lambda event: {"response": encode_response(event.response)},
    effects.OutputItemAdded: _output_item,
    effects.OutputItemDone: _output_item,
    effects.ContentPartAdded: lambda event: _part(event, ""),
    effects.ContentPartDone: lambda event: _part(event, event.text),
    effects.TranscriptDeltaSaid: lambda event: {
        name: getattr(event, name)
        for name in ("response_id", "item_id", "output_index", "content_index", "delta")
    },
}
_FIELDS: Final[Mapping[type[ServerEvent], tuple[str, ...]]] = {
    kind: kind.__slots__ for kind in get_args(ServerEvent)
}
