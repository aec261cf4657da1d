"""Each overlap policy and each limit with real workers: counted from what the attempts recorded."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from sqlalchemy import select
from tmtest.ledger import rows
from tmtest.stand import Stand

from celery_tm import defer_many
from celery_tm.store import tables

POLICIES = ("skip", "queue", "queue_one", "allow", "replace")
Span = tuple[datetime, datetime]


def spans(stand: Stand, name: str) -> list[Span]:
    """Return from when to when the attempts of a definition ran, in order."""
    execution, occurrence = tables.execution, tables.occurrence
    query = select(execution.c.started_at, execution.c.completed_at).join(
        occurrence, occurrence.c.id == execution.c.occurrence
    )
    query = query.where(occurrence.c.definition == stand.tm.definitions.get(name).id, execution.c.started_at.is_not(None))
    with stand.database.transaction(write=False) as tx:
        return sorted((row[0], row[1]) for row in tx.execute(query))


def most_at_once(found: list[Span]) -> int:
    """Return how many spans lie over each other at most."""
    ends = sorted([(start, 1) for start, _ in found] + [(end, -1) for _, end in found])
    most = now = 0
    for _, change in ends:
        now += change
        most = max(most, now)
    return most


def test_each_policy_with_bodies_that_outlast_their_interval(stand: Stand) -> None:
    for policy in POLICIES:
        stand.tm.definitions.add(
            name=policy, task="sleepy", args=[policy, 2.5], schedule="every 1s", overlap=policy, max_runs=6
        )
    stand.beat()
    stand.worker("--pool", "threads", concurrency=12)
    stand.wait(lambda: stand.tm.definitions.get("allow").next_run_at is None, seconds=40, what="six runs")
    stand.wait(lambda: len(spans(stand, "skip")) >= 2, seconds=30, what="a second run of skip")
    for policy in POLICIES:
        stand.tm.disable(policy)
    stand.wait_until_settled(seconds=60)
    states = {policy: [str(row.state) for row in rows(stand.tm, policy)] for policy in POLICIES}
    at_once = {policy: most_at_once(spans(stand, policy)) for policy in POLICIES}
    assert at_once["allow"] > 1
    assert {policy: at_once[policy] for policy in POLICIES if policy != "allow"} == dict.fromkeys(
        ("skip", "queue", "queue_one", "replace"), 1
    )
    assert states["allow"].count("completed") == 6
    assert states["queue"].count("completed") == 6, states["queue"]
    for policy in ("skip", "queue_one"):
        assert "skipped" in states[policy]
        assert states[policy].count("completed") >= 2
    assert states["queue_one"].count("completed") > 1
    assert "cancelled" in states["replace"]
    assert states["replace"][-1] in ("completed", "skipped")
    order = [row.started_at for row in rows(stand.tm, "queue") if row.started_at]
    assert all(earlier < later for earlier, later in pairwise(order)), "the queue is in order"


@pytest.mark.thorough
def test_a_slot_is_not_lost_with_its_worker(stand: Stand) -> None:
    ids = [
        handle.id
        for handle in defer_many(
            [stand.app.tasks["sleepy_once"].s(n, 4) for n in range(4)], concurrency_key="tenant:7", concurrency=2
        )
    ]
    stand.beat()
    worker = stand.worker(concurrency=4)
    stand.wait(lambda: len(stand.effects("start")) >= 2, what="two bodies")
    worker.kill()
    stand.worker(concurrency=4)
    stand.wait_until_settled(seconds=90)
    assert {id for _, _, id, *_ in stand.effects("end")} == set(ids)
    execution = tables.execution
    with stand.database.transaction(write=False) as tx:
        query = select(execution.c.started_at, execution.c.completed_at).where(execution.c.started_at.is_not(None))
        found = [(row[0], row[1]) for row in tx.execute(query)]
    assert most_at_once(found) == 2
    assert stand.outcomes()["orphaned"] == 2


def test_max_in_flight_holds_with_two_beats(stand: Stand) -> None:
    stand.conf["tm_max_in_flight"] = 3
    handles = defer_many([stand.app.tasks["sleepy"].s(n, 0.2) for n in range(15)], delay=0.5)
    stand.beat()
    stand.beat()
    stand.worker(concurrency=6)
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, stand.count(tables.job, tables.job.c.state != "pending"))
        return stand.count(tables.job) == 0

    stand.wait(look, seconds=60, what="the end of all jobs")
    assert most == 3
    assert stand.outcomes() == {"succeeded": len(handles)}


def test_max_in_flight_holds_direct_calls(stand: Stand) -> None:
    stand.conf["tm_max_in_flight"] = 3
    stand.beat()
    stand.worker(concurrency=6)
    ids = {stand.app.tasks["sleepy"].delay(n, 0.5).id for n in range(15)}
    most = 0

    def look() -> bool:
        nonlocal most
        most = max(most, stand.count(tables.job, tables.job.c.state != "pending"))
        return stand.outcomes()["succeeded"] == len(ids)

    stand.wait(look, seconds=60, what="the end of all calls")
    assert most <= 3
    assert {id for _, _, id, *_ in stand.effects("start")} == ids
    assert len(stand.effects("start")) == len(ids), "each runs once"


def test_a_backfill_with_two_beats_runs_one_at_a_time_and_regular_instants_go_on_afterwards(stand: Stand) -> None:
    added = stand.tm.definitions.add(name="skip", task="sleepy", args=["skip", 0.3], schedule="every 1s", overlap="skip")
    since = added.created_at.replace(microsecond=0) - timedelta(hours=1)
    made = stand.tm.backfill("skip", since=since, until=since + timedelta(seconds=10))
    assert made.counts["created"] == 10
    for _ in range(2):
        stand.beat()
    stand.worker("--pool", "threads", concurrency=6)

    def regular() -> list[str]:
        return [str(row.state) for row in rows(stand.tm, "skip") if row.scheduled_at > added.created_at and row.decided_at]

    stand.wait(lambda: "completed" in regular(), seconds=60, what="a regular run after the backfill")
    stand.tm.disable("skip")
    stand.wait_until_settled(seconds=60)
    backfilled = [row for row in rows(stand.tm, "skip") if row.scheduled_at < added.created_at]
    assert [str(row.state) for row in backfilled] == ["completed"] * 10
    started = [row.started_at for row in backfilled]
    assert started == sorted(started)
    assert most_at_once(spans(stand, "skip")) == 1
    skipped = {row.reason for row in rows(stand.tm, "skip") if row.state == "skipped"}
    assert "recovered or backfilled ones were still in process; overlap=skip" in skipped
