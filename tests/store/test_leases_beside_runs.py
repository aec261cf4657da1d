"""What beat sees while a run goes on: the job that stands for it has no lease, and hides nobody else's."""

from __future__ import annotations

import pytest
from tmtest.ledger import NOON, claim, start

from celery_tm import Scheduler, TimeManagement, defer, workflow
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import agenda, executions
from celery_tm.testing import MovableClock


@pytest.fixture(autouse=True)
def noon(tm_clock: MovableClock) -> MovableClock:
    tm_clock.move_to(NOON)
    return tm_clock


def test_a_lease_that_ends_is_seen_and_swept_while_a_run_goes_on(tm: TimeManagement, noon: MovableClock) -> None:
    effect = tm.app.tasks["effect"]
    handle = defer(workflow([effect.s(1), effect.s(2)]), delay="1s", app=tm.app)
    noon.forward("1s")
    dispatcher = Dispatcher(tm.installation, "beat")
    assert dispatcher.expand(dispatcher.claim(10)[1]) == []
    [step] = claim(tm)
    running = start(tm, step)
    with tm.installation.database.transaction(write=False) as tx:
        assert agenda.look(tx).lease_at == running.lease_until

    noon.forward(tm.settings.tm_lease)
    Scheduler(tm.app).work()
    with tm.installation.database.transaction(write=False) as tx:
        assert [str(one.outcome) for one in executions.of_job(tx, step)] == ["orphaned"]
    assert tm.report(handle.id)["steps"][0]["state"] == "owed"
