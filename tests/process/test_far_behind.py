"""A beat whose entries are a day behind: jobs that are due and a signal to stop do not wait for the catch-up."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import func, select, update
from tmtest.stand import Stand

from celery_tm import defer
from celery_tm.scheduler.seeding import Seeder
from celery_tm.store import tables

pytestmark = pytest.mark.alone

ENTRIES, AT_MOST = 60, 5.0  # seconds; about one on a quiet machine


def entries(every: float) -> dict[str, Any]:
    return {f"e{n}": {"task": "effect", "schedule": every, "args": [n]} for n in range(ENTRIES)}


def test_a_due_job_and_a_signal_do_not_wait_for_entries_that_are_a_day_behind(stand: Stand) -> None:
    stand.app.conf.beat_schedule = entries(10.0)
    Seeder(stand.tm.installation).seed_once()
    table = tables.definition
    with stand.database.transaction() as tx:
        ago = tx.read_now() - timedelta(days=1)
        late = {"planned_until": ago, "next_run_at": ago + timedelta(seconds=10)}
        changed = tx.execute(update(table).where(table.c.task == "effect").values(**late)).rowcount
    assert changed == ENTRIES
    stand.conf["beat_schedule"] = entries(20.0)  # so that each has to be seeded anew
    beat = stand.beat()
    some = select(func.count()).select_from(tables.occurrence)

    def decided() -> int:
        with stand.database.transaction(write=False) as tx:
            return int(tx.execute(some).scalar_one())

    stand.wait(decided, seconds=60, what="the first instants that were missed")
    handle = defer("effect", args=[999], delay="1s", app=stand.tm.app)
    stand.wait(lambda: stand.tm.job(handle.id).job.claimed_at, seconds=30, what="the job's dispatch")
    job = stand.tm.job(handle.id).job
    late_by = (job.claimed_at - job.run_at).total_seconds()
    began = time.monotonic()
    beat.stop()
    took = time.monotonic() - began
    print(f"\n{decided()} instants; the job {late_by:.3f} s late, the end took {took:.3f} s; load {os.getloadavg()[0]:.1f}")
    assert late_by < AT_MOST
    assert took < AT_MOST
