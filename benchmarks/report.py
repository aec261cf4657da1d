"""The results as people and programs read them: one table on the screen, and JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
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


def as_json(results: Results, *, size: Size, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the figures with what they were measured on; of benchmarks that did not run now, as they were `before`."""
    at = datetime.now(UTC).isoformat(timespec="seconds")
    now = {
        name: {"at": at, "size": size, "figures": [as_data(figure) for figure in figures]}
        for name, figures in results.items()
    }
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": {package: _version(package) for package in PACKAGES},
        "benchmarks": {**(before["benchmarks"] if before else {}), **now},
    }


def from_json(data: Mapping[str, Any]) -> dict[str, list[Figure]]:
    """Return the figures that were written."""
    return {name: [from_data(figure) for figure in part["figures"]] for name, part in data["benchmarks"].items()}


def write_json(path: Path, results: Results, *, size: Size) -> None:
    """Write the figures to a file, and leave in it those of other benchmarks."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    path.write_text(json.dumps(as_json(results, size=size, before=before), indent=2) + "\n", encoding="utf-8")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a run without that peer
        return None
