"""The picture of ticks shows the figures that are kept beside it."""

import runpy
from pathlib import Path
from xml.etree import ElementTree

DOCS = Path(__file__).parent.parent.parent / "docs"
SCRIPT = runpy.run_path(str(DOCS / "draw_ticks.py"))


def test_the_picture_in_the_folder_shows_the_figures_of_today() -> None:
    drawn = (DOCS / "images" / "ticks.svg").read_text()
    assert drawn == SCRIPT["drawing"](), "run: python docs/draw_ticks.py"


def test_every_figure_has_its_bar() -> None:
    root = ElementTree.fromstring(SCRIPT["drawing"]())
    bars = [rect for rect in root.findall(".//{*}rect") if rect.get("class") in ("ours", "theirs")]
    assert len(bars) == 15
    assert all(float(bar.get("width", "0")) > 10 for bar in bars)
