"""How a body's end is recorded: return, raise, report, retry, give up, be cancelled, on every database."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Ignore
from tmtest.ledger import claim

from celery_tm import Task, TimeManagement, current_job, defer
from celery_tm.domain.execution import Outcome
from celery_tm.domain.job import Status
from celery_tm.errors import TmError
from celery_tm.store import logs
from celery_tm.store.database import Database
from celery_tm.testing import MovableClock
from celery_tm.worker import gate, recorder
from celery_tm.worker.body_errors import ReportedFailure
from celery_tm.worker.context import JobContext

MINUTE = timedelta(minutes=1)
FIXED = {"kind": "fixed", "delay": "1m"}


def run(tm: TimeManagement, clock: MovableClock) -> Any:
    return tm.run_due_jobs(now=clock.now)


@pytest.mark.parametrize(
    ("delay", "waits"),
    [
        (15 * MINUTE, [1.5 * MINUTE, 3 * MINUTE]),
        (timedelta(hours=48), [60 * MINUTE, 60 * MINUTE]),
        (timedelta(seconds=5), [timedelta(seconds=1), timedelta(seconds=2)]),
    ],
    ids=["15 min", "48 h", "never under a second"],
)
def test_tries_come_at_a_tenth_of_the_original_delay_per_retry(
    app: Celery, tm: TimeManagement, noon: MovableClock, delay: timedelta, waits: list[timedelta]
) -> None:
    handle = defer(app.tasks["fails"].s("x"), delay=delay)
    noon.forward(delay)
    for wait in waits:
        assert run(tm, noon).retried == 1
        story = tm.job(handle.id)
        assert (story.state, story.run_at) == (Status.RETRY_SCHEDULED, noon.now + wait)
        noon.forward(wait)
    assert run(tm, noon).failed == 1
    [letter] = tm.dead_letters.list(task="fails")
    assert (letter.id, letter.attempts, letter.last_error) == (handle.id, 3, "ValueError: no x")
    assert "raise ValueError" in (letter.traceback or "")
    assert tm.job(handle.id).state == Status.FAILED


def test_the_cap_is_a_setting(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    from dataclasses import replace

    tm.installation.settings = replace(tm.settings, tm_backoff_cap=2 * MINUTE)
    handle = defer(app.tasks["fails"].s("x"), delay=timedelta(hours=48))
    noon.forward("48h")
    run(tm, noon)
    assert tm.job(handle.id).run_at == noon.now + 2 * MINUTE


def test_a_revived_dead_letter_has_all_its_tries_again(app: Celery, tm: TimeManagement, noon: MovableClock, effects) -> None:
    handle = defer(app.tasks["fails"].s("x"), delay="15m", max_retries=1)
    noon.forward("15m")
    run(tm, noon)
    noon.forward("90s")
    assert run(tm, noon).failed == 1
    tm.dead_letters.revive(handle.id, actor="ann", reason="mended")
    assert tm.job(handle.id).state == Status.SCHEDULED
    assert run(tm, noon).retried == 1
    assert tm.job(handle.id).run_at == noon.now + 1.5 * MINUTE
    assert [line.split()[3] for line in effects.read_text().splitlines()] == ["1", "2", "3"]


def test_the_context_tells_the_body_about_its_job(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    seen: dict[str, Any] = {}

    @app.task(base=Task, bind=True, name="looks", shared=False)
    def looks(self: Task) -> None:
        job = self.job
        assert job is current_job()
        seen.update(id=job.id, entity=job.entity_id, attempt=job.attempt, due=job.scheduled_at, started=job.started_at)
        seen.update(scope=job.scope, key=job.key, execution=job.execution_id, cancelled=job.cancelled)

    handle = defer(looks.s(), delay="1m", entity_id="42", scope={"tenant_id": 7}, key="k")
    due = noon.now + MINUTE
    noon.forward("61s")
    assert run(tm, noon).succeeded == 1
    execution = tm.job(handle.id).executions[0]
    assert seen == {
        "id": handle.id, "entity": "42", "attempt": 1, "due": due, "started": noon.now, "scope": {"tenant_id": 7},
        "key": "k", "execution": execution.id, "cancelled": False,
    }  # fmt: skip
    with pytest.raises(TmError, match="no job runs here"):
        current_job()


def test_a_job_answers_who_has_it_since_when_and_how_often_it_was_tried(
    app: Celery, tm: TimeManagement, noon: MovableClock
) -> None:
    handle = defer(app.tasks["fails"].s("x"), delay="10m", key="k", scope={"tenant_id": 7}, retry=FIXED)

    def answer() -> Any:
        story = tm.job(handle.id)
        return story.state, story.attempt, story.attempt_count, story.locked_by, story.locked_at

    assert answer() == (Status.SCHEDULED, 1, 0, None, None)
    assert tm.job(handle.id).job.scope == {"tenant_id": 7}
    noon.forward("10m")
    run(tm, noon)
    assert answer() == (Status.RETRY_SCHEDULED, 2, 1, None, None)
    assert tm.job(handle.id).last_error == "ValueError: no x"

    noon.forward("1m")
    claimed_at = noon.now
    assert claim(tm, "beat@a") == [handle.id]
    assert answer() == (Status.RETRY_SCHEDULED, 2, 1, "beat@a", claimed_at)
    noon.forward("5s")
    decision = gate.admit_job(tm.installation, handle.id, 2, worker="worker@b")
    assert answer() == (Status.RUNNING, 2, 2, "worker@b", noon.now)
    JobContext(decision.job, tm.installation).report_progress("half way")
    assert tm.job(handle.id).progress == "half way"

    noon.forward("1s")
    recorder.record_success(tm.installation, decision.job, "done")
    assert answer() == (Status.SUCCEEDED, 2, 2, None, None)
    story = tm.job(handle.id)
    assert (story.result, [one.worker for one in story.executions][:1]) == ("done", ["worker@b"])
    assert {one.scope["tenant_id"] for one in story.executions} == {7}


def test_success_keeps_its_message_and_progress_its_lines(
    app: Celery, tm: TimeManagement, database: Database, noon: MovableClock
) -> None:
    handle = defer(app.tasks["reports"].s("success"), delay=1)
    noon.forward(1)
    run(tm, noon)
    [execution] = tm.job(handle.id).executions
    assert (execution.outcome, execution.message) == (Outcome.SUCCEEDED, "all sold")
    with database.transaction(write=False) as tx:
        assert [(line["level"], line["message"]) for line in logs.of_execution(tx, execution.id)] == [
            ("progress", "half way")
        ]


def test_a_reported_failure_counts_like_an_exception(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    handle = defer(app.tasks["reports"].s("failure"), delay=1, max_retries=0)
    noon.forward(1)
    assert run(tm, noon).failed == 1
    assert tm.job(handle.id).last_error == "ReportedFailure: the shop is closed"


def test_self_retry_re_arms_the_row_with_its_own_countdown(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    handle = defer(app.tasks["asks_again"].s("x", 1), delay=1)
    noon.forward(1)
    assert run(tm, noon).retried == 1
    story = tm.job(handle.id)
    assert (story.run_at, story.last_error) == (noon.now + timedelta(seconds=30), "RuntimeError: not yet")
    noon.forward(30)
    assert run(tm, noon).succeeded == 1
    assert tm.job(handle.id).attempt_count == 2


def test_self_retry_that_is_used_up_becomes_a_dead_letter(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    handle = defer(app.tasks["asks_again"].s("x", 99), delay=1, max_retries=1)
    noon.forward(1)
    run(tm, noon)
    noon.forward(30)
    assert run(tm, noon).failed == 1
    assert tm.job(handle.id).last_error == "RuntimeError: not yet"


def test_autoretry_goes_through_the_row_with_its_own_backoff(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    handle = defer(app.tasks["autoretried"].s("x"), delay=1)
    noon.forward(1)
    assert run(tm, noon).retried == 1
    assert tm.job(handle.id).run_at == noon.now + timedelta(seconds=4)
    noon.forward(4)
    assert run(tm, noon).succeeded == 1


def test_a_retry_may_change_the_arguments(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    seen = []

    @app.task(base=Task, bind=True, name="changes", shared=False)
    def changes(self: Task, n: int) -> None:
        seen.append(n)
        if n < 3:
            raise self.retry(args=[n + 1], countdown=1)

    defer(changes.s(1), delay=1)
    for _ in range(3):
        noon.forward(1)
        run(tm, noon)
    assert seen == [1, 2, 3]


def test_a_body_that_asks_to_be_ignored_is_done(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    @app.task(base=Task, name="ignores", shared=False)
    def ignores() -> None:
        raise Ignore

    handle = defer(ignores.s(), delay=1)
    noon.forward(1)
    run(tm, noon)
    assert tm.job(handle.id).state == Status.SUCCEEDED


def test_a_before_start_that_forgets_super_still_passes_the_gate(
    app: Celery, tm: TimeManagement, noon: MovableClock
) -> None:
    class Forgetful(Task):
        abstract = True

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            """Not calling super()."""

    @app.task(base=Forgetful, bind=True, name="forgetful", shared=False)
    def forgetful(self: Task) -> str:
        return self.job.id

    handle = defer(forgetful.s(), delay=1, key="k")
    noon.forward(1)
    run(tm, noon)
    assert (tm.job(handle.id).state, handle.result) == (Status.SUCCEEDED, handle.id)


def test_a_plain_task_called_by_a_body_is_part_of_it(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    @app.task(base=Task, bind=True, name="outer", shared=False)
    def outer(self: Task) -> Any:
        return [app.tasks["effect"](5), self.job.attempt]

    handle = defer(outer.s(), delay=1, key="k")
    noon.forward(1)
    run(tm, noon)
    assert handle.result == [5, 1]
    assert len(tm.job(handle.id).executions) == 1


def test_called_without_a_worker_no_database_is_needed() -> None:
    from tmtest.app import make_app

    app = make_app({"broker_url": "memory://", "tm_database_url": "postgresql://nobody@127.0.0.1:1/nothing"})
    assert app.tasks["effect"](3) == 3
    assert app.tasks["effect"].apply(args=[4]).get() == 4
    app.conf.task_always_eager = True
    assert app.tasks["effect"].delay(5).get() == 5
    with pytest.raises(ReportedFailure, match="closed"):
        app.tasks["reports"]("failure")
    app.close()


def test_signals_tell_what_happened(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    from celery_tm import events

    heard: list[tuple[str, str, Any]] = []

    def completed(sender: Any, job: str, task: str, **_: Any) -> None:
        heard.append(("completed", task, sender))

    def failed(sender: Any, job: str, task: str, outcome: str, next_delay: float | None, **_: Any) -> None:
        heard.append((f"failed {next_delay}", task, sender))

    events.execution_completed.connect(completed)
    events.execution_failed.connect(failed)
    defer(app.tasks["effect"].s(1), delay=1)
    defer(app.tasks["fails"].s(1), delay=1, max_retries=0)
    noon.forward(1)
    run(tm, noon)
    events.execution_completed.disconnect(completed)
    events.execution_failed.disconnect(failed)
    assert sorted(heard, key=lambda one: one[0]) == [("completed", "effect", app), ("failed None", "fails", app)]


def test_an_unknown_task_fails_like_any_other(app: Celery, tm: TimeManagement, noon: MovableClock) -> None:
    handle = defer("no.such.task", delay=1, remote=True, max_retries=0, app=app)
    noon.forward(1)
    assert run(tm, noon).failed == 1
    assert "NotRegistered" in (tm.job(handle.id).last_error or "")


def test_what_a_body_does_after_it_asked_for_a_retry_changes_nothing(
    app: Celery, tm: TimeManagement, noon: MovableClock
) -> None:
    @app.task(base=Task, bind=True, name="goes_on", shared=False)
    def goes_on(self: Task) -> None:
        self.retry(countdown=30, throw=False)
        raise RuntimeError("too late to matter")

    handle = defer(goes_on.s(), delay=1)
    noon.forward(1)
    run(tm, noon)
    story = tm.job(handle.id)
    assert (story.state, story.run_at, story.attempt) == (Status.RETRY_SCHEDULED, noon.now + timedelta(seconds=30), 2)
    assert [execution.error for execution in story.executions] == ["the body asked for a retry"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"retry": "sometimes"}, "retry: unknown kind"),
        ({"keep_key": "for ever"}, "keep_key"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_a_bad_option_of_a_task_is_refused_when_it_is_made(option: dict[str, Any], words: str) -> None:
    from celery_tm.errors import InvalidValue

    with pytest.raises(InvalidValue, match=words):
        type("SomeTask", (Task,), {"abstract": True, **option})
