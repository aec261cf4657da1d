"""Runs a part of the tests on every supported Celery, SQLAlchemy and Python that can be had here, and prints one table.

    python tests/versions/run.py                          # all of them
    python tests/versions/run.py --python 3.11 --celery 5.5

Each combination gets a virtual environment of its own, kept for the next run. The rules in `domain` know no Celery, so
they are tested once for each Python, with the newest Celery. A Python that is not found is said to be missing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
NEWEST = "5.7"
PACKAGES = (("5.5", None), ("5.6", None), (NEWEST, None), (NEWEST, "2.0"))  # Celery; SQLAlchemy, or the newest
EXTRAS = "postgres,mysql,redis,flower,metrics,yaml,solar,test"
PAIRS = "not mysql"  # SQLite and files, PostgreSQL and Redis
PARTS = {
    "rules": ["tests/unit/domain", "-n", "2"],
    "unit": ["tests/unit", "--ignore=tests/unit/domain", "tests/contract", "-n", "2"],
    "store": ["tests/store", "-k", "not postgresql and not mysql", "-n", "2"],
    "pools": ["tests/process/test_pools.py", "-k", PAIRS],
    "deaths": ["tests/process/test_dead_workers.py", "-k", PAIRS],
}
LONGEST = 900  # seconds for one part
COUNTS = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")


@dataclass(frozen=True)
class Combination:
    """What is tested together."""

    python: str
    celery: str
    sqlalchemy: str | None

    @property
    def name(self) -> str:
        return f"py{self.python}-celery{self.celery}" + (f"-sqlalchemy{self.sqlalchemy}" if self.sqlalchemy else "")

    @property
    def requirements(self) -> list[str]:
        return [f"celery[redis]=={self.celery}.*", *([f"SQLAlchemy=={self.sqlalchemy}.*"] if self.sqlalchemy else [])]

    @property
    def parts(self) -> list[str]:
        whole = self.celery == NEWEST and self.sqlalchemy is None
        return [part for part in PARTS if whole or part != "rules"]


def main() -> int:
    """Test what was asked for, print the table, and fail if anything failed."""
    options = read_options()
    found = {version: python for version in options.python if (python := find_python(version))}
    rows = [row for combination in combinations(options, found) for row in run(combination, found, options)]
    print_table(rows)
    for version in options.python:
        if version not in found:
            print(f"Python {version}: not found; install it such that `python{version}` starts, or with pyenv")
    return int(any(row[-1] != "ok" for row in rows) or not rows)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", nargs="+", choices=PYTHONS, default=list(PYTHONS))
    parser.add_argument("--celery", nargs="+", choices=sorted({celery for celery, _ in PACKAGES}))
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--folder", type=Path, default=ROOT / ".venv" / "versions", help="where the environments are kept")
    return parser.parse_args()


def combinations(options: argparse.Namespace, found: dict[str, str]) -> Iterator[Combination]:
    for version in found:
        for celery, sqlalchemy in PACKAGES:
            if options.celery is None or celery in options.celery:
                yield Combination(version, celery, sqlalchemy)


def find_python(version: str) -> str | None:
    """Return a Python of this version that starts and can make environments; a shim alone does not count."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    named = shutil.which(f"python{version}")
    candidates = [sys.executable, *([named] if named else [])]
    candidates += [str(folder / "bin" / "python") for folder in sorted(pyenv.glob(f"{version}.*"), reverse=True)]
    check = f"import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != {tuple(map(int, version.split('.')))})"
    return next((found for found in candidates if starts(found, check)), None)


def starts(python: str, code: str) -> bool:
    try:
        return subprocess.run([python, "-c", code], capture_output=True, timeout=30, check=False).returncode == 0
    except OSError:
        return False


def run(combination: Combination, found: dict[str, str], options: argparse.Namespace) -> Iterator[tuple[str, ...]]:
    """Install one combination and run its parts; yield a row for each."""
    folder = options.folder / combination.name
    if error := install(combination, found[combination.python], folder):
        yield combination.name, "install", "", "", "", "", error
        return
    versions = installed(folder)
    for part in combination.parts:
        if part in options.part:
            began = time.monotonic()
            counts, verdict = test(folder, part, options.folder / f"{combination.name}-{part}.log")
            took = f"{time.monotonic() - began:.0f} s"
            row = (versions, part, *(str(counts.get(kind, 0)) for kind in ("passed", "failed", "skipped")), took, verdict)
            print(*row, sep="  ", flush=True)
            yield row


def install(combination: Combination, python: str, folder: Path) -> str | None:
    """Make the environment, unless it is there; return what went wrong."""
    stamp = folder / ".installed"
    wanted = (ROOT / "pyproject.toml").read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return None
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    target = [*combination.requirements, "-e", f"{ROOT}[{EXTRAS}]", "import-linter>=2.1"]
    for command in ([python, "-m", "venv", "--clear", str(folder)], [*pip, *target]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return (done.stderr.strip().splitlines() or ["failed"])[-1]
    stamp.write_text(wanted)
    return None


def installed(folder: Path) -> str:
    """Return what was really installed."""
    code = (
        "import platform; from importlib.metadata import version as v;"
        "print('Python', platform.python_version(), 'Celery', v('celery'), 'SQLAlchemy', v('SQLAlchemy'))"
    )
    return subprocess.run([folder / "bin" / "python", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test(folder: Path, part: str, log: Path) -> tuple[dict[str, int], str]:
    """Run a part; return its counts and a verdict, and keep what pytest said."""
    command = [str(folder / "bin" / "python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *PARTS[part]]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST, check=False)
    except subprocess.TimeoutExpired:
        return {}, f"not done in {LONGEST} s"
    log.write_text(done.stdout + done.stderr)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    counts = {kind: int(number) for number, kind in COUNTS.findall(last)}
    counts["failed"] = counts.get("failed", 0) + counts.get("error", 0) + counts.get("errors", 0)
    return counts, "ok" if done.returncode == 0 else f"see {log}"


def print_table(rows: list[tuple[str, ...]]) -> None:
    titles = ("combination", "part", "passed", "failed", "skipped", "took", "verdict")
    widths = [max(len(row[n]) for row in [titles, *rows]) for n in range(len(titles))]
    print()
    for row in (titles, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
