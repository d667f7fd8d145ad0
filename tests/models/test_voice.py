from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from duologue.models.kokoro import VOICES
from duologue.models.voice import VoiceCatalogue, check_request, never

OPENAI = "alloy ash ballad coral echo sage shimmer verse marin cedar".split()


class Tone:
    """A synthesizer of two constant samples."""

    rate = 24_000

    def __init__(self, *voices: str) -> None:
        self.voices = voices

    def synthesize(
        self, text: str, *, voice: str, speed: float, cancelled: Callable[[], bool]
    ) -> npt.NDArray[np.float32]:
        return np.zeros(2, np.float32)


def test_a_voice_is_found_with_its_synthesizer() -> None:
    one, other = Tone("anna", "ben"), Tone("carl")
    catalogue = VoiceCatalogue([one, other])
    assert catalogue.names == ("anna", "ben", "carl")
    assert catalogue.find("carl").synthesizer is other
    assert catalogue.find(" Anna ").name == "anna"


def test_no_name_is_the_default() -> None:
    assert VoiceCatalogue([Tone("anna", "ben")]).find("").name == "anna"
    assert VoiceCatalogue([Tone("anna", "ben")], default="ben").find("").name == "ben"


def test_of_two_voices_with_one_name_the_first_has_it() -> None:
    one, other = Tone("anna"), Tone("anna")
    assert VoiceCatalogue([one, other]).find("anna").synthesizer is one


def test_each_name_of_openai_has_one_of_ours() -> None:
    catalogue = VoiceCatalogue([Tone(*VOICES)])
    found = {name: catalogue.find(name).name for name in OPENAI}
    assert found["marin"] == "af_heart"
    assert found["cedar"] == "am_michael"
    assert len(set(found.values())) == 8


def test_where_there_is_one_voice_every_name_is_it() -> None:
    catalogue = VoiceCatalogue([Tone("joe")])
    assert {catalogue.find(name).name for name in [*OPENAI, "", "nobody"]} == {"joe"}


def test_an_unknown_name_has_the_same_voice_every_time() -> None:
    first, second = VoiceCatalogue([Tone(*VOICES)]), VoiceCatalogue([Tone(*VOICES)])
    names = [f"voice-{index}" for index in range(100)]
    found = [first.find(name).name for name in names]
    assert found == [second.find(name.upper()).name for name in names]
    assert set(found) == set(VOICES)


def test_a_catalogue_without_voices_is_refused() -> None:
    with pytest.raises(ValueError, match="no synthesizer"):
        VoiceCatalogue([])


def test_a_default_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'zoe'.*anna"):
        VoiceCatalogue([Tone("anna")], default="zoe")


@pytest.mark.parametrize("speed", [0.25, 1.0, 1.5])
def test_speeds_in_range_are_taken(speed: float) -> None:
    check_request(Tone("anna"), "anna", speed)


@pytest.mark.parametrize("speed", [0.24, 1.51, float("nan")])
def test_other_speeds_are_refused(speed: float) -> None:
    with pytest.raises(ValueError, match="speed"):
        check_request(Tone("anna"), "anna", speed)


def test_another_synthesizers_voice_is_refused() -> None:
    with pytest.raises(ValueError, match="'ben'"):
        check_request(Tone("anna"), "ben", 1.0)


def test_never_is_false() -> None:
    assert not never()
