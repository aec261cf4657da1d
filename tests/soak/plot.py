"""Draws the series of a soak as small lines, one below the other, in an SVG made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .verdict import Verdict

WIDTH, HEIGHT, LEFT, WORDS = 520, 26, 290, 300
MOST = 60  # points of a line: more are not seen, and the picture is kept with the docs
FLAT, GROWS, INK = "#2a7f62", "#c2452d", "#1f2933"


def draw(verdicts: Sequence[Verdict], *, title: str) -> str:
    """Return the picture: each series from its least to its most, what grows in another colour."""
    rows = [_row(verdict, 40 + number * (HEIGHT + 6)) for number, verdict in enumerate(verdicts)]
    whole = f"{LEFT + WIDTH + WORDS} {50 + len(verdicts) * (HEIGHT + 6)}"
    style = f'font-family="DejaVu Sans, Verdana, sans-serif" font-size="11" fill="{INK}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole}" {style}>'
    return "\n".join([head, f'<text x="8" y="20" font-size="14">{escape(title)}</text>', *rows, "</svg>\n"])


def _row(verdict: Verdict, top: float) -> str:
    every = -(-len(verdict.series.points) // MOST)
    points = verdict.series.points[::every]
    begin, end = points[0][0], points[-1][0]
    low, high = min(value for _, value in points), max(value for _, value in points)
    across, up = (end - begin) or 1.0, (high - low) or 1.0
    line = " ".join(
        f"{LEFT + WIDTH * (at - begin) / across:.0f},{top + HEIGHT - HEIGHT * (value - low) / up:.1f}"
        for at, value in points
    )
    told = f"{low:.4g} to {high:.4g} {verdict.series.unit}; {verdict.words}"
    middle = top + HEIGHT * 0.7
    return (
        f'<text x="8" y="{middle:.0f}">{escape(verdict.series.name)}</text>'
        f'<polyline points="{line}" fill="none" stroke="{GROWS if verdict.grows else FLAT}" stroke-width="1.3"/>'
        f'<text x="{LEFT + WIDTH + 10}" y="{middle:.0f}">{escape(told)}</text>'
    )
