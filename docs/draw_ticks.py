"""Draws ``docs/ticks.json`` as SVG: ``python docs/draw_ticks.py``.

The file is what ``python -m load_tests ticks --json docs/ticks.json`` writes; ``ranks`` has the
rows of ``--cases --reference --ranks 1 2`` on a machine with two.
"""

import json
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

FOLDER = Path(__file__).parent
IMAGE = FOLDER / "images" / "ticks.svg"
LEFT, TOP, WIDTH, ROW = 250, 46, 480, 30
PERIOD_MS = 80.0

STYLE = """
  svg { --paper: #ffffff; --ink: #1f2328; --soft: #59636e; --ours: #3b6fd4; --theirs: #9aa4af;
        --limit: #1f2328; --period: #b3261e; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #0d1117; --ink: #e6edf3; --soft: #9aa4af; --ours: #6ea0ff; --theirs: #59636e;
          --limit: #e6edf3; --period: #ff8a80; }
  }
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--ink); }
  .paper { fill: var(--paper); }
  .name { text-anchor: end; }
  .soft { fill: var(--soft); font-size: 12px; }
  .ours { fill: var(--ours); }
  .theirs { fill: var(--theirs); }
  .limit { stroke: var(--limit); stroke-width: 2; }
  .period { stroke: var(--period); stroke-width: 1.5; stroke-dasharray: 5 4; }
"""

WINDOWS = {"full": "full windows", "young": "20 s old", "churn": "coming and going"}


def is_ours(row: dict[str, Any]) -> bool:
    return not row["who"].startswith("moshi")


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By sessions, ours before the reference's."""
    return sorted(rows, key=lambda row: (row["sessions"], not is_ours(row)))


def name(row: dict[str, Any]) -> str:
    who = "" if is_ours(row) else "moshi package, "
    kv = ", 8-bit keys" if row["kv"] == "fp8" else ""
    weights = "" if row["weights"] == "bf16" else f", {row['weights']} weights"
    devices = f", {row['who']}" if row["who"].endswith("devices") else ""
    return f"{who}{row['sessions']}, {WINDOWS[row['windows']]}{kv}{weights}{devices}"


def draw(rows: list[dict[str, Any]]) -> str:
    """Median ticks as bars, the 99th percentile beside them, what memory allows as a mark."""
    rows = ordered(rows)
    scale = WIDTH / (PERIOD_MS * 1.06)
    height = TOP + ROW * len(rows) + 34
    end = LEFT + PERIOD_MS * scale
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 40} {height}" '
        f'role="img" aria-label="Milliseconds of a tick">',
        f"<style>{STYLE}</style>",
        '<rect class="paper" width="100%" height="100%"/>',
        f'<text x="{LEFT}" y="24">Milliseconds of a tick, by sessions on an H200</text>',
        f'<line class="period" x1="{end:.1f}" x2="{end:.1f}" y1="{TOP - 8}" y2="{height - 26}"/>',
        f'<text class="soft" x="{end:.1f}" y="{height - 10}" text-anchor="middle">'
        "80: a frame</text>",
    ]
    for index, row in enumerate(rows):
        y = TOP + ROW * index
        kind = "ours" if is_ours(row) else "theirs"
        length = row["p50_ms"] * scale
        parts.append(f'<text class="name" x="{LEFT - 10}" y="{y + 15}">{escape(name(row))}</text>')
        parts.append(
            f'<rect class="{kind}" x="{LEFT}" y="{y + 2}" width="{length:.1f}" height="18" rx="2"/>'
        )
        if row["limit_ms"]:
            x = LEFT + row["limit_ms"] * scale
            parts.append(
                f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 1}" y2="{y + 23}"/>'
            )
        parts.append(
            f'<text class="soft" x="{LEFT + length + 8:.1f}" y="{y + 15}">'
            f"{row['p50_ms']:.1f} ({row['p99_ms']:.1f})</text>"
        )
    parts.append(
        f'<text class="soft" x="{LEFT}" y="{height - 10}">median (99th percentile); '
        "mark: what memory allows</text>"
    )
    return "\n".join([*parts, "</svg>", ""])


def drawing() -> str:
    measured = json.loads((FOLDER / "ticks.json").read_text())
    return draw(measured["ticks"] + [row for row in measured["ranks"] if row["who"] != "1 device"])


if __name__ == "__main__":
    IMAGE.write_text(drawing())
