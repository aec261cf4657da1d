"""Small pictures as SVG: the last runs of a definition, its instants in a row, and a week as a heat map.

Pure functions: numbers and words go in, text comes out. Every word is escaped here, so a template may show the result as
it is. Colours come from classes in `tm.css`, never alone: each mark has a shape of its own and a title, and a picture as a
whole says in words what it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log1p

LEVELS = 4  # of a heat map, beside nothing at all
FULL, HALF, LOW = 1.0, 0.6, 0.25  # what went well is full, what did not run is low: seen without colours

# The tone of a state, and how high its mark is.
TONES: Mapping[str, tuple[str, float]] = {
    "completed": ("good", FULL), "succeeded": ("good", FULL),
    "failed": ("bad", FULL), "stale": ("bad", FULL), "timeout": ("bad", FULL), "orphaned": ("bad", FULL),
    "running": ("live", HALF), "queued": ("live", HALF),
    "pending": ("wait", HALF), "coming": ("wait", HALF), "overdue": ("warn", LOW),
    "missed": ("warn", LOW), "skipped": ("off", LOW), "coalesced": ("off", LOW), "cancelled": ("off", LOW),
    "expired": ("warn", LOW), "deduplicated": ("off", LOW), "interrupted": ("warn", HALF), "replaced": ("off", HALF),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """One run in a picture: its state, what a pointer shows, where it leads."""

    state: str
    title: str
    href: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One hour of a heat map."""

    count: int
    title: str
    href: str | None = None
    is_estimate: bool = False
    is_unknown: bool = False


def tone_of(state: str) -> str:
    """Return the tone of a state, for the colour of its badge."""
    return TONES.get(state, ("off", LOW))[0]


def said(states: Sequence[str]) -> str:
    """Return how many there are of each state, in words, the most frequent first."""
    return ", ".join(f"{count} {state}" for state, count in Counter(states).most_common())


def sparkline(marks: Sequence[Mark], *, slots: int = 20) -> str:
    """Return the last runs as little bars, oldest first; the newest stand at the right."""
    marks = marks[-slots:]
    width, height, step = slots * 6, 20, 6
    bars = [_bar(mark, x=(slots - len(marks) + place) * step, width=4, height=height) for place, mark in enumerate(marks)]
    words = f"last {len(marks)} instants, oldest first: {said([mark.state for mark in marks])}" if marks else "no runs yet"
    return _svg("tm-spark", width, height, words, bars)


def timeline(past: Sequence[Mark], coming: Sequence[Mark]) -> str:
    """Return the instants of a definition in a row, oldest first, with a line for now between what was and what comes."""
    step, height, bar = 14, 56, 40
    parts = [_bar(mark, x=place * step, width=10, height=bar, top=8) for place, mark in enumerate(past)]
    now = len(past) * step + 4
    parts.append(f'<line class="tm-now" x1="{now}" y1="2" x2="{now}" y2="{height - 2}"/>')
    begin = now + 10
    parts += [_bar(mark, x=begin + place * step, width=10, height=bar, top=8) for place, mark in enumerate(coming)]
    counts = f" ({said([mark.state for mark in past])})" if past else ""
    words = f"{len(past)} past instants{counts}, then {len(coming)} to come"
    return _svg("tm-timeline", begin + max(len(coming), 1) * step, height, words, parts)


def heat_map(columns: Sequence[tuple[str, Sequence[Cell | None]]], rows: Sequence[str], *, label: str) -> str:
    """Return counts by day (a column each) and hour (a row each); None is no hour of this map."""
    left, top, width, height = 42, 22, 52, 20
    most = max((cell.count for _, cells in columns for cell in cells if cell is not None), default=0)
    parts = [
        f'<text class="tm-axis" x="{left + place * width + width // 2}" y="14" text-anchor="middle">{escape(name)}</text>'
        for place, (name, _) in enumerate(columns)
    ]
    for number, row in enumerate(rows):
        y = top + number * height
        parts.append(f'<text class="tm-axis" x="{left - 6}" y="{y + 14}" text-anchor="end">{escape(row)}</text>')
        for place, (_, cells) in enumerate(columns):
            cell = cells[number]
            if cell is not None:
                parts.append(_cell(cell, most, x=left + place * width, y=y, width=width - 2, height=height - 2))
    return _svg("tm-heat", left + len(columns) * width, top + len(rows) * height, label, parts)


def level_of(count: int, most: int) -> int:
    """Return how warm a cell is, 0 to LEVELS; the scale is logarithmic, for one busy hour must not hide the others."""
    if count <= 0 or most <= 0:
        return 0
    return max(1, min(LEVELS, round(LEVELS * log1p(count) / log1p(most))))


def short_number(count: int) -> str:
    """Return a number that fits into a cell."""
    if count < 1_000:
        return str(count)
    return f"{count / 1_000:.1f}".removesuffix(".0") + "k" if count < 100_000 else f"{count // 1_000}k"


def _cell(cell: Cell, most: int, *, x: int, y: int, width: int, height: int) -> str:
    level = "x" if cell.is_unknown else str(level_of(cell.count, most))
    shown = "?" if cell.is_unknown else short_number(cell.count) if cell.count else ""
    text = f'<text class="tm-count" x="{x + width // 2}" y="{y + 13}" text-anchor="middle">{shown}</text>' if shown else ""
    title = f"<title>{escape(cell.title)}</title>"
    place = f'x="{x}" y="{y}" width="{width}" height="{height}" rx="3"'
    return _linked(cell.href, f'<g class="tm-cell tm-level-{level}">{title}<rect {place}/>{text}</g>')


def _bar(mark: Mark, *, x: int, width: int, height: int, top: int = 0) -> str:
    tone, share = TONES.get(mark.state, ("off", LOW))
    tall = max(3, round(height * share))
    y = top + height - tall
    body = f'<rect class="tm-bar" x="{x}" y="{y}" width="{width}" height="{tall}" rx="1.5"/>'
    if tone == "bad":  # a notch, so that what failed differs from what went well without its colour
        middle = x + width / 2
        body += f'<path class="tm-notch" d="M{x} {y}h{width}L{middle:g} {y + width * 0.9:g}z"/>'
    # The hit area is the whole column, so that a low mark can be pointed at.
    hit = f'<rect class="tm-hit" x="{x - 1}" y="{top}" width="{width + 2}" height="{height}"/>'
    return _linked(mark.href, f'<g class="tm-tone-{tone}"><title>{escape(mark.title)}</title>{hit}{body}</g>')


def _linked(href: str | None, inside: str) -> str:
    """Return a mark that leads somewhere; by keyboard the same links are reached in the table beside the picture."""
    return f'<a href="{escape(href)}" tabindex="-1">{inside}</a>' if href else inside


def _svg(name: str, width: int, height: int, words: str, parts: Sequence[str]) -> str:
    head = f'<svg class="{name}" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
    return f'{head} aria-label="{escape(words)}" preserveAspectRatio="xMinYMid meet">{"".join(parts)}</svg>'
