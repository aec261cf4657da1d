"""Two workers that believe in the same attempt: the one that the database knows can end it, the other changes nothing.

It takes a database that lost the start of an attempt, as one may that fails over to a replica which was a moment behind.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta

import pytest
from sqlalchemy import null, select, update
from tmtest.ledger import claim
from tmtest.rows import all_rows

from celery_tm import TimeManagement, defer, workflow
from celery_tm.domain.execution import Failure
from celery_tm.domain.job import Job
from celery_tm.domain.retry import Bury, TryAgain
from celery_tm.errors import LeaseLost
from celery_tm.installation import Installation
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import following, jobs, tables
from celery_tm.worker import gate, recorder, release
from celery_tm.worker.context import JobContext
from celery_tm.worker.lease import LeaseKeeper

LEASE = timedelta(seconds=30)
WRONG = Failure(error="ValueError: it did not work")
End = Callable[[Installation, Job], object]


def renews(ours: Installation, job: Job) -> object:
    return ours.database.run(lambda tx: jobs.renew(tx, [job], lease=2 * LEASE))


def reports(ours: Installation, job: Job) -> object:
    context = JobContext(job, ours)
    context.report_progress("half way")
    context.log("half of it is done")
    return None


def hands_back(ours: Installation, job: Job) -> object:
    return release.record_handed_back(ours, [(job.id, job.attempt)], "it stops", workers={job.claimed_by})


def vanishes(ours: Installation, job: Job) -> object:
    worker = job.claimed_by or ""
    return recorder.record_vanished(ours, job.id, job.attempt, Failure.orphaned("its process died"), workers={worker})


def hands_on(ours: Installation, job: Job) -> object:
    return ours.database.run(lambda tx: following.carry_on(tx, job))


# All that a worker may want to write about an attempt which it believes in.
ENDS: dict[str, End] = {
    "succeeds": lambda ours, job: recorder.record_success(ours, job, 1),
    "succeeds, and something follows": lambda ours, job: recorder.record_success(ours, job, 1, ended={"result": 1}),
    "succeeds in a chunk": lambda ours, job: recorder.record_all(ours, [(job, 1, None)]),
    "fails": lambda ours, job: recorder.record_failure(ours, job, WRONG, then=TryAgain(LEASE)),
    "fails for good": lambda ours, job: recorder.record_failure(ours, job, WRONG, then=Bury("no more")),
    "is replaced": lambda ours, job: recorder.record_replaced(ours, job, None, message="by another", body=None),
    "stops": lambda ours, job: recorder.record_cancelled(ours, job),
    "is handed back": hands_back,
    "vanishes": vanishes,
    "renews": renews,
    "reports": reports,
    "hands on": hands_on,
}


def two_believers(tm: TimeManagement, id: str) -> tuple[Job, Job]:
    """Let one worker in for an attempt, lose that, and let another one in."""
    stale = gate.admit_job(tm.installation, id, 1, worker="stale:1").job
    with tm.installation.database.transaction() as tx:
        lost = {"state": "dispatched", "claimed_by": null(), "claimed_at": null(), "carrier": null()}
        tx.execute(update(tables.job).where(tables.job.c.id == id).values(lost))
    fresh = gate.admit_job(tm.installation, id, 1, worker="fresh:2").job
    assert stale is not None
    assert fresh is not None
    assert (stale.attempt, stale.state) == (fresh.attempt, fresh.state)
    return stale, fresh


@pytest.mark.parametrize("end", ENDS)
def test_whoever_was_let_in_and_forgotten_changes_nothing(tm: TimeManagement, end: str) -> None:
    stale, fresh = two_believers(tm, defer(tm.app.tasks["effect"].s(1), key="k", app=tm.app).id)
    before = all_rows(tm)
    with suppress(LeaseLost):
        ENDS[end](tm.installation, stale)
    assert all_rows(tm) == before

    recorder.record_success(tm.installation, fresh, 1)
    [execution] = tm.job(fresh.id).executions
    assert (execution.outcome, execution.worker) == ("succeeded", "fresh:2")


def test_nor_does_it_let_go_what_another_is_to_hand_on(tm: TimeManagement) -> None:
    stale, fresh = two_believers(tm, defer(tm.app.tasks["effect"].s(1), app=tm.app).id)
    recorder.record_success(tm.installation, fresh, 1, ended={"result": 1})

    assert not tm.installation.database.run(lambda tx: following.forget(tx, stale))
    assert tm.installation.database.run(lambda tx: following.forget(tx, fresh))


def test_in_one_process_the_end_of_one_does_not_stop_the_renewals_of_the_other(tm: TimeManagement) -> None:
    stale, fresh = two_believers(tm, defer(tm.app.tasks["effect"].s(1), app=tm.app).id)
    keeper, one, other = LeaseKeeper(tm.installation), JobContext(stale, tm.installation), JobContext(fresh, tm.installation)
    keeper.hold(one)
    keeper.hold(other)
    keeper.let_go(one)
    before = lease_of(tm)

    keeper.renew_all()
    keeper.let_go(other)
    assert lease_of(tm) > before


def lease_of(tm: TimeManagement) -> datetime:
    """Return until when the one job is leased."""
    with tm.installation.database.transaction(write=False) as tx:
        return tx.execute(select(tables.job.c.lease_until)).scalar_one()


@pytest.mark.parametrize("end", ["succeeds", "fails", "fails for good", "stops"])
def test_nor_does_one_that_has_a_step(tm: TimeManagement, end: str) -> None:
    effect = tm.app.tasks["effect"]
    defer(workflow([effect.s(n) for n in range(3)], mode="parallel"), app=tm.app)
    dispatcher = Dispatcher(tm.installation, "beat")
    assert dispatcher.expand(dispatcher.claim(1)[1]) == []
    stale, fresh = two_believers(tm, claim(tm, limit=3)[0])
    before = all_rows(tm)
    with pytest.raises(LeaseLost):
        ENDS[end](tm.installation, stale)
    assert all_rows(tm) == before
    recorder.record_success(tm.installation, fresh, 1)
