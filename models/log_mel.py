"""Log-mel features as Whisper's authors define them.

80 triangular bands on the Slaney mel scale over 0 to 8 kHz, power spectra of 400-sample periodic
Hann windows every 160 samples, centred, edges reflected; then the logarithm, floored 8 decades
below the loudest, scaled to about -1 to 1. Radford et al., "Robust Speech Recognition via
Large-Scale Weak Supervision" (2022), section 2.2; the constants are those of the released models.
"""

import numpy as np
import numpy.typing as npt

RATE = 16_000
HOP = 160
BANDS = 80

_WINDOW_LENGTH = 400
_HALF = _WINDOW_LENGTH // 2
_FLOOR = 1e-10
_LOG_FLOOR = float(np.log10(_FLOOR))


def log_mel(audio: npt.NDArray[np.float32], frames: int) -> npt.NDArray[np.float32]:
    """Features of shape (80, frames), float32, for audio at 16 kHz within -1 to 1.

    `frames` counts hops of 10 ms. Audio shorter than that is taken as followed by silence, whose
    frames cost nothing; audio beyond it is ignored. Raises ValueError for audio that is not one
    dimension or for fewer than one frame.
    """
    if audio.ndim != 1:
        raise ValueError(f"audio has one dimension, not {audio.ndim}")
    if frames < 1:
        raise ValueError(f"frames must be at least 1, not {frames}")
    length = frames * HOP
    audio = audio[:length].astype(np.float32, copy=False)
    # Frame i covers the samples around i * HOP; those past `sounding` see silence alone.
    sounding = min(frames, -(-(audio.size + _HALF) // HOP))
    needed = (sounding - 1) * HOP + _HALF
    padded = np.zeros(max(_HALF + needed, _WINDOW_LENGTH + 1), np.float32)
    body = min(audio.size, needed)
    padded[_HALF : _HALF + body] = audio[:body]
    padded[:_HALF] = padded[_WINDOW_LENGTH:_HALF:-1]
    if needed > length:
        end, extra = _HALF + length, needed - length
        padded[end : end + extra] = padded[end - 2 : end - 2 - extra : -1]
    windows = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW_LENGTH)[::HOP][:sounding]
    spectrum = np.fft.rfft(windows * _HANN, axis=-1)
    power = spectrum.real**2 + spectrum.imag**2
    bands = _MEL @ power.T

    features = np.full((BANDS, frames), _LOG_FLOOR, np.float32)
    np.log10(np.maximum(bands, _FLOOR), out=features[:, :sounding])
    np.maximum(features, features.max() - 8.0, out=features)
    features += 4.0
    features /= 4.0
    return features


def _mel_of_hertz(hertz: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Slaney's scale: linear below 1 kHz, logarithmic above."""
    above = 15.0 + np.log(np.maximum(hertz, 1000.0) / 1000.0) * 27.0 / np.log(6.4)
    return np.where(hertz < 1000.0, hertz * 3.0 / 200.0, above)


def _hertz_of_mel(mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    above = 1000.0 * np.exp((mel - 15.0) * np.log(6.4) / 27.0)
    return np.where(mel < 15.0, mel * 200.0 / 3.0, above)


def _mel_filters() -> npt.NDArray[np.float32]:
    """Shape (80, 201): each band a triangle of area 1 between its neighbours' centres."""
    low, high = _mel_of_hertz(np.array([0.0, RATE / 2]))
    corners = _hertz_of_mel(np.linspace(low, high, BANDS + 2))[:, None]
    bins = np.linspace(0.0, RATE / 2, _HALF + 1)[None, :]
    rising = (bins - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - bins) / (corners[2:] - corners[1:-1])
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return (triangles * 2.0 / (corners[2:] - corners[:-2])).astype(np.float32)


_HANN = np.hanning(_WINDOW_LENGTH + 1)[:-1].astype(np.float32)
_MEL = _mel_filters()
