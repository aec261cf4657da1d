"""Short runs with faults: every promise is kept, and a broken celery_tm is noticed.

The seeds are fixed and named in a failure; `python -m faults.run --seed …` repeats one, and `make chaos` is the long run.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tmtest import services

from faults import sabotage
from faults.run import Plan, Result, Run, report

pytestmark = [pytest.mark.alone, pytest.mark.timeout(240)]
SEED = 9


def run(folder: Path, **stated: object) -> tuple[Plan, Result]:
    plan = Plan(**{"pair": "postgresql+redis", "seed": SEED, "folder": folder / "run"} | stated)  # type: ignore[arg-type]
    said: list[str] = []
    result = Run(plan, said.append).go()
    return plan, result


def test_every_promise_is_kept_while_everything_is_broken(tmp_path: Path) -> None:
    plan, result = run(tmp_path, seconds=20, every=(0.2, 0.7))
    assert result.is_good, report(plan, result)
    assert len(result.summary["faults"]) >= 15, report(plan, result)
    assert result.summary["outcomes"]["succeeded"] > 300, report(plan, result)


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_every_promise_is_kept_on_mariadb_and_rabbitmq(tmp_path: Path) -> None:
    if not services.find("rabbitmq"):
        pytest.skip(services.why_missing("rabbitmq"))
    plan, result = run(tmp_path, seconds=60, pair="mysql+rabbitmq")
    assert result.is_good, report(plan, result)


# What shows that a guard is missing: work that stands still for longer than its lease, messages that come twice, and clocks.
STANDSTILL = ("sigstop pool process", "sigstop worker", "broker crashed", "sigkill pool process")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("way", "promises", "kinds"),
    [
        ("no-sweep", {1}, ("sigkill worker", "sigkill pool process")),
        ("own-transaction", {1}, ("sigkill beat",)),
        ("no-fencing", {1, 3}, STANDSTILL),
        ("no-gate", {2}, STANDSTILL),
        ("own-clock", {1, 2, 7}, ("clock shifted",)),
    ],
)
def test_a_missing_guard_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, promises: set[int], kinds: tuple[str, ...]
) -> None:
    monkeypatch.setenv(sabotage.VARIABLE, way)
    plan, result = run(tmp_path, seconds=40, kinds=kinds, settles=20)
    assert {violation.promise for violation in result.violations} & promises, report(plan, result)
