"""What bodies do, by the name that the dimension `body` has for it. Each writes what it saw and did, apart from tables."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from celery.exceptions import Ignore, Reject
from faults import record
from faults.app import FOLDER, noted
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from celery_tm import cancel, current_job, defer

CALLBACKS = "callbacks.jsonl"
LONG = "TM_STORM_LONG"  # seconds that a long body takes: longer than a lease, and than an outage
OVERRUN, AFTER_CANCEL = 30.0, 3.0
LOCKED = "storm_row"
REPLACEMENT = "replacement"  # the argument of a call that was put in the place of another


def note(what: str, subject: str, label: str, value: Any = None) -> None:
    """Write that a callback, a child or a hook was called, and with what."""
    record.write(os.environ[FOLDER], CALLBACKS, {"what": what, "subject": subject, "label": label, "value": value})


def digest(*arguments: Any) -> str:
    """Return what tells arguments from others, however large they are."""
    return hashlib.sha256(json.dumps(arguments, default=str).encode()).hexdigest()[:12]


def run(task: Any, kind: str, subject: str, label: str, argument: Any) -> Any:
    """Be the body of a durable task."""
    note("saw", subject, label, {"digest": digest(subject, label, argument), "at": time.monotonic_ns()})
    with noted(label) as job:
        gives_way = kind == "replaces" and argument != REPLACEMENT  # what it writes is not the last word
        if task.transactional and kind != "rolls back" and not gives_way:
            _mark(job, label)
        if task.concurrency_key is not None:
            time.sleep(0.15)  # two at one time would be seen
        value = None if argument == REPLACEMENT else BODIES[kind](task, job, subject, label)
    if kind == "ignores":
        raise Ignore
    note("left", subject, label, {"at": time.monotonic_ns()})
    return value if value is not None else f"done {label}"


def _mark(job: Any, label: str) -> None:
    values = {"label": label, "job": job.id, "attempt": job.attempt}
    job.session.execute(text("INSERT INTO chaos_effect VALUES (:label, :job, :attempt)"), values)


def _returns(*_: Any) -> None: ...


def _raises(*_: Any) -> None:
    raise ValueError("it never works")


def _flaky(task: Any, job: Any, *_: Any) -> None:
    if job.attempt == 1:
        raise RuntimeError("not yet")


def _retries(task: Any, job: Any, *_: Any) -> None:
    if job.attempt == 1:
        raise task.retry(countdown=0.2, max_retries=2)


def _replaces(task: Any, job: Any, subject: str, label: str) -> Any:
    return task.replace(task.s(subject, label, REPLACEMENT).set(queue=_queue(task)))


def _rejects(*_: Any) -> None:
    raise Reject("no", requeue=False)


def _cancels_itself(task: Any, job: Any, *_: Any) -> None:
    cancel(id=job.id, app=task.app)


def _cancels_entity(task: Any, job: Any, subject: str, label: str) -> None:
    answer = cancel(entity_id=subject, app=task.app)
    job.report_progress("cancelled the others")
    if answer and not task.transactional:
        note("cancelled", subject, label, {"at": time.monotonic_ns()})
        time.sleep(AFTER_CANCEL)


def _defers(task: Any, job: Any, subject: str, label: str) -> None:
    """Ask for more in every way: in a transactional body all of it commits with it."""
    _defer_plain(task, subject, label)
    queue = _queue(task)
    defer(task.app.tasks["storm.child"].s(subject, label, "deferred").set(queue=queue), app=task.app)
    task.app.tasks["storm.child"].apply_async((subject, label, "called"), queue=queue)


def _reports(task: Any, job: Any, *_: Any) -> None:
    for n in range(3):
        job.report_progress(f"{n} of 3")
        job.log(f"line {n}")
    job.report_success("all done")


def _commits(task: Any, job: Any, subject: str, label: str) -> None:
    _defer_plain(task, subject, label)
    job.session.commit()


def _rolls_back(task: Any, job: Any, subject: str, label: str) -> None:
    _mark(job, label)
    _defer_plain(task, subject, label)
    job.session.rollback()


def _savepoints(task: Any, job: Any, subject: str, label: str) -> None:
    with job.session.begin_nested() as savepoint:
        _defer_plain(task, subject, label)
        savepoint.rollback()


def _defer_plain(task: Any, subject: str, label: str) -> None:
    defer(task.app.tasks["storm.plain_child"].s(subject, label).set(queue=_queue(task)), app=task.app)


def _swallows(task: Any, job: Any, subject: str, label: str) -> None:
    """Lock two rows in an order that another of its kind has the other way round, and go on after a deadlock."""
    rows = [f"{subject}-a", f"{subject}-b"]
    if int(label.rpartition("-")[2]) % 2:
        rows.reverse()
    with suppress(DBAPIError):
        for row in rows:
            job.session.execute(text(f"UPDATE {LOCKED} SET n = n + 1 WHERE id = :id"), {"id": row})
            time.sleep(0.6)


def _overruns(*_: Any) -> None:
    time.sleep(OVERRUN)


def _long(*_: Any) -> None:
    time.sleep(float(os.environ[LONG]))


def _nested(task: Any, job: Any, *_: Any) -> None:
    """Call other tasks in this process: what they report is about them, and they have what they need."""
    assert task.app.tasks["storm.reports_failure"].apply().failed()
    assert task.app.tasks["storm.needs_session"].apply().result == 1
    assert task.app.tasks["storm.needs_session"]() == 1
    assert current_job() is job


def _queue(task: Any) -> str | None:
    return (task.request.delivery_info or {}).get("routing_key")


BODIES: dict[str, Callable[..., Any]] = {
    "returns": _returns,
    "raises": _raises,
    "flaky": _flaky,
    "retries": _retries,
    "replaces": _replaces,
    "rejects": _rejects,
    "ignores": _returns,
    "cancels itself": _cancels_itself,
    "cancels entity": _cancels_entity,
    "defers": _defers,
    "reports": _reports,
    "commits": _commits,
    "rolls back": _rolls_back,
    "savepoints": _savepoints,
    "swallows": _swallows,
    "overruns": _overruns,
    "long": _long,
    "nested": _nested,
}


def run_plain(subject: str, label: str, kind: str) -> str:
    """Be the body of a plain task."""
    note("plain ran", subject, label)
    if kind == "raises":
        raise ValueError("it never works")
    return f"done {label}"
