"""Decides whether each promise held for every job, key and occurrence of a run.

It looks at a history only, from the outside: what was asked, what bodies wrote, which faults were made and what the tables
say in the end. It has no rule from the package that it checks. What looks wrong and is allowed is named in
`faults.allowances`, with the reason, and counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from faults.case import Case, Finding, Findings
from faults.history import History
from faults.moments import check_moments
from faults.promises import check_jobs
from faults.story import tell

PROMISES = {
    1: "no lost work", 2: "no double start", 3: "stale workers cannot finish", 4: "exactly-once effects",
    5: "every instant is accounted for", 6: "any number of beats", 7: "database time",
}  # fmt: skip
TOLD = 20  # violations whose whole story is told


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept, and the whole story of what it is about."""

    promise: int
    what: str
    at: int
    story: str
    job: str | None = None
    key: str | None = None
    occurrence: str | None = None

    def __str__(self) -> str:
        return self.story


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found, in order of time, and how often which allowance was made."""

    violations: list[Violation]
    allowed: Counter[str]


def judge(history: History) -> Verdict:
    """Hold a history against all promises."""
    case, findings = Case(history), Findings()
    check_jobs(case, findings)
    check_moments(case, findings)
    findings.allowed["torn line"] += history.torn
    found = sorted(findings.found, key=lambda one: (one.at, one.promise, one.what))
    return Verdict([_violation(case, one, told=n < TOLD) for n, one in enumerate(found)], +findings.allowed)


def _violation(case: Case, one: Finding, *, told: bool) -> Violation:
    story = tell(case, one) if told else f"promise {one.promise} was not kept: {one.what}"
    return Violation(one.promise, one.what, one.at, story, one.job, one.key, one.occurrence)


def check(history: History) -> list[Violation]:
    """Return the promises that were not kept, in order of time."""
    return judge(history).violations


def report(history: History, verdict: Verdict | None = None) -> dict[str, Any]:
    """Return what a history is made of, in numbers, and how often which allowance was made."""
    allowed = (verdict or judge(history)).allowed
    return {
        "asked": dict(Counter(one.kind for one in history.asks)),
        "answers": dict(Counter(one.what for one in history.answers)),
        "jobs": len({one.job for one in history.executions}),
        "bodies": dict(Counter(one.what for one in history.effects)),
        "attempts": dict(Counter(one.outcome for one in history.executions)),
        "tasks": dict(Counter(one.task for one in history.executions)),
        "dead letters": len(history.dead_letters),
        "keys": len(history.keys),
        "occurrences": dict(Counter(one.state for one in history.occurrences)),
        "runs": len(history.runs),
        "steps": dict(Counter(one.state for one in history.steps)),
        "faults": dict(Counter(one.kind for one in history.faults if one.what == "fault")),
        "allowed": dict(allowed),
    }


def main(folder: str, database: str) -> int:
    """Check a run that was kept: `python -m faults.checker FOLDER DATABASE_URL`."""
    history = History.read(folder, database)
    verdict = judge(history)
    for name, value in report(history, verdict).items():
        print(f"{name:>14}: {value}")
    for violation in verdict.violations[:TOLD]:
        print(f"\n{violation.story}")
    print(f"\n{len(verdict.violations)} violations")
    return min(len(verdict.violations), 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
