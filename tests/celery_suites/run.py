"""`python -m celery_suites.run [core|unit|integration|canvas …]`: Celery's own suites with our base class and without.

Exits with 1 if a test that passes in plain Celery fails with ours; `make celery-suites` runs all.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from celery_suites import suites
from celery_suites.sdist import unpack
from celery_suites.suites import OURS, PLAIN, Comparison, Report, compare

Run = Callable[[str, Iterable[str]], Report]  # of a base class and tests

FEW = 3  # so many failures may be bad luck
KINDS = {
    "core": (suites.run_unit, suites.CORE),
    "unit": (suites.run_unit, suites.UNIT),
    "integration": (suites.run_integration, suites.INTEGRATION),
    "canvas": (suites.run_integration, suites.CANVAS),
}


def main(names: Sequence[str]) -> int:
    """Run the suites named, print the figures, and return the exit code."""
    worst = 0
    with tempfile.TemporaryDirectory(prefix="celery-suites-") as place:
        source = unpack(Path(place))
        for name in names or ("unit", "integration", "canvas"):
            run, tests = KINDS[name]
            folder = Path(place) / name
            folder.mkdir()
            found = _run_both(name, lambda base, ids, run=run, folder=folder: run(source, base, ids, folder), tests)
            print(found, flush=True)
            worst |= bool(found.broken or found.healed)
    return int(worst)


def _run_both(name: str, run: Run, tests: Iterable[str]) -> Comparison:
    plain = _timed(f"{name}, plain Celery", partial(run, PLAIN, tests))
    ours = _timed(f"{name}, celery_tm.Task", partial(run, OURS, tests))
    suites.check_injected(ours)
    print(f"    tasks seen: {dict(ours.seen)}")
    return compare(again(run, ours), plain)


def against_plain(run: Run, tests: Iterable[str]) -> tuple[Report, Comparison]:
    """Run with ours, and only what fails in plain Celery too: half the time, for the tests of every day."""
    ours = run(OURS, tests)
    suites.check_injected(ours)
    ours = again(run, ours)
    plain = run(PLAIN, sorted(ours.failed)) if ours.failed else Report({})
    return ours, compare(ours, plain)


def again(run: Run, ours: Report) -> Report:
    """Give the few that failed a second chance: Celery itself marks most of its integration tests as flaky."""
    doubtful = ours.failed - suites.INTENDED.keys()
    if not doubtful or len(doubtful) > FEW:
        return ours
    second = run(OURS, sorted(doubtful))
    return replace(ours, outcomes={**ours.outcomes, **second.outcomes}, reasons={**ours.reasons, **second.reasons})


def _timed(title: str, run: Callable[[], Report]) -> Report:
    started = time.monotonic()
    report = run()
    print(f"{title}: {report} in {time.monotonic() - started:.0f} s", flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
