"""The results as people and programs read them: one table on the screen, and JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from rich.table import Table

from .figures import Figure, Size, as_data, from_data, short

PACKAGES = ("celery", "kombu", "SQLAlchemy", "psycopg", "redis", "procrastinate", "pgqueuer", "asyncpg")
MARKS = {True: "[green]✓[/green]", False: "[red]✗[/red]", None: ""}
TITLE = "Medians of interleaved rounds; a ratio is times as fast (or as small), and all that means something elsewhere"
LEFT = ("measured", "against")

Results = Mapping[str, Sequence[Figure]]


def table_of(results: Results) -> Table:
    """Return all figures as one table."""
    table = Table(title=TITLE)
    for heading in ("measured", "median", "n", "ratio", "middle half", "by CPU", "wanted", "", "against"):
        table.add_column(heading, justify="left" if heading in LEFT else "right")
    for name, figures in results.items():
        table.add_section()
        table.add_row(f"[bold]{name}[/bold]")
        for figure in figures:
            table.add_row(*_cells(figure))
    return table


def _cells(figure: Figure) -> list[str]:
    return [
        figure.what,
        f"{short(figure.value)} {figure.unit}",
        str(figure.samples),
        f"[bold]{short(figure.ratio)}[/bold]" if figure.ratio is not None else "",
        f"{short(figure.low)}–{short(figure.high)}" if figure.low is not None else "",
        short(figure.cpu_ratio),
        figure.wanted,
        MARKS[figure.reached],
        figure.against or "",
    ]


def as_json(results: Results, *, size: Size) -> dict[str, Any]:
    """Return the figures with what they were measured on."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "size": size,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": {package: _version(package) for package in PACKAGES},
        "benchmarks": {name: [as_data(figure) for figure in figures] for name, figures in results.items()},
    }


def from_json(data: Mapping[str, Any]) -> dict[str, list[Figure]]:
    """Return the figures that were written."""
    return {name: [from_data(figure) for figure in figures] for name, figures in data["benchmarks"].items()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a run without that peer
        return None
