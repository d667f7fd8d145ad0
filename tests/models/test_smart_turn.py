import numpy as np
import numpy.typing as npt
import pytest
import soxr

from duologue.models.kokoro import Kokoro
from duologue.models.smart_turn import SmartTurn
from duologue.models.weights import locate

pytestmark = pytest.mark.weights

PAUSE = np.zeros(3200, np.float32)


@pytest.fixture(scope="module")
def smart_turn() -> SmartTurn:
    return SmartTurn(locate("smart-turn") / "smart-turn-v3.2-cpu.onnx")


def test_a_whole_sentence_is_finished_and_its_beginning_is_not(
    smart_turn: SmartTurn, kokoro: Kokoro
) -> None:
    said = kokoro.synthesize("I would like to order a large pizza with extra cheese.")
    sound = soxr.resample(said, kokoro.rate, 16_000).astype(np.float32)
    whole = smart_turn.probability(np.concatenate([sound, PAUSE]))
    cut = smart_turn.probability(np.concatenate([sound[: int(sound.size * 0.6)], PAUSE]))
    assert 0.0 <= cut < 0.5 < whole <= 1.0


def test_only_the_last_eight_seconds_count(
    smart_turn: SmartTurn, sentence: npt.NDArray[np.float32]
) -> None:
    tail = np.concatenate([np.zeros(128_000, np.float32), sentence])[-128_000:]
    earlier = np.random.default_rng(0).standard_normal(16_000).astype(np.float32)
    assert smart_turn.probability(np.concatenate([earlier, tail])) == smart_turn.probability(tail)


@pytest.mark.parametrize("samples", [0, 1, 100])
def test_next_to_nothing_has_a_probability(smart_turn: SmartTurn, samples: int) -> None:
    assert 0.0 <= smart_turn.probability(np.zeros(samples, np.float32)) <= 1.0
