"""The pictures of the tables: whole, readable by themselves, and up to date."""

import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"
SCRIPT = runpy.run_path(str(DOCS / "draw_turns.py"))
DRAWINGS = SCRIPT["drawings"]()


@pytest.mark.parametrize("name", DRAWINGS)
def test_the_picture_in_the_folder_shows_the_tables_of_today(name):
    drawn = (DOCS / "images" / name).read_text()
    assert drawn == DRAWINGS[name], "run: python docs/draw_turns.py"


def test_no_picture_is_left_of_a_table_that_is_gone():
    assert {path.name for path in (DOCS / "images").glob("turns*.svg")} == set(DRAWINGS)


@pytest.mark.parametrize("name", SCRIPT["PICTURES"])
def test_every_state_has_its_place_and_every_bend_its_arrow(name):
    picture = SCRIPT["PICTURES"][name]
    assert set(picture.places) == set(picture.table)
    arrows = {(state, after) for state, row in picture.table.items() for after in row.values()}
    assert set(picture.bends) | set(picture.labels) <= arrows


@pytest.mark.parametrize("name", SCRIPT["PICTURES"])
def test_every_signal_of_the_table_is_written_on_an_arrow(name):
    picture = SCRIPT["PICTURES"][name]
    signals = sorted(signal.value for row in picture.table.values() for signal in row)
    written = [
        element.text
        for element in ElementTree.fromstring(DRAWINGS[name]).iter()
        if element.get("class") == "signal"
    ]
    assert sorted(written) == signals


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_needs_nothing_from_elsewhere_and_knows_the_dark(name):
    text = DRAWINGS[name]
    assert "prefers-color-scheme: dark" in text
    assert "href" not in text and "<script" not in text and "url(" not in text
