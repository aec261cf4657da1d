"""Lists and runs benchmarks by name: `python -m benchmarks tick --quick --json results.json`.

It proves nothing by itself: each benchmark's module says what its figures show.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .harness import Figure

# A benchmark is a module here with `run(quick, say) -> list[Figure]`; the first line of its docstring says what it proves.
BENCHMARKS = ("tick", "worker")
PACKAGES = ("celery", "kombu", "SQLAlchemy", "psycopg", "redis")


def main() -> int:
    """Run what was asked for, print one table and write JSON where wanted."""
    wanted = _read_arguments()
    console = Console(width=None if sys.stdout.isatty() else 150)
    if wanted.list:
        for name in BENCHMARKS:
            console.print(f"[bold]{name}[/bold]  {(_module(name).__doc__ or '').splitlines()[0]}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that `kill` cleans up as Ctrl-C does
    results: dict[str, list[Figure]] = {}
    started = time.monotonic()
    try:
        for name in wanted.names or BENCHMARKS:
            results[name] = _module(name).run(quick=wanted.quick, say=_teller(console, started))
    except KeyboardInterrupt:
        console.print("interrupted; what was made is removed")
        return 130
    console.print(table_of(results))
    if wanted.json:
        wanted.json.write_text(json.dumps(as_json(results, quick=wanted.quick), indent=2) + "\n", encoding="utf-8")
        console.print(f"written to {wanted.json}")
    return 0


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run, all if none: {', '.join(BENCHMARKS)}")
    parser.add_argument("--list", action="store_true", help="say which there are and what they prove")
    parser.add_argument("--quick", action="store_true", help="smaller sizes: minutes become seconds")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures to this file")
    wanted = parser.parse_args()
    for name in wanted.names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}; there is {', '.join(BENCHMARKS)}")
    return wanted


def _module(name: str) -> Any:
    return import_module(f".{name}", __package__)


def _teller(console: Console, started: float) -> Callable[[str], None]:
    return lambda text: console.print(f"[dim]{time.monotonic() - started:6.1f}s[/dim] {text}")


def table_of(results: Mapping[str, Sequence[Figure]]) -> Table:
    """Return all figures as one table."""
    table = Table(title="Medians of interleaved measurements; only the ratios mean something on another machine")
    for heading in ("measured", "median", "p99", "n", "ratio", "of CPU", "compared with"):
        table.add_column(heading, justify="left" if heading in ("measured", "compared with") else "right")
    for name, figures in results.items():
        table.add_section()
        table.add_row(f"[bold]{name}[/bold]")
        for figure in figures:
            table.add_row(
                figure.what,
                f"{_short(figure.value)} {figure.unit}",
                _short(figure.p99),
                str(figure.samples),
                f"[bold]{_short(figure.ratio)}[/bold]" if figure.ratio is not None else "",
                _short(figure.cpu_ratio),
                figure.against or "",
            )
    return table


def _short(number: float | None) -> str:
    """Return a number with three digits that count."""
    if number is None:
        return ""
    return f"{number:,.0f}" if abs(number) >= 100 or number == int(number) else f"{number:.3g}"


def as_json(results: Mapping[str, Sequence[Figure]], *, quick: bool) -> dict[str, Any]:
    """Return the figures with what they were measured on."""
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": quick,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "packages": {package: version(package) for package in PACKAGES},
        "benchmarks": {name: [asdict(figure) for figure in figures] for name, figures in results.items()},
    }


if __name__ == "__main__":
    sys.exit(main())
