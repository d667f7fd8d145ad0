import numpy as np
import numpy.typing as npt
import pytest

from duologue.models.log_mel import BANDS, HOP, RATE, log_mel


def noise(samples: int) -> npt.NDArray[np.float32]:
    return (np.random.default_rng(1).standard_normal(samples) * 0.1).astype(np.float32)


def _filters() -> npt.NDArray[np.float64]:
    """The triangles of the Slaney mel scale, point by point."""

    def hertz(mel: float) -> float:
        return mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)

    top = 15 + 27 * np.log(8000 / 1000) / np.log(6.4)
    corners = [hertz(top * index / 81) for index in range(82)]
    filters = np.zeros((BANDS, 201))
    for band in range(BANDS):
        left, centre, right = corners[band : band + 3]
        for index in range(201):
            hz = index * 40.0
            rise, fall = (hz - left) / (centre - left), (right - hz) / (right - centre)
            filters[band, index] = max(0.0, min(rise, fall)) * 2 / (right - left)
    return filters


FILTERS = _filters()
FOURIER = np.exp(-2j * np.pi * np.outer(np.arange(201), np.arange(400)) / 400)


def slow_band_energies(
    audio: npt.NDArray[np.float32], frame: int, length: int
) -> npt.NDArray[np.float64]:
    """One frame's band energies straight from the definitions."""
    whole = np.zeros(length)
    whole[: audio.size] = audio
    around = np.abs(np.arange(frame * HOP - 200, frame * HOP + 200))
    around = np.where(around >= length, 2 * (length - 1) - around, around)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    return FILTERS @ np.abs(FOURIER @ (whole[around] * window)) ** 2


@pytest.mark.parametrize("frame", [0, 1, 30, 49, 50, 51, 99])
def test_features_equal_those_of_a_direct_fourier_sum(frame: int) -> None:
    audio = noise(8000)
    features = log_mel(audio, 100)
    loudest = np.log10(max(slow_band_energies(audio, f, 16000).max() for f in range(0, 51)))
    direct = np.log10(np.maximum(slow_band_energies(audio, frame, 16000), 1e-10))
    expected = (np.maximum(direct, loudest - 8) + 4) / 4
    assert np.abs(features[:, frame] - expected).max() < 2e-4


def test_the_last_frame_reflects_the_end_of_audio_that_fills_the_window() -> None:
    audio = noise(16000)
    direct = (np.log10(slow_band_energies(audio, 99, 16000)) + 4) / 4
    assert np.abs(log_mel(audio, 100)[:, 99] - direct).max() < 2e-4


def test_audio_that_is_short_is_followed_by_silence() -> None:
    audio = noise(4000)
    padded = np.concatenate([audio, np.zeros(12000, np.float32)])
    assert np.allclose(log_mel(audio, 100), log_mel(padded, 100), atol=1e-5)


def test_audio_beyond_the_frames_is_ignored() -> None:
    audio = noise(RATE)
    assert np.array_equal(log_mel(audio, 50), log_mel(audio[:8000], 50))


@pytest.mark.parametrize("samples", [0, 1, 2, 199, 200, 201, 400])
def test_the_shortest_sounds_have_features(samples: int) -> None:
    features = log_mel(noise(samples), 20)
    assert features.shape == (BANDS, 20)
    assert features.dtype == np.float32
    assert np.isfinite(features).all()


def test_audio_of_two_dimensions_is_refused() -> None:
    with pytest.raises(ValueError, match="one dimension"):
        log_mel(np.zeros((2, 100), np.float32), 10)


def test_no_frames_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        log_mel(noise(100), 0)
