"""The storm: `python -m storm.run` (`make storm`) carries out a covering array of all features on all stages, and judges it.

`--stage` names stages, or parts of their names; `--seed` makes other cases; `--first` stops at the first violation.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from storm import plan
from storm.dimensions import STAGES
from storm.oracle import Violation, judge_stage
from storm.plan import Case
from storm.stage import Stage

SEED = 17


@dataclass
class Report:
    """What was found, stage by stage."""

    cases: int = 0
    found: dict[str, list[Violation]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not any(self.found.values())

    def lines(self) -> list[str]:
        told = []
        for stage, violations in self.found.items():
            told.append(f"{stage}: {len(violations)} violations, {self.seconds[stage]:.0f} s")
            told += [f"   {violation}" for violation in violations]
        return [*told, f"{self.cases} cases: {'every answer was right' if self.is_good else 'NOT GOOD'}"]


def go(
    cases: Sequence[Case],
    folder: Path,
    *,
    say: Callable[[str], None] = print,
    settles: float = 90.0,
    first: bool = False,
    seconds: float = float("inf"),
) -> Report:
    """Carry out cases stage by stage, at most for so long."""
    report, begun = Report(), time.monotonic()
    for stage, its in plan.by_stage(cases).items():
        if time.monotonic() - begun > seconds:
            say(f"{stage}: left out, the time is over")
            continue
        evidence = Stage(stage, its, folder / stage.replace(" ", "-"), settles=settles).go()
        report.cases += len(its)
        report.found[stage], report.seconds[stage] = judge_stage(evidence), evidence.seconds
        say(f"{stage}: {len(its)} cases, {len(report.found[stage])} violations, {evidence.seconds:.0f} s")
        for violation in report.found[stage]:
            say(f"   {violation}")
        if first and report.found[stage]:
            break
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--more", type=int, default=0, help="cases by chance, beside the covering array")
    parser.add_argument("--dense", action="store_true", help="every pair in each of the stages, not in one of them")
    parser.add_argument("--stage", nargs="*", default=[], help="stages, by parts of their names")
    parser.add_argument("--only", nargs="*", default=[], help="cases, by name")
    parser.add_argument("--settles", type=float, default=90.0, help="seconds until nothing may be pending")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no stage begins after these")
    parser.add_argument("--first", action="store_true", help="stop after the first stage with a violation")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path, help="write the violations to this file")
    said = parser.parse_args(arguments)
    folder = said.folder or Path(tempfile.mkdtemp(prefix="storm-"))
    wanted = [stage for stage in STAGES if not said.stage or any(part in stage for part in said.stage)]
    parts = [(stage,) for stage in wanted] if said.dense else [None]
    cases = [case for part in parts for case in plan.make(said.seed, more=said.more, stages=part)]
    chosen = [case for case in cases if case.stage in wanted and (not said.only or case.name in said.only)]
    chosen.sort(key=lambda case: wanted.index(case.stage))
    print(f"seed {said.seed}, {len(chosen)} cases, records in {folder}", flush=True)
    tell = lambda line: print(line, flush=True)  # noqa: E731
    report = go(chosen, folder, say=tell, settles=said.settles, first=said.first, seconds=said.seconds)
    if said.json:
        said.json.write_text(json.dumps([str(one) for found in report.found.values() for one in found], indent=1))
    print(report.lines()[-1])
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
