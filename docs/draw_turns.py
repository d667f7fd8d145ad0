"""Draws the tables of ``sessions/turns.py`` as SVG: ``python docs/draw_turns.py``.

Which arrows there are comes from the tables alone; where the states stand is said here. The
pictures follow the reader's light or dark setting by themselves.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from duologue.sessions.session_config import TurnPolicy
from duologue.sessions.turns import (
    ASSISTANT,
    CONNECTION,
    COUPLINGS,
    GENERATION,
    USER,
    Assistant,
    Connection,
    Generation,
    User,
)

IMAGES = Path(__file__).parent / "images"
MARGIN = 24
STATE_WIDTH, STATE_HEIGHT = 132, 40
LINE = 16

Point = tuple[float, float]

STYLE = """
  svg { --paper: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #818b98; --fill: #eef3fb;
        --edge: #3b6fd4; --first: #dbe8ff; --yield: #b3261e; --judge: #7a4fbf; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9aa4af; --line: #7d8590; --fill: #161f2e;
          --edge: #6ea0ff; --first: #1f3357; --yield: #ff8a80; --judge: #c4a1ff; }
  }
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--ink); }
  .state { fill: var(--fill); stroke: var(--edge); stroke-width: 1.5; }
  .first { fill: var(--first); stroke-width: 2.5; }
  .name { font-weight: 600; text-anchor: middle; }
  .arrow { fill: none; stroke: var(--line); stroke-width: 1.5; }
  .tip { fill: var(--line); }
  .signal { font-size: 12px; fill: var(--soft); text-anchor: middle;
            paint-order: stroke; stroke: var(--paper); stroke-width: 5px; stroke-linejoin: round; }
  .paper { fill: var(--paper); }
  .cell { fill: none; stroke: var(--line); stroke-width: 1; }
  .left { text-anchor: start; }
  .none { fill: var(--soft); text-anchor: middle; }
  .yield { fill: var(--yield); }
  .judge { fill: var(--judge); }
"""


@dataclass(frozen=True)
class Picture:
    """A machine: its table, where each state stands, and how far some arrows bend.

    Places are the middles of the states. A positive bend is to the left of the arrow's way; the
    bends that are not given keep two arrows between the same states apart. A label stands in the
    middle of its arrow, or at another share of its way.
    """

    title: str
    table: Mapping[Any, Mapping[Any, Any]]
    places: Mapping[Any, Point]
    bends: Mapping[tuple[Any, Any], float] = field(default_factory=dict)
    labels: Mapping[tuple[Any, Any], float] = field(default_factory=dict)


PICTURES: Mapping[str, Picture] = {
    "turns-connection.svg": Picture(
        "The connection",
        CONNECTION,
        {
            Connection.ATTACHED: (90, 90),
            Connection.DETACHED: (90, 290),
            Connection.CLOSING: (350, 90),
            Connection.FAILED: (350, 290),
            Connection.CLEANUP_FAILED: (590, 190),
            Connection.CLOSED: (830, 190),
        },
        {
            (Connection.CLOSING, Connection.CLOSED): 60,
            (Connection.FAILED, Connection.CLOSED): -60,
            (Connection.CLOSING, Connection.FAILED): 0,
        },
        {
            (Connection.ATTACHED, Connection.FAILED): 0.78,
            (Connection.DETACHED, Connection.CLOSING): 0.78,
        },
    ),
    "turns-user.svg": Picture(
        "The user",
        USER,
        {User.SILENT: (90, 90), User.SPEAKING: (340, 90), User.PAUSING: (590, 90)},
        {(User.PAUSING, User.SILENT): -110},
    ),
    "turns-assistant.svg": Picture(
        "The assistant, as it is heard",
        ASSISTANT,
        {
            Assistant.QUIET: (90, 190),
            Assistant.THINKING: (340, 190),
            Assistant.SPEAKING: (590, 190),
            Assistant.DUCKED: (840, 190),
            Assistant.YIELDING: (465, 360),
        },
        {
            (Assistant.SPEAKING, Assistant.QUIET): -85,
            (Assistant.DUCKED, Assistant.QUIET): -150,
            (Assistant.YIELDING, Assistant.QUIET): 50,
            (Assistant.DUCKED, Assistant.YIELDING): 45,
            (Assistant.SPEAKING, Assistant.YIELDING): 0,
        },
    ),
    "turns-generation.svg": Picture(
        "The generation, as the engine works",
        GENERATION,
        {
            Generation.OPEN: (90, 80),
            Generation.CANCELLING: (340, 80),
            Generation.CLOSED: (590, 80),
        },
        {(Generation.OPEN, Generation.CLOSED): -80},
    ),
}
COUPLING = "turns-coupling.svg"


def drawings() -> dict[str, str]:
    """The text of each file, by its name."""
    made = {name: draw(picture) for name, picture in PICTURES.items()}
    made[COUPLING] = draw_coupling()
    return made


# -- machines -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arrow:
    """A quadratic curve from the edge of one state to that of another."""

    start: Point
    control: Point
    end: Point
    label: tuple[str, ...]
    label_at: float

    def at(self, t: float) -> Point:
        (ax, ay), (bx, by), (cx, cy) = self.start, self.control, self.end
        u = 1 - t
        return (
            u * u * ax + 2 * u * t * bx + t * t * cx,
            u * u * ay + 2 * u * t * by + t * t * cy,
        )


def draw(picture: Picture) -> str:
    arrows = _arrows(picture)
    first = next(iter(picture.table))
    parts = []
    for arrow in arrows:
        (ax, ay), (bx, by), (cx, cy) = arrow.start, arrow.control, arrow.end
        parts.append(
            f'<path class="arrow" d="M{ax:.1f} {ay:.1f}Q{bx:.1f} {by:.1f} {cx:.1f} {cy:.1f}"/>'
        )
        parts.append(_tip(arrow))
    for state, (x, y) in picture.places.items():
        kind = "state first" if state is first else "state"
        parts.append(
            f'<rect class="{kind}" x="{x - STATE_WIDTH / 2:.0f}" y="{y - STATE_HEIGHT / 2:.0f}" '
            f'width="{STATE_WIDTH}" height="{STATE_HEIGHT}" rx="8"/>'
        )
        parts.append(_text("name", x, y + 5, state.value))
    points = list(picture.places.values())
    for arrow in arrows:
        points.append(arrow.at(0.5))
        x, y = arrow.at(arrow.label_at)
        top = y + 4 - LINE * (len(arrow.label) - 1) / 2
        for line, words in enumerate(arrow.label):
            parts.append(_text("signal", x, top + LINE * line, words))
    low = min(y for _, y in points) - STATE_HEIGHT / 2
    width = max(x for x, _ in picture.places.values()) + STATE_WIDTH / 2 + MARGIN
    height = max(y for _, y in points) + STATE_HEIGHT / 2 + MARGIN
    return _svg(picture.title, 0, low - MARGIN, width, height - low + MARGIN, parts)


def _arrows(picture: Picture) -> list[Arrow]:
    signals: dict[tuple[Enum, Enum], list[str]] = {}
    for state, row in picture.table.items():
        for signal, after in row.items():
            signals.setdefault((state, after), []).append(signal.value)
    arrows = []
    for (state, after), names in signals.items():
        usual = 26.0 if (after, state) in signals else 0.0
        bend = picture.bends.get((state, after), usual)
        a, b = picture.places[state], picture.places[after]
        start, control, end = _curve(a, b, bend)
        label_at = picture.labels.get((state, after), 0.5)
        arrows.append(Arrow(start, control, end, tuple(names), label_at))
    return arrows


def _curve(a: Point, b: Point, bend: float) -> tuple[Point, Point, Point]:
    length = math.dist(a, b)
    across = ((b[1] - a[1]) / length, (a[0] - b[0]) / length)
    middle = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2)
    control = (middle[0] + 2 * bend * across[0], middle[1] + 2 * bend * across[1])
    return _edge(a, control, 2), control, _edge(b, control, 7)


def _edge(middle: Point, towards: Point, gap: float) -> Point:
    """Where the way from the middle of a state leaves it, and a little further."""
    dx, dy = towards[0] - middle[0], towards[1] - middle[1]
    length = math.hypot(dx, dy)
    across = abs(dx) / (STATE_WIDTH / 2), abs(dy) / (STATE_HEIGHT / 2)
    share = 1 / max(*across, 1e-9) + gap / length
    return middle[0] + dx * share, middle[1] + dy * share


def _tip(arrow: Arrow) -> str:
    (bx, by), (cx, cy) = arrow.control, arrow.end
    length = math.dist(arrow.control, arrow.end)
    dx, dy = (cx - bx) / length, (cy - by) / length
    points = (
        (cx + 6 * dx, cy + 6 * dy),
        (cx - 3 * dx - 4.5 * dy, cy - 3 * dy + 4.5 * dx),
        (cx - 3 * dx + 4.5 * dy, cy - 3 * dy - 4.5 * dx),
    )
    shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon class="tip" points="{shown}"/>'


# -- the coupling ---------------------------------------------------------------------------


def draw_coupling() -> str:
    """What the assistant does about an overlap: a row for each policy and state of the user."""
    first, column, row = 260, 104, 34
    users = [user for user in User if any(user in pair for c in COUPLINGS.values() for pair in c)]
    rows = [(policy, user) for policy in TurnPolicy for user in users]
    width = MARGIN + first + column * len(Assistant) + MARGIN
    parts = [_text("left name", MARGIN, 60, "policy, and the user is …")]
    for index, state in enumerate(Assistant):
        x = MARGIN + first + column * (index + 0.5)
        parts.append(_text("name", x, 60, state.value))
    for line, (policy, user) in enumerate(rows):
        top = 74 + row * line
        label = f"{policy.value.replace('_', ' ')}, {user.value}"
        parts.append(_text("left", MARGIN, top + row / 2 + 5, label))
        for index, state in enumerate(Assistant):
            x = MARGIN + first + column * index
            parts.append(f'<rect class="cell" x="{x}" y="{top}" width="{column}" height="{row}"/>')
            reaction = COUPLINGS[policy].get((user, state))
            kind = f"name {reaction.value}" if reaction else "none"
            words = reaction.value if reaction else "–"
            parts.append(_text(kind, x + column / 2, top + row / 2 + 5, words))
    title = "What the assistant does when the user speaks"
    parts.append(_text("left name", MARGIN, 30, title))
    return _svg(title, 0, 0, width, 74 + row * len(rows) + MARGIN, parts)


# -- SVG ------------------------------------------------------------------------------------


def _text(kind: str, x: float, y: float, words: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _svg(title: str, x: float, y: float, width: float, height: float, parts: list[str]) -> str:
    box = f"{x:.0f} {y:.0f} {width:.0f} {height:.0f}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{box}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" rx="6"/>',
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    for name, text in drawings().items():
        (IMAGES / name).write_text(text)
