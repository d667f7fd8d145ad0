"""Opus (RFC 6716), through ctypes on the libopus that PyAV's wheels bring along.

FFmpeg's wrapper of the same library has neither concealment nor in-band redundancy on its decoding
side, and those are what a lossy network is about. Names and numbers: libopus 1.6, `opus_defines.h`.

Encoders and decoders belong to one thread at a time.
"""

import ctypes
import ctypes.util
import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from duologue.codecs.media import CodecError, Int16Samples, MalformedDataError, MediaValueError

RATES = (8000, 12000, 16000, 24000, 48000)
"""What libopus takes and gives, in Hz."""
CLOCK_RATE = 48_000
"""Of RTP timestamps, whatever the audio's rate (RFC 7587, section 4.1)."""
MAX_FRAME_MS = 120
"""The longest packet (RFC 6716, section 3.2.5)."""

_APPLICATION_VOIP = 2048
_APPLICATION_LOW_DELAY = 2051
_SIGNAL_VOICE = 3001
_SET_BITRATE = 4002
_SET_MAX_BANDWIDTH = 4004
_WIDEBAND = 1103
_FULLBAND = 1105
_SET_COMPLEXITY = 4010
_SET_INBAND_FEC = 4012
_SET_PACKET_LOSS_PERC = 4014
_SET_DTX = 4016
_SET_SIGNAL = 4024
_RESET_STATE = 4028
_FORCE_MODE = 11002
_CELT = 1002
_ANY_MODE = -1000
_MAX_PACKET = 1275 * 3
_FRAME_TICKS = (
    *(480, 960, 1920, 2880) * 3,  # SILK
    *(480, 960) * 2,  # hybrid
    *(120, 240, 480, 960) * 4,  # CELT
)
"""By the first five bits of a packet."""


class OpusMissingError(CodecError):
    """There is no libopus: neither PyAV's nor the system's."""


@dataclass(frozen=True, slots=True)
class OpusSettings:
    """How speech is encoded. MediaValueError for a value out of its range."""

    bit_rate: int = 28_000
    """Bits a second, 6,000 to 128,000."""
    complexity: int = 5
    """0 (cheapest) to 10."""
    loss_percent: int = 5
    """Loss that is expected, 0 to 100: redundancy is made for it, out of the bit rate."""
    fec: bool = True
    """Whether a packet carries the one before it again, coarsely."""
    dtx: bool = True
    """Whether silence is sent as a packet of one or two bytes."""
    wideband: bool = False
    """Whether sound above 8 kHz is left out, which takes a fifth of the time less."""

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("bit rate", self.bit_rate, 6_000, 128_000),
            ("complexity", self.complexity, 0, 10),
            ("expected loss", self.loss_percent, 0, 100),
        ):
            if not low <= value <= high:
                raise MediaValueError(f"an Opus encoder's {name} is {low} to {high}, not {value}")


class OpusEncoder:
    """One stream of mono speech, for `rate` (one of RATES)."""

    def __init__(
        self, rate: int, settings: OpusSettings | None = None, *, low_delay: bool = False
    ) -> None:
        """MediaValueError for another rate, OpusMissingError without libopus.

        ``low_delay``: by CELT alone (RFC 6716, section 4.3), which takes a fourth of the time and,
        from 48 kb/s on, keeps more of the sound; it knows no redundancy and no DTX.
        """
        self._library = _library()
        self.rate = _checked_rate(rate)
        failure = ctypes.c_int()
        application = _APPLICATION_LOW_DELAY if low_delay else _APPLICATION_VOIP
        self._state: int | None = self._library.opus_encoder_create(
            rate, 1, application, ctypes.byref(failure)
        )
        if not self._state:
            raise CodecError(f"libopus made no encoder: error {failure.value}")
        self._control(_SET_SIGNAL, _SIGNAL_VOICE)
        self._packet = ctypes.create_string_buffer(_MAX_PACKET)
        self._hushed = False
        self._settings = settings or OpusSettings()
        self._apply(None, self._settings)

    @property
    def settings(self) -> OpusSettings:
        return self._settings

    def configure(self, settings: OpusSettings) -> None:
        """Change what differs, from the next frame on."""
        before, self._settings = self._settings, settings
        self._apply(before, settings)

    def adapt(self, *, loss_percent: int, complexity: int, wideband: bool) -> None:
        """Follow the network and the machine."""
        self.configure(
            replace(
                self._settings,
                loss_percent=loss_percent,
                complexity=complexity,
                wideband=wideband,
            )
        )

    def encode(self, samples: Int16Samples) -> bytes:
        """One packet for 2.5, 5, 10, 20, 40 or 60 ms. One of up to 2 bytes is DTX's and need not
        be sent. MediaValueError for another length or kind of samples."""
        if self._hushed:
            self._hushed = False
            self._control(_FORCE_MODE, _ANY_MODE)
        return self._encode(samples)

    def hush(self, samples: Int16Samples) -> bytes:
        """As `encode`, for sound that ends and the silence behind it.

        By CELT (RFC 6716, section 4.3), until `encode` is called: SILK (section 4.2) lowers its
        gain by a few dB every 5 ms only, so that a voice that breaks off could be heard into the
        next packet. Sound is never left to DTX, which takes a steady tone for nobody's.
        """
        if not self._hushed:
            self._hushed = True
            self._control(_FORCE_MODE, _CELT)
        if not self._settings.dtx or not samples.any():
            return self._encode(samples)
        self._control(_SET_DTX, 0)
        try:
            return self._encode(samples)
        finally:
            self._control(_SET_DTX, 1)

    def _encode(self, samples: Int16Samples) -> bytes:
        if samples.dtype != np.int16 or samples.ndim != 1:
            raise MediaValueError(f"Opus encodes mono int16, not {samples.dtype} {samples.shape}")
        # As bytes: ctypes takes their address at a tenth of what an array's costs.
        size: int = self._library.opus_encode(
            self._state, samples.tobytes(), len(samples), self._packet, _MAX_PACKET
        )
        if size < 0:
            raise MediaValueError(f"{len(samples)} samples at {self.rate} Hz: {_message(size)}")
        return ctypes.string_at(self._packet, size)

    def reset(self) -> None:
        """Forget what was encoded: silence of any length follows or lies behind."""
        self._control(_RESET_STATE)

    def _apply(self, before: OpusSettings | None, after: OpusSettings) -> None:
        for request, name in (
            (_SET_BITRATE, "bit_rate"),
            (_SET_COMPLEXITY, "complexity"),
            (_SET_INBAND_FEC, "fec"),
            (_SET_PACKET_LOSS_PERC, "loss_percent"),
            (_SET_DTX, "dtx"),
        ):
            value = int(getattr(after, name))
            if before is None or int(getattr(before, name)) != value:
                self._control(request, value)
        if before is None or before.wideband != after.wideband:
            self._control(_SET_MAX_BANDWIDTH, _WIDEBAND if after.wideband else _FULLBAND)

    def _control(self, request: int, *values: int) -> None:
        failure = self._library.opus_encoder_ctl(ctypes.c_void_p(self._state), request, *values)
        if failure:
            raise CodecError(f"libopus refused {request}: {_message(failure)}")

    def __del__(self) -> None:
        state, self._state = getattr(self, "_state", None), None
        if state:
            self._library.opus_encoder_destroy(state)


class OpusDecoder:
    """One stream, to mono at `rate` (one of RATES), whatever the sender encoded."""

    def __init__(self, rate: int) -> None:
        """MediaValueError for another rate, OpusMissingError without libopus."""
        self._library = _library()
        self.rate = _checked_rate(rate)
        failure = ctypes.c_int()
        self._state: int | None = self._library.opus_decoder_create(rate, 1, ctypes.byref(failure))
        if not self._state:
            raise CodecError(f"libopus made no decoder: error {failure.value}")
        self._samples = np.empty(rate * MAX_FRAME_MS // 1000, np.int16)
        self._address = self._samples.ctypes.data

    def decode(self, packet: bytes) -> Int16Samples:
        """The packet's samples; MalformedDataError if it is none (the stream can go on)."""
        if not packet:
            raise MalformedDataError("an empty packet is not Opus")
        return self._run(packet, len(packet), len(self._samples), 0)

    def recover(self, packet: bytes, samples: int) -> Int16Samples:
        """The `samples` just before `packet`, which was lost, from what `packet` says of them.

        Concealed where it says nothing. Call before `decode(packet)`. `samples` is a multiple of
        2.5 ms up to 120 ms, else MediaValueError.
        """
        self._check_length(samples)
        return self._run(packet, len(packet), samples, 1)

    def conceal(self, samples: int) -> Int16Samples:
        """A guess of what was lost, which goes on as before; it ends in noise, not in silence, so
        whoever asks for much of it fades it. `samples` as in `recover`."""
        self._check_length(samples)
        return self._run(None, 0, samples, 0)

    def _check_length(self, samples: int) -> None:
        if not 0 < samples <= len(self._samples) or samples * 400 % self.rate:
            raise MediaValueError(f"{samples} samples at {self.rate} Hz are not n times 2.5 ms")

    def _run(self, packet: bytes | None, size: int, room: int, recover: int) -> Int16Samples:
        count: int = self._library.opus_decode(
            self._state, packet, size, self._address, room, recover
        )
        if count < 0:
            raise MalformedDataError(f"not an Opus packet: {_message(count)}")
        return self._samples[:count].copy()

    def __del__(self) -> None:
        state, self._state = getattr(self, "_state", None), None
        if state:
            self._library.opus_decoder_destroy(state)


def packet_ticks(packet: bytes) -> int:
    """How long a packet lasts, in ticks of CLOCK_RATE (RFC 6716, section 3.1); MalformedDataError
    if it says that it lasts for nothing or for too long."""
    if not packet:
        raise MalformedDataError("an empty packet is not Opus")
    first = packet[0]
    form = first & 3
    frames = (packet[1] & 0x3F if len(packet) > 1 else 0) if form == 3 else 1 + (form > 0)
    ticks = frames * _FRAME_TICKS[first >> 3]
    if not 0 < ticks <= CLOCK_RATE * MAX_FRAME_MS // 1000:
        raise MalformedDataError(f"an Opus packet of {ticks} ticks")
    return ticks


def has_redundancy(packet: bytes) -> bool:
    """Whether the packet carries the one before it again (low bit-rate redundancy)."""
    present: int = _library().opus_packet_has_lbrr(packet, len(packet)) if packet else 0
    return present == 1


def _checked_rate(rate: int) -> int:
    if rate not in RATES:
        raise MediaValueError(f"Opus knows {RATES} Hz, not {rate}")
    return rate


def _message(code: int) -> str:
    text: bytes = _library().opus_strerror(code)
    return text.decode()


def library_files() -> Iterator[str]:
    """Where libopus may be: beside PyAV, as its wheels for Linux and macOS have it, then the
    system's."""
    spec = importlib.util.find_spec("av")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        package = Path(folder)
        for place in (package.parent / "av.libs", package / ".dylibs", package):
            yield from sorted(str(path) for path in place.glob("libopus[-.]*"))
    named = ctypes.util.find_library("opus")
    if named is not None:
        yield named


def open_library(names: Iterable[str]) -> ctypes.CDLL | None:
    """The first of these that can be loaded."""
    for name in names:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        _declare(library)
        return library
    return None


def _library() -> ctypes.CDLL:
    if _LIBRARY is None:
        raise OpusMissingError(
            "libopus was not found. It comes with PyAV's wheels (pip install av); "
            "with another PyAV, install the system's (apt install libopus0)."
        )
    return _LIBRARY


def _declare(library: ctypes.CDLL) -> None:
    pointer, number = ctypes.c_void_p, ctypes.c_int
    for name, result, arguments in (
        ("opus_encoder_create", pointer, [number, number, number, ctypes.POINTER(number)]),
        ("opus_decoder_create", pointer, [number, number, ctypes.POINTER(number)]),
        ("opus_encoder_destroy", None, [pointer]),
        ("opus_decoder_destroy", None, [pointer]),
        ("opus_encode", number, [pointer, ctypes.c_char_p, number, pointer, number]),
        ("opus_decode", number, [pointer, ctypes.c_char_p, number, pointer, number, number]),
        ("opus_packet_has_lbrr", number, [ctypes.c_char_p, number]),
        ("opus_strerror", ctypes.c_char_p, [number]),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    library.opus_encoder_ctl.restype = number


# When the module is imported, and not in an event loop: looking for a library reads the disk.
_LIBRARY = open_library(library_files())
