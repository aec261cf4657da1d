"""Lists and runs benchmarks by name: `python -m benchmarks tick --quick --json results.json`.

It proves nothing by itself: each benchmark's module says what its figures show. A target that is missed is shown, and ends
the run with an error only with `--strict`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console

from .figures import Figure, Size, missed
from .report import table_of, write_json

# A benchmark is a module here with `run(size, say) -> list[Figure]`; the first line of its docstring says what it proves.
BENCHMARKS = ("defer", "publish", "worker", "tick", "latency")
WIDTH = 190  # where the output is no terminal


def main() -> int:
    """Run what was asked for, print one table and write JSON where wanted."""
    wanted = _read_arguments()
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    if wanted.list:
        for name in BENCHMARKS:
            console.print(f"[bold]{name}[/bold]  {(_module(name).__doc__ or '').splitlines()[0]}")
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that `kill` cleans up as Ctrl-C does
    results: dict[str, list[Figure]] = {}
    started = time.monotonic()
    try:
        for name in wanted.names or BENCHMARKS:
            results[name] = _module(name).run(size=wanted.size, say=_teller(console, started))
            if wanted.json:
                write_json(wanted.json, results, size=wanted.size)
    except KeyboardInterrupt:
        console.print("interrupted; what was made is removed")
        return 130
    console.print(table_of(results))
    return 1 if wanted.strict and missed(results) else 0


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run, all if none: {', '.join(BENCHMARKS)}")
    parser.add_argument("--list", action="store_true", help="say which there are and what they prove")
    parser.add_argument("--strict", action="store_true", help="end with an error if a target is missed")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the figures to this file; those of others stay")
    sizes = parser.add_mutually_exclusive_group()
    for size, about in ((Size.QUICK, "smaller sizes: a few minutes"), (Size.TINY, "only to see that it works")):
        sizes.add_argument(f"--{size}", dest="size", action="store_const", const=size, default=Size.FULL, help=about)
    wanted = parser.parse_args()
    for name in wanted.names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}; there is {', '.join(BENCHMARKS)}")
    return wanted


def _module(name: str) -> Any:
    return import_module(f".{name}", __package__)


def _teller(console: Console, started: float) -> Callable[[str], None]:
    return lambda text: console.print(f"[dim]{time.monotonic() - started:6.1f}s[/dim] {text}")


if __name__ == "__main__":
    sys.exit(main())
