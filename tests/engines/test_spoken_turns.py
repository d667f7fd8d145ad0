"""Turns in speech that never stops."""

import numpy as np

from duologue.engines.spoken_turns import LONGEST_TICKS, PAUSE_TICKS, SpokenTurns

SILENT = np.zeros(1920, np.int16)
HISS = np.full(1920, 20, np.int16)
LOUD = np.full(1920, 3000, np.int16)


def test_sound_begins_a_turn_and_a_pause_ends_it() -> None:
    turns = SpokenTurns()
    assert [turns.push(SILENT, ""), turns.push(HISS, "")] == ["quiet", "quiet"]
    assert [turns.push(LOUD, ""), turns.push(LOUD, "")] == ["begins", "goes_on"]
    assert [turns.push(HISS, "") for _ in range(PAUSE_TICKS)] == ["goes_on"] * 9 + ["ends"]
    assert turns.push(SILENT, "") == "quiet"


def test_a_short_pause_is_part_of_the_turn() -> None:
    turns = SpokenTurns()
    turns.push(LOUD, "")
    for _ in range(3):
        assert {turns.push(SILENT, "") for _ in range(PAUSE_TICKS - 1)} == {"goes_on"}
        assert turns.push(LOUD, "") == "goes_on"


def test_text_without_sound_is_speech_to_come() -> None:
    turns = SpokenTurns()
    assert turns.push(SILENT, " well") == "begins"
    assert turns.push(SILENT, " ") == "goes_on"


def test_a_turn_that_does_not_end_is_cut() -> None:
    turns = SpokenTurns()
    said = [turns.push(LOUD, "") for _ in range(LONGEST_TICKS + 2)]
    assert said.count("ends") == 1
    assert said[LONGEST_TICKS] == "ends"
    assert said[-1] == "begins"


def test_a_turn_can_be_stopped() -> None:
    turns = SpokenTurns()
    turns.push(LOUD, "")
    turns.stop()
    assert turns.push(LOUD, "") == "begins"
