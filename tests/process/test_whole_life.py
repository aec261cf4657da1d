"""Two beats and three workers: every deferred job and every instant runs once, none twice, none is lost.

Read from the tables and from what the bodies wrote, which know nothing of each other.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from tmtest.stand import Stand

from celery_tm import defer, defer_many
from celery_tm.domain.job import Status
from celery_tm.store import tables

# A minute where it was promised; the third pair shows the same in less time.
MINUTE = {"sqlite+files": 20, "postgresql+redis": 60, "mysql+rabbitmq": 20}
SHORT = 15
JOBS = 1000
DEFINITIONS = 10


@pytest.mark.timeout(300)
def test_every_job_and_every_instant_runs_once(stand: Stand, thorough: bool) -> None:
    seconds = MINUTE[stand.pair] if thorough else SHORT
    for _ in range(2):
        stand.beat()
    for _ in range(3):
        stand.worker(concurrency=1)
    effect = stand.app.tasks["effect"]
    for n in range(DEFINITIONS):
        stand.tm.definitions.add(
            name=f"tick {n}", task="effect", args=[f"tick{n}"], schedule="* * * * * *", overlap="allow", recovery="all"
        )
    began = datetime.now(UTC)
    handles = defer_many([(effect.s(f"job{n}"), {"delay": n % seconds}) for n in range(JOBS)])
    time.sleep(max(0.0, seconds - (datetime.now(UTC) - began).total_seconds()))
    ticking = {line[1] for line in stand.effects("effect") if line[1].startswith("tick")}
    assert len(ticking) == DEFINITIONS, "the switch-off decides what is due too, so what ran before it was planned by beat"
    for n in range(DEFINITIONS):
        stand.tm.disable(f"tick {n}")
    disabled = datetime.now(UTC)
    stand.wait_until_settled(seconds=90)

    # Every deferred job ran once, by the bodies' own account and by the tables'.
    ran = Counter(line[1] for line in stand.effects("effect"))
    assert {name: ran[name] for name in ran if name.startswith("job")} == {f"job{n}": 1 for n in range(JOBS)}
    assert {stand.tm.job(handle.id).state for handle in handles} == {Status.SUCCEEDED}
    assert stand.outcomes(source="deferred") == Counter(succeeded=JOBS)

    # Every instant of every definition is in the ledger once, and those before the switch-off ran once.
    assert stand.count(tables.dead_letter) == 0
    for n in range(DEFINITIONS):
        definition = stand.tm.definitions.get(f"tick {n}")
        instants = ledger(stand, definition.id)
        whole_seconds = [instants[0] + timedelta(seconds=i) for i in range(len(instants))]
        assert instants == whole_seconds, "an instant is missing or doubled"
        assert len(instants) >= seconds - 3
    completed = stand.count(tables.occurrence, tables.occurrence.c.state == "completed")
    others = stand.count(
        tables.occurrence,
        tables.occurrence.c.state != "completed",
        tables.occurrence.c.scheduled_at < disabled - timedelta(seconds=2),
    )
    assert others == 0
    ticks = {name: count for name, count in ran.items() if name.startswith("tick")}
    assert sum(ticks.values()) == completed
    assert stand.outcomes()["succeeded"] == JOBS + completed
    assert set(stand.outcomes()) == {"succeeded"}


def ledger(stand: Stand, definition: str) -> list[datetime]:
    occurrence = tables.occurrence
    query = (
        select(occurrence.c.scheduled_at).where(occurrence.c.definition == definition).order_by(occurrence.c.scheduled_at)
    )
    with stand.database.transaction(write=False) as tx:
        return list(tx.execute(query).scalars())


def test_one_job_walks_from_failure_to_dead_letter_and_back(stand: Stand) -> None:
    stand.beat()
    stand.worker(concurrency=1)
    handle = defer(stand.app.tasks["fails"].s("x"), delay=0.3, retry={"kind": "fixed", "delay": 0.3})

    stand.wait(lambda: handle.state == Status.FAILED, what="the dead letter")
    [letter] = stand.tm.dead_letters.list(task="fails")
    assert (letter.id, letter.attempts, letter.last_error) == (handle.id, 3, "ValueError: no x")
    assert "raise ValueError" in (letter.traceback or "")
    assert stand.outcomes() == Counter(failed=3)

    stand.tm.dead_letters.revive(handle.id, actor="ann", reason="fixed")
    stand.wait(lambda: stand.outcomes() == Counter(failed=6), what="three more tries")
    stand.wait(lambda: handle.state == Status.FAILED, what="the second dead letter")
    assert [int(line[3]) for line in stand.effects("fails")] == [1, 2, 3, 4, 5, 6]


def test_a_task_no_worker_has_becomes_a_dead_letter(stand: Stand) -> None:
    stand.tm.definitions.add(name="ghost", task="no.such.task", schedule="* * * * * *", max_retries=0)
    beat = stand.beat()
    stand.worker(concurrency=1)
    stand.wait(lambda: stand.tm.dead_letters.list(task="no.such.task"), what="the dead letter")
    assert "NotRegistered" in (stand.tm.dead_letters.list()[0].last_error or "")
    assert "TaskUnknown" in beat.text()
    assert beat.is_running
