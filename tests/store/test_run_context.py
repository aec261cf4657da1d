"""What a body knows about its run, and the lines that it writes to the audit, on every database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import select, text
from tmtest.ledger import NOON, add, plan

from celery_tm import Task, TimeManagement, defer, events, workflow
from celery_tm.errors import InvalidValue
from celery_tm.store import tables
from celery_tm.testing import MovableClock

MINUTE = timedelta(minutes=1)
Seen = list[tuple[Any, ...]]


def looking(app: Celery, seen: Seen) -> Any:
    @app.task(base=Task, bind=True, name="looks", shared=False, max_retries=0)
    def looks(self: Task, fail: bool = False) -> None:
        job = self.job
        seen.append((job.occurrence_id is not None, job.is_recovery, job.version, job.last_run_at, job.stopping))
        assert (job.version, job.last_run_at) == seen[-1][2:4], "it stays the same"
        if fail:
            raise ValueError("no")

    return looks


def run_minute(tm: TimeManagement, clock: MovableClock) -> None:
    clock.forward("1m")
    tm.run_due_jobs(now=clock.now)


def test_a_body_knows_its_version_its_last_success_and_whether_it_recovers(
    app: Celery, tm: TimeManagement, noon: MovableClock
) -> None:
    seen: Seen = []
    looking(app, seen)
    add(tm, task="looks", args=[], recovery="all")
    run_minute(tm, noon)
    run_minute(tm, noon)
    tm.definitions.update("tick", kwargs={"fail": True})
    run_minute(tm, noon)
    tm.definitions.update("tick", kwargs={})
    run_minute(tm, noon)
    assert seen == [
        (True, False, 1, None, False),
        (True, False, 1, NOON + MINUTE, False),
        (True, False, 2, NOON + 2 * MINUTE, False),
        (True, False, 3, NOON + 2 * MINUTE, False),  # the failed run does not count
    ]


def test_a_run_that_makes_up_for_a_missed_time_says_so(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    seen: Seen = []
    looking(app, seen)
    add(tm, task="looks", args=[], recovery="all")
    run_minute(tm, noon)
    noon.forward("2m")
    plan(tm)
    tm.run_due_jobs(now=noon.now)
    told = [(is_recovery, last) for _, is_recovery, _, last, _ in seen]
    assert told[:2] == [(False, None), (True, NOON + MINUTE)]


def test_steps_know_the_run_that_they_are_part_of(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    seen: Seen = []
    looking(app, seen)
    tm.definitions.add(name="flow", schedule="* * * * *", steps=[{"task": "looks"}])
    run_minute(tm, noon)
    run_minute(tm, noon)
    assert [line[:4] for line in seen] == [(True, False, 1, None), (True, False, 1, NOON + MINUTE)]


def test_jobs_without_a_definition_know_of_none(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    seen: Seen = []
    looks = looking(app, seen)
    defer(looks.s(), delay="1s")
    defer(workflow([looks.s()]), delay="1s", app=app)
    noon.forward("1s")
    tm.run_due_jobs(now=noon.now)
    looks()
    looks.apply()
    assert sorted(seen) == sorted(
        [(False, False, None, None, False), (True, False, None, None, False)] + 2 * [(False, False, None, None, False)]
    )


LINE = {"object": "subscription:42", "before": {"state": "active"}, "after": {"state": "frozen"}, "reason": "unpaid"}


def lines(tm: TimeManagement) -> list[tuple[Any, ...]]:
    audit = tables.audit
    query = select(audit.c.actor, audit.c.action, audit.c.object, audit.c.before, audit.c.after, audit.c.reason)
    with tm.installation.database.transaction(write=False) as tx:
        return [tuple(row) for row in tx.execute(query.where(audit.c.action == "subscription.frozen"))]


WRITTEN = ("SYSTEM", "subscription.frozen", "subscription:42", {"state": "active"}, {"state": "frozen"}, "unpaid")


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_line_of_a_transactional_body_is_rolled_back_with_it_and_any_other_stays(
    app: Celery, tm: TimeManagement, noon: MovableClock, transactional: bool, fails: bool
) -> None:
    @app.task(base=Task, bind=True, name="freezes", shared=False, transactional=transactional)
    def freezes(self: Task) -> None:
        if transactional:
            self.job.session.execute(text("SELECT 1"))
        self.job.audit("subscription.frozen", **LINE)
        if fails:
            raise ValueError("no")

    defer(freezes.s(), delay="1s")
    noon.forward("1s")
    tm.run_due_jobs(now=noon.now)
    assert lines(tm) == ([] if transactional and fails else [WRITTEN])


def test_a_line_that_the_body_s_session_rolls_back_is_not_written(
    app: Celery, tm: TimeManagement, noon: MovableClock
) -> None:
    @app.task(base=Task, bind=True, name="thinks_again", shared=False, transactional=True)
    def thinks_again(self: Task) -> None:
        self.job.audit("subscription.frozen", **LINE)
        self.job.session.rollback()
        self.job.audit("subscription.frozen", **LINE | {"object": "subscription:43"}, actor="ann")

    defer(thinks_again.s(), delay="1s")
    noon.forward("1s")
    assert tm.run_due_jobs(now=noon.now).succeeded == 1
    assert [line[:3] for line in lines(tm)] == [("ann", "subscription.frozen", "subscription:43")]


def test_a_line_of_a_call_inside_a_body_is_written_and_one_without_a_job_is_checked_only(
    app: Celery, tm: TimeManagement, noon: MovableClock
) -> None:
    @app.task(base=Task, bind=True, name="inner", shared=False)
    def inner(self: Task) -> None:
        self.job.audit("subscription.frozen", **LINE)

    @app.task(base=Task, name="outer", shared=False)
    def outer() -> None:
        inner()

    inner()
    assert lines(tm) == []
    defer(outer.s(), delay="1s")
    noon.forward("1s")
    assert tm.run_due_jobs(now=noon.now).succeeded == 1
    assert lines(tm) == [WRITTEN]


def test_a_line_is_no_event_of_ours(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    heard: list[Any] = []

    def hear(sender: Any = None, **values: Any) -> None:
        heard.append(values)

    @app.task(base=Task, bind=True, name="purges", shared=False)
    def purges(self: Task) -> None:
        self.job.audit("purge", object="basket:1")

    events.letters_purged.connect(hear)
    try:
        defer(purges.s(), delay="1s")
        noon.forward("1s")
        assert tm.run_due_jobs(now=noon.now).succeeded == 1
    finally:
        events.letters_purged.disconnect(hear)
    assert heard == []
    assert [line.action for line in tm.audit(object="basket:1")] == ["purge"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"action": "x" * 41}, "action: 41 characters are too many; stay within 40"),
        ({"action": " "}, "action: it is empty"),
        ({"object": "x" * 256}, "object: 256 characters are too many; stay within 255"),
        ({"object": 42}, "object: 42 is not text"),
        ({"object": "definition:tick"}, "name your own"),
        ({"actor": "x" * 256}, "actor: 256 characters are too many"),
        ({"actor": None}, "actor: None is not text"),
        ({"reason": "x" * 2001}, "reason: 2,001 characters are too many; stay within 2,000"),
        ({"reason": 5}, "reason: 5 is not text"),
        ({"before": "active"}, "before: 'active' is not a mapping"),
        ({"after": {"at": object()}}, "is not JSON"),
    ],
)
def test_a_line_that_cannot_be_kept_is_refused_with_what_to_do(change: dict[str, Any], words: str) -> None:
    from celery_tm.domain.audit_line import checked_line

    values = {"action": "frozen", **LINE} | change
    with pytest.raises(InvalidValue) as refused:
        checked_line(values.pop("action"), values.pop("object"), **values)
    assert words in str(refused.value)
