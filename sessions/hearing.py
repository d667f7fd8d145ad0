"""The media path of a session's input: bytes as they come, to probabilities and to the engine.

The core sees positions and probabilities; the samples stay here, in a ring, until an utterance
asks for them. Positions are samples at 16 kHz since the session's first sample.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from duologue.codecs.g711 import decode_alaw, decode_mulaw
from duologue.codecs.media import MediaTime
from duologue.codecs.pcm import bytes_from_int16, float_from_int16, int16_from_bytes
from duologue.codecs.resample import Resampler
from duologue.codecs.ring import AudioRing, Policy
from duologue.engines.engine import HEARD_RATE, DropUtterance, EndUtterance, Hear
from duologue.models.silero_vad import FRAME, SileroVad
from duologue.sessions import effects
from duologue.sessions.endpointing import REACH
from duologue.sessions.events import AudioReceived, VoiceProbability
from duologue.sessions.session_config import AudioFormat

SLICE_SECONDS = 1.0
"""Longer input is heard in slices, so that other sessions get their turn in between."""
KEPT_SECONDS = 20
"""Audio of earlier utterances that can still be retrieved."""
FORWARD_SAMPLES = HEARD_RATE // 10
"""Audio goes to the engine in stretches of at least 100 ms, or when it is needed."""

Int16 = npt.NDArray[np.int16]
EngineAudio = Hear | EndUtterance | DropUtterance


class Hearing:
    """One session's ears. ``send`` takes what goes to the engine, in order."""

    def __init__(
        self, session_id: str, vad: SileroVad, send: Callable[[EngineAudio], None]
    ) -> None:
        self._session_id = session_id
        self._send = send
        self._speech = vad.stream()
        self._format = AudioFormat.PCM
        self._resampler = Resampler(self._format.rate, HEARD_RATE, np.int16)
        self._ring = AudioRing(REACH, HEARD_RATE, Policy.DROP_OLDEST, np.int16)
        self._frame = np.zeros(0, np.int16)
        self._frame_end = 0
        self._utterance: str | None = None
        self._forwarded = 0
        self._start = 0
        self._recording: list[Int16] = []
        self._recorded = 0
        self._kept: OrderedDict[str, Int16] = OrderedDict()

    @property
    def position(self) -> int:
        """How far the input reaches."""
        return self._ring.end.samples

    def configure(self, audio_format: AudioFormat) -> None:
        """The client sends another format from now on."""
        if audio_format is not self._format:
            self._format = audio_format
            self._resampler = Resampler(audio_format.rate, HEARD_RATE, np.int16)

    def slices(self, data: bytes) -> Iterator[bytes]:
        """Input cut so that each piece is short work. Raises CodecError for half a sample."""
        size = int(SLICE_SECONDS * self._format.rate) * self._format.sample_bytes
        if len(data) % self._format.sample_bytes:
            int16_from_bytes(data)
        for offset in range(0, len(data), size):
            yield data[offset : offset + size]

    def decode(self, data: bytes) -> Int16:
        match self._format:
            case AudioFormat.PCM:
                return int16_from_bytes(data)
            case AudioFormat.PCMU:
                return decode_mulaw(data)
            case AudioFormat.PCMA:
                return decode_alaw(data)

    def accept(self, data: bytes, judge: bool) -> Iterator[AudioReceived | VoiceProbability]:
        """Hear a slice. ``judge``: whether anyone wants to know if it is speech."""
        return self.accept_samples(self._resampler.push(self.decode(data)), judge)

    def accept_samples(
        self, samples: Int16, judge: bool
    ) -> Iterator[AudioReceived | VoiceProbability]:
        """As :meth:`accept`, for samples at 16 kHz."""
        self._ring.write(samples)
        yield AudioReceived(self.position)
        if not judge:
            self._frame = samples[:0]
            self._frame_end = self.position
        else:
            waiting = np.concatenate((self._frame, samples)) if len(self._frame) else samples
            whole = len(waiting) // FRAME
            for index in range(whole):
                frame = float_from_int16(waiting[index * FRAME : (index + 1) * FRAME])
                self._frame_end += FRAME
                yield VoiceProbability(self._frame_end, self._speech.push(frame))
            self._frame = waiting[whole * FRAME :].copy()
        if self._utterance is not None and self.position - self._forwarded >= FORWARD_SAMPLES:
            self.forward()

    def forward(self) -> None:
        """Give the engine all of the utterance that it does not have."""
        self._forward_to(self.position)

    def supply(self, utterance: str, audio: bytes) -> Iterator[None]:
        """Give the engine a whole utterance that came in one piece, a slice at each step."""
        resampler = Resampler(self._format.rate, HEARD_RATE, np.int16)
        end = 0
        for data in self.slices(audio):
            samples = resampler.push(self.decode(data))
            self._hear(utterance, end, samples)
            end += len(samples)
            yield
        rest = resampler.flush()
        self._hear(utterance, end, rest)
        end += len(rest)
        self._send(EndUtterance(session=self._session_id, utterance=utterance, end=end))

    def perform(
        self, effect: effects.OpenUtterance | effects.CloseUtterance | effects.DropUtterance
    ) -> None:
        """Carry out what the core asks of the input."""
        match effect:
            case effects.OpenUtterance():
                self._utterance = effect.utterance
                self._start = self._forwarded = max(effect.start, self._ring.start.samples)
                self._forget_recording()
                self.forward()
            case effects.CloseUtterance():
                self._forward_to(effect.audio_end)
                self._keep(effect.utterance, effect.audio_end)
                self._send(
                    EndUtterance(
                        session=self._session_id, utterance=effect.utterance, end=effect.end
                    )
                )
                self._utterance = None
            case effects.DropUtterance():
                self._send(DropUtterance(session=self._session_id, utterance=effect.utterance))
                self._utterance = None
                self._forget_recording()

    def recorded(self, item_id: str) -> bytes | None:
        """A user's item as PCM16 at 24 kHz, while it is kept."""
        samples = self._kept.get(item_id)
        if samples is None:
            return None
        resampler = Resampler(HEARD_RATE, AudioFormat.PCM.rate, np.int16)
        return bytes_from_int16(np.concatenate((resampler.push(samples), resampler.flush())))

    def _forward_to(self, end: int) -> None:
        if self._utterance is None or end <= self._forwarded:
            return
        chunk = self._ring.slice(MediaTime(self._forwarded, HEARD_RATE), MediaTime(end, HEARD_RATE))
        samples = np.asarray(chunk.samples, np.int16)
        self._record(samples)
        self._hear(self._utterance, chunk.start.samples, samples)
        self._forwarded = end

    def _hear(self, utterance: str, start: int, samples: Int16) -> None:
        if len(samples):
            self._send(
                Hear(
                    session=self._session_id,
                    utterance=utterance,
                    start=start,
                    pcm=bytes_from_int16(samples),
                )
            )

    def _record(self, samples: Int16) -> None:
        """Remember what is being said, unless it is too long to be kept."""
        self._recorded += len(samples)
        self._recording.append(samples)
        if self._recorded > KEPT_SECONDS * HEARD_RATE:
            self._recording.clear()

    def _keep(self, utterance: str, end: int) -> None:
        if self._recording:
            self._kept[utterance] = np.concatenate(self._recording)[: max(0, end - self._start)]
        while sum(map(len, self._kept.values())) > KEPT_SECONDS * HEARD_RATE:
            self._kept.popitem(last=False)
        self._forget_recording()

    def _forget_recording(self) -> None:
        self._recording = []
        self._recorded = 0
