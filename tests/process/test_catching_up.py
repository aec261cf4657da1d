"""Real beats stopped and started on a moved clock: each recovery policy makes up for what it should, once."""

from __future__ import annotations

import itertools
import signal
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select
from tmtest.ledger import MINUTE, rows
from tmtest.stand import Stand

from celery_tm import clock
from celery_tm.domain.occurrence import Occurrence
from celery_tm.store import tables

HOUR = timedelta(hours=1)
POLICIES = {
    "all": {"policy": "all"},
    "last": {"policy": "last"},
    "skip": {"policy": "skip"},
    "count": {"policy": "bounded", "count": 5},
    "within": {"policy": "bounded", "within": "10m"},
    "spaced": {"policy": "bounded", "count": 3, "spacing": "2s"},
    "compressed": {"policy": "compressed"},
}


def start(stand: Stand) -> None:
    """Start a beat and wait until it has planned what was missed."""
    now = clock.now()
    stand.beat()
    job = tables.definition

    def is_planned() -> bool:
        waiting = stand.count(job, job.c.name.in_(POLICIES), job.c.next_run_at <= now)
        return waiting == 0

    stand.wait(is_planned, seconds=60, what="the planning of what was missed")


def recovered(stand: Stand, name: str, since: datetime) -> list[Occurrence]:
    return [row for row in rows(stand.tm, name) if row.scheduled_at > since and row.is_recovery]


def states(found: list[Occurrence]) -> Counter[str]:
    return Counter(str(row.state) for row in found)


def check_gap(stand: Stand, since: datetime, until: datetime) -> None:
    """Check what was decided about the instants that came while no beat was there."""
    first = since.replace(second=0, microsecond=0) + MINUTE
    missed = [row.scheduled_at for row in rows(stand.tm, "skip") if row.scheduled_at >= first and row.is_recovery]
    assert missed == [first + MINUTE * n for n in range(len(missed))], "each minute, from the first one on"
    assert until - timedelta(seconds=10) - MINUTE < missed[-1] < until + MINUTE
    found = {name: [row for row in rows(stand.tm, name) if first <= row.scheduled_at <= missed[-1]] for name in POLICIES}
    for name in POLICIES:
        assert [row.scheduled_at for row in found[name]] == missed, f"{name}: each instant once"
        assert all(row.reason for row in found[name] if str(row.state) in ("missed", "coalesced"))
    count = len(missed)
    assert states(found["all"]) == {"completed": count}
    assert states(found["skip"]) == {"missed": count}
    assert states(found["count"]) == {"missed": count - 5, "completed": 5}
    assert [str(row.state) for row in found["count"][-5:]] == ["completed"] * 5
    recent = [row for row in found["within"] if str(row.state) == "completed"]
    assert 9 <= len(recent) <= 10
    assert found["within"][-len(recent) :] == recent
    # An instant on time may have come meanwhile, and then stands for all of them.
    for name in ("last", "compressed"):
        assert states(found[name])["coalesced"] >= count - 1
        assert states(found[name])["completed"] <= 1
    spaced = [row for row in found["spaced"] if row.started_at]
    assert len(spaced) == 3
    for place, row in enumerate(spaced):
        assert row.started_at
        assert row.decided_at
        assert row.started_at - row.decided_at >= timedelta(seconds=2 * place), "none starts before its turn"


def test_each_policy_makes_up_for_two_gaps_of_beats_on_a_moved_clock(stand: Stand) -> None:
    for name, policy in POLICIES.items():
        task = "ranged" if name == "compressed" else "effect"
        stand.tm.definitions.add(
            name=name, task=task, args=[name], schedule="* * * * *", overlap="allow", recovery=policy, max_retries=0
        )
    beat = stand.beat()
    stand.wait_for_text(beat, "beat: Starting")
    for gap in (HOUR, timedelta(minutes=25)):
        for process in stand.processes:
            process.stop()
        began = max(stand.tm.definitions.get("all").planned_until, *_created(stand))
        stand.move_by(gap)
        until = clock.now()
        stand.worker(concurrency=2)
        start(stand)
        stand.wait_until_settled(seconds=90)
        check_gap(stand, began, until)
    ranges = [(line[2], line[3]) for line in stand.effects("ranged")]
    assert len(ranges) >= 2
    for earlier, later in itertools.pairwise(ranges):
        assert earlier[1] == later[0], "the ranges leave nothing out and repeat nothing"
    ids = [line[2] for line in stand.effects("effect")]
    assert len(ids) == len(set(ids)), "no job ran twice"


def _created(stand: Stand) -> list[datetime]:
    return [stand.tm.definitions.get(name).created_at for name in POLICIES]


def test_a_beat_killed_in_the_middle_of_catching_up_repeats_no_instant(stand: Stand) -> None:
    stand.tm.definitions.add(name="behind", task="effect", schedule="* * * * * *", recovery="skip", overlap="allow")
    planned = stand.tm.definitions.get("behind").planned_until
    stand.move_by(timedelta(hours=6))  # 21,600 instants, in rounds of a thousand
    until = clock.now()
    occurrence = tables.occurrence
    for _ in range(3):
        before = stand.count(occurrence)
        beat = stand.beat()
        stand.wait(lambda before=before: stand.count(occurrence) > before, seconds=30, what="some of the ledger")  # type: ignore[misc]
        beat.kill()
    assert 0 < stand.count(occurrence) < 21_600, "the beats died before they were done"
    stand.tm.definitions.add(name="on time", task="effect", schedule="every 1s", overlap="allow")
    stand.beat()
    stand.beat()
    stand.wait(lambda: rows(stand.tm, "on time"), seconds=20, what="a definition that is on time")
    assert stand.count(occurrence, occurrence.c.state == "missed") < 21_600, "it did not wait for the one that is behind"
    stand.wait(lambda: stand.tm.definitions.get("behind").planned_until >= until, seconds=90, what="the end of the backlog")
    with stand.database.transaction(write=False) as tx:
        mine = occurrence.c.definition == stand.tm.definitions.get("behind").id
        query = select(func.count(), func.count(occurrence.c.scheduled_at.distinct()), func.min(occurrence.c.scheduled_at))
        total, different, first = tx.execute(query.where(mine, occurrence.c.scheduled_at <= until)).one()
    expected = int((until - planned.replace(microsecond=0)).total_seconds())
    assert total == different == expected
    assert first.replace(tzinfo=UTC) == planned.replace(microsecond=0) + timedelta(seconds=1)


@pytest.mark.parametrize("stand", ["postgresql+redis"], indirect=True)
@pytest.mark.thorough
def test_a_beat_that_was_asleep_counts_as_away(stand: Stand) -> None:
    stand.tm.definitions.add(name="tick", task="effect", schedule="* * * * * *", recovery="skip", overlap="allow")
    beat = stand.beat()
    stand.wait(lambda: rows(stand.tm, "tick"), seconds=20, what="the first tick")
    beat.signal_all(signal.SIGSTOP)
    time.sleep(13)  # three seconds more than what counts as on time
    beat.signal_all(signal.SIGCONT)
    stand.wait(
        lambda: [row for row in rows(stand.tm, "tick") if str(row.state) == "missed"], seconds=20, what="missed instants"
    )
    found = [row.scheduled_at for row in rows(stand.tm, "tick")]
    assert [later - earlier for earlier, later in itertools.pairwise(found)] == [timedelta(seconds=1)] * (len(found) - 1)
