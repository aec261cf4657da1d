"""A rolling upgrade under load: nodes of the release before and of the next one on the next one's tables, side by side.

The release before is taken from the history. The next one is this one with a migration more: the code is new, and so are the
tables, so that what holds here holds for any two releases of which the older one runs on later tables.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from tmtest import services
from tmtest.releases import NEXT, Rollout, next_release, previous_release
from tmtest.stand import Process

from celery_tm.store import schema, tables

STEPS = [{"name": "a", "task": "steps.work"}, [{"name": "b", "task": "steps.work"}, {"name": "c", "task": "steps.work"}]]
End = Callable[[Process], None]


@pytest.fixture
def rollout(request: pytest.FixtureRequest, tmp_path: Path, effects: Path) -> Iterator[Rollout]:
    """A database of its own, for its tables become those of a later release, and no node."""
    if not services.find("postgresql"):
        pytest.skip(services.why_missing("postgresql"))
    url, prefix = request.getfixturevalue("redis_service")
    broker = {"broker_url": url, "broker_transport_options": {"global_keyprefix": f"{prefix}roll:"}}
    with services.own_database("postgresql", suffix="_rolling") as database:
        stand = Rollout(broker | {"tm_database_url": database, "task_default_queue": "rolling"}, tmp_path, effects)
        schema.upgrade(stand.database)
        yield stand
        stand.close()


def stop(process: Process) -> None:
    process.stop()


def kill(process: Process) -> None:
    process.kill()


WORKERS_FIRST, BEATS_FIRST = ("worker", "beat"), ("beat", "worker")


@pytest.mark.parametrize(
    ("order", "end"),
    [
        pytest.param(WORKERS_FIRST, {"worker": kill, "beat": stop}, id="workers first, killed"),
        pytest.param(WORKERS_FIRST, {"worker": stop, "beat": kill}, id="workers first, stopped", marks=pytest.mark.thorough),
        pytest.param(BEATS_FIRST, {"worker": stop, "beat": kill}, id="beats first", marks=pytest.mark.thorough),
    ],
)
def test_nothing_is_lost_or_done_twice_when_nodes_change_one_after_another(
    rollout: Rollout, tmp_path: Path, order: tuple[str, ...], end: dict[str, End]
) -> None:
    old, new = previous_release(tmp_path / "old"), next_release(tmp_path / "new")
    rollout.tm.definitions.add(
        name="second", task="effect", args=["second"], schedule="* * * * * *", overlap="allow", recovery="all"
    )
    rollout.tm.definitions.add(name="steps", steps=STEPS, schedule="0 0 1 1 *", overlap="allow")
    rollout.use(new)
    rollout.upgrade()  # the schema comes first, and old nodes are started on it
    rollout.use(old)
    running = {"beat": rollout.beat(), "worker": rollout.worker("--max-tasks-per-child", "40")}
    producers = [rollout.producer("old")]
    wait_for_work(rollout)
    rollout.use(new)
    for kind in order:
        before = running[kind]
        running[kind] = rollout.worker() if kind == "worker" else rollout.beat()
        wait_for_version(rollout, kind, "next")
        end[kind](before)
        wait_for_work(rollout)
    producers.append(rollout.producer("new"))
    wait_for_work(rollout, "new")
    for producer in producers:
        producer.stop()
    rollout.tm.disable("second")
    rollout.wait_until_settled(seconds=60)
    assert schema.current(rollout.database) == NEXT
    check(rollout)


def wait_for_work(rollout: Rollout, name: str = "") -> None:
    """Wait until some more of what producers ask for is done."""
    before = len(rollout.effects("effect"))
    known = lambda: [line for line in rollout.effects("effect") if line[1].startswith(name)]  # noqa: E731
    rollout.wait(lambda: len(rollout.effects("effect")) > before + 12 and len(known()) > 5, seconds=60, what="work")


def wait_for_version(rollout: Rollout, kind: str, version: str) -> None:
    rollout.wait(lambda: version in rollout.versions(kind), seconds=40, what=f"a {kind} of the {version} release")


# What must hold


def check(rollout: Rollout) -> None:
    """Hold what was done against what was asked for."""
    executions = rows(rollout, tables.execution)
    ended = Counter(row.job for row in executions if row.outcome == "succeeded")
    assert set(ended.values()) == {1}, "no job succeeds twice"
    assert Counter(row.outcome for row in executions).keys() <= {"succeeded", "failed", "orphaned", "interrupted"}
    assert rollout.count(tables.dead_letter) == 0
    starts = Counter((line[0], *line[2:4]) for line in rollout.effects("effect") + rollout.effects("flaky"))
    assert set(starts.values()) == {1}, "no attempt begins twice"
    for kind in ("plain", "flaky"):
        asked = rollout.requests(kind)
        assert len(asked) > 5
        assert [one for one in asked if ended[one["id"]] != 1] == [], f"all {kind} ones are done"
    check_keyed(rollout)
    check_recurring(rollout)
    check_runs(rollout)


def rows(rollout: Rollout, table: Any, *where: Any) -> list[Any]:
    with rollout.database.transaction(write=False) as tx:
        return list(tx.execute(select(table).where(*where)))


def check_keyed(rollout: Rollout) -> None:
    """Each key was worked for once, whoever asked for it."""
    asked = rollout.requests("keyed")
    keys, done = {one["key"] for one in asked}, Counter(line[1] for line in rollout.effects("effect"))
    jobs = {one["key"]: {other["id"] for other in asked if other["key"] == one["key"]} for one in asked}
    assert len(keys) > 3
    assert all(len(ids) == 1 for ids in jobs.values()), "everybody was told of the same job"
    for key, (id,) in jobs.items():
        attempts = {row.attempt for row in rows(rollout, tables.execution, tables.execution.c.job == id)}
        assert done[key] <= len(attempts), key


def check_recurring(rollout: Rollout) -> None:
    """Each second has one occurrence, and it was carried out once."""
    all_found = rows(rollout, tables.occurrence, tables.occurrence.c.definition == rollout.tm.definitions.get("second").id)
    found = [row for row in all_found if row.decided_at and row.reason != "the definition was disabled"]  # at the end
    instants = sorted(row.scheduled_at for row in found)
    assert len(instants) > 5
    assert {after - before for before, after in pairwise(instants)} == {timedelta(seconds=1)}
    assert {row.state for row in found} == {"completed"}
    # A beat that starts slowly, on a busy machine, catches up: that is a reason, and each second was carried out still.
    assert {(row.reason or "recovered").split()[0] for row in found} == {"recovered"}
    done = Counter(row.occurrence for row in rows(rollout, tables.execution, tables.execution.c.outcome == "succeeded"))
    assert all(done[row.id] == 1 for row in found)


def check_runs(rollout: Rollout) -> None:
    """Each run that was triggered came to its end, with all its steps."""
    asked = {one["id"] for one in rollout.requests("run")}
    found = rows(rollout, tables.occurrence, tables.occurrence.c.id.in_(asked))
    assert len(asked) > 1
    assert {row.state for row in found} == {"completed"}
    assert {row.id for row in found} == asked
    steps = rows(rollout, tables.step, tables.step.c.workflow.in_(asked))
    assert Counter(row.state for row in steps) == {"succeeded": 3 * len(asked)}
