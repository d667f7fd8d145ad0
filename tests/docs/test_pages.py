"""What the README and the pages of docs/ name is there, and every setting is in them."""

import re
from pathlib import Path

import pytest

from duologue.web.setting_table import SETTINGS

ROOT = Path(__file__).parent.parent.parent
FOLDERS = (
    "codecs",
    "docs",
    "engines",
    "load_tests",
    "models",
    "realtime",
    "sessions",
    "tests",
    "web",
)
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
SOURCES = {path.name for folder in FOLDERS for path in ROOT.joinpath(folder).rglob("*.[pj][ys]")}
CODE_FILE = re.compile(r"[\w/.-]*\w\.(?:py|js)\b")


def words(page: Path) -> str:
    return FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The names that a forge gives to a page's headings."""
    headings = re.findall(r"^#+ (.*)$", words(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", words(page)):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_source_files_that_are_named_are_there(page: Path) -> None:
    for span in re.findall(r"`([^`\n]+)`", words(page)):
        for name in CODE_FILE.findall(span):
            assert Path(name).name in SOURCES, name


def test_every_setting_is_told() -> None:
    told = "".join(page.read_text() for page in PAGES)
    missing = [name for name in SETTINGS if not re.search(_names(name), told)]
    assert missing == []


def _names(setting: str) -> str:
    """The setting in code, or its flag."""
    return rf"`{setting}\b|--{setting.replace('_', '-')}\b"
