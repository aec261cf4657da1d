"""Draws the figures with a target and writes them into the page about speed: `python -m benchmarks.plot`.

Both come from `benchmarks/results.json` alone. The plot shows ratios, which mean something on another machine, and limits as
shares of what is allowed; it has no date and no random names, so the same results draw the same file. Its description
carries a digest of what was drawn, by which a test sees whether plot and results agree.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .figures import Figure, Size, short
from .report import from_json

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results.json"
PAGE = ROOT / "docs" / "explanation" / "speed.md"
PLOT = ROOT / "docs" / "speed.svg"
BEGIN, END = "<!-- results: written by python -m benchmarks.plot -->", "<!-- end of results -->"
MARKS = {True: "✓", False: "**✗**", None: ""}

REACHED, MISSED, TARGET, INK, GRID = "#2a7f62", "#c2452d", "#1f2933", "#1f2933", "#d9dee3"
STYLE = {
    "svg.hashsalt": "celery_tm",
    "svg.fonttype": "none",  # text stays text: it can be searched, read aloud and scaled
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def main() -> int:
    """Draw the plot and write the page's tables."""
    data = json.loads(RESULTS.read_text(encoding="utf-8"))
    draw(data, PLOT)
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), data), encoding="utf-8")
    print(f"written: {PLOT.relative_to(ROOT)}, {PAGE.relative_to(ROOT)}")  # noqa: T201
    return 0


# The page


def with_tables(page: str, data: Mapping[str, Any]) -> str:
    """Return the page with the results between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not after:
        raise SystemExit(f"the page needs the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{_tables(data)}\n\n{END}{after}"


def _tables(data: Mapping[str, Any]) -> str:
    figures = [figure for part in from_json(data).values() for figure in part]
    compared = [figure for figure in figures if figure.ratio is not None and figure.at_least is None]
    extras = [figure for figure in compared if figure.at_most is None and not figure.what.startswith(" ")]
    return "\n\n".join(
        [
            _origin(data),
            _table(("what", "measured", "wanted", ""), [_row(figure) for figure in wanted_of(data)]),
            "Beside these, without a target:",
            _table(("what", "times as fast", "as"), [(f.what, short(f.ratio), f.against) for f in extras]),
        ]
    )


def _origin(data: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in data["packages"].items() if number)
    small = [name for name, part in data["benchmarks"].items() if part["size"] != Size.FULL]
    less = f" Not in full size: {', '.join(small)}." if small else ""
    return f"Measured on {data['cores']} cores ({data['machine']}), Python {data['python']}, {versions}.{less}"


def _row(figure: Figure) -> tuple[str, str, str, str]:
    if figure.at_least is not None:
        return figure.what, f"{short(figure.ratio)} × {figure.against}", figure.wanted, MARKS[figure.reached]
    return figure.what, f"{short(figure.value)} {figure.unit}".strip(), figure.wanted, MARKS[figure.reached]


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell).strip() for cell in line)} |" for line in lines)


# The plot


def wanted_of(data: Mapping[str, Any]) -> list[Figure]:
    """Return the figures that have a target."""
    return [figure for part in from_json(data).values() for figure in part if figure.reached is not None]


def digest_of(data: Mapping[str, Any]) -> str:
    """Return a fingerprint of what is drawn."""
    drawn = [(figure.what, figure.against, figure.ratio, figure.value, figure.wanted) for figure in wanted_of(data)]
    return hashlib.sha256(json.dumps(drawn).encode()).hexdigest()[:16]


def draw(data: Mapping[str, Any], path: Path) -> None:
    """Draw ratios against their targets, and below them limits by how much of them is used."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    figures = wanted_of(data)
    ratios = [figure for figure in figures if figure.at_least is not None]
    limits = [figure for figure in figures if figure.at_most]
    with mpl.rc_context(STYLE):
        canvas = Canvas(figsize=(9.5, 1.3 + 0.35 * len(figures)), layout="constrained")
        canvas.get_layout_engine().set(h_pad=0.12, w_pad=0.12)
        above, below = canvas.subplots(2, 1, height_ratios=[len(ratios), len(limits)])
        _draw_ratios(above, ratios)
        _draw_limits(below, limits)
        metadata = {"Date": None, "Creator": None, "Description": f"drawn from {digest_of(data)}"}
        canvas.savefig(path, metadata=metadata if path.suffix == ".svg" else None, dpi=110)


def _draw_ratios(axes: Any, figures: Sequence[Figure]) -> None:
    labels = [f"{figure.what}\nagainst {figure.against}" for figure in figures]
    values = [figure.ratio or 0.0 for figure in figures]
    targets = [figure.at_least or 0.0 for figure in figures]
    _frame(
        axes, labels, [*values, *targets], "times as fast, or as small; right of the upright mark is what is wanted", "{} ×"
    )
    axes.axvline(1, color=TARGET, linewidth=0.8, linestyle=(0, (2, 3)), zorder=1)
    _mark(axes, figures, values, targets, [f"{short(value)} ×" for value in values])


def _draw_limits(axes: Any, figures: Sequence[Figure]) -> None:
    labels = [f"{figure.what}\nat most {short(figure.at_most)} {figure.unit}" for figure in figures]
    values = [figure.value / (figure.at_most or 1.0) for figure in figures]
    _frame(axes, labels, [*values, 1.0], "times what is allowed; left of the upright mark is within it", "{}")
    _mark(axes, figures, values, [1.0] * len(values), [short(value) for value in values])


def _frame(axes: Any, labels: Sequence[str], shown: Sequence[float], told: str, tick: str) -> None:
    axes.set_yticks(range(len(labels)), labels, linespacing=1.2, fontsize=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xscale("log")
    low, high = min(shown) / 2, max(shown) * 2
    steps = [step * 10.0**power for power in range(-4, 5) for step in (1, 2, 5)]
    inside = [step for step in steps if low <= step <= high]
    axes.set_xticks(inside, [tick.format(short(step)) for step in inside], fontsize=8)
    axes.set_xlim(low, high)
    axes.minorticks_off()
    axes.set_xlabel(f"{told} (log scale)", fontsize=8.5)
    axes.grid(axis="x", color=GRID, linewidth=0.8, zorder=0)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _mark(
    axes: Any, figures: Sequence[Figure], values: Sequence[float], targets: Sequence[float], told: Sequence[str]
) -> None:
    for row, (figure, value, target, text) in enumerate(zip(figures, values, targets, told, strict=True)):
        colour = REACHED if figure.reached else MISSED
        axes.plot([target, value], [row, row], color=colour, linewidth=2.2, alpha=0.45, zorder=2, solid_capstyle="butt")
        axes.plot([target], [row], marker="|", markersize=15, markeredgewidth=2.4, color=TARGET, zorder=3)
        axes.plot([value], [row], marker="o", markersize=7, color=colour, zorder=4)
        side = 1 if value >= target else -1
        place = {"xytext": (9 * side, 0), "textcoords": "offset points", "ha": "left" if side > 0 else "right"}
        axes.annotate(text, (value, row), va="center", fontsize=8.5, color=colour, fontweight="bold", **place)


if __name__ == "__main__":
    sys.exit(main())
