import numpy as np
import numpy.typing as npt
import pytest

from duologue.models.silero_vad import FRAME, SileroVad
from duologue.models.weights import locate

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def vad() -> SileroVad:
    return SileroVad(locate("silero-vad") / "silero_vad_v6.onnx")


def frames(sound: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return sound[: sound.size // FRAME * FRAME].reshape(-1, FRAME)


def test_speech_is_probable_where_someone_speaks(
    vad: SileroVad, sentence: npt.NDArray[np.float32]
) -> None:
    stream = vad.stream()
    probabilities = [stream.push(frame) for frame in frames(sentence)]
    assert np.mean(np.array(probabilities) > 0.5) > 0.7


def test_silence_and_noise_are_not_speech(vad: SileroVad) -> None:
    noise = np.random.default_rng(0).standard_normal(32_000).astype(np.float32) * 0.05
    for sound in (np.zeros(32_000, np.float32), noise):
        stream = vad.stream()
        assert max(stream.push(frame) for frame in frames(sound)) < 0.4


def test_streams_do_not_hear_each_other(vad: SileroVad, sentence: npt.NDArray[np.float32]) -> None:
    alone = vad.stream()
    expected = [alone.push(frame) for frame in frames(sentence)]
    one, other = vad.stream(), vad.stream()
    mixed = []
    for frame in frames(sentence):
        other.push(np.zeros(FRAME, np.float32))
        mixed.append(one.push(frame))
    assert mixed == expected


def test_a_reset_stream_is_as_new(vad: SileroVad, sentence: npt.NDArray[np.float32]) -> None:
    stream = vad.stream()
    first = [stream.push(frame) for frame in frames(sentence)]
    stream.reset()
    assert [stream.push(frame) for frame in frames(sentence)] == first


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf, 1e30])
def test_a_broken_sample_does_not_deafen_the_stream(
    vad: SileroVad, sentence: npt.NDArray[np.float32], poison: float
) -> None:
    stream = vad.stream()
    broken = np.zeros(FRAME, np.float32)
    broken[7] = poison
    with np.errstate(over="ignore"):
        stream.push(broken)
    probabilities = [stream.push(frame) for frame in frames(sentence)]
    assert np.mean(np.array(probabilities) > 0.5) > 0.7


def test_a_frame_of_another_length_is_refused(vad: SileroVad) -> None:
    with pytest.raises(ValueError, match="512 samples"):
        vad.stream().push(np.zeros(160, np.float32))
