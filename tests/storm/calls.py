"""Makes the calls of cases: each in its way, within its transaction, and writes what was asked and what was answered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from celery import chain, chord, group
from faults import record
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from celery_tm import TimeManagement, cancel, defer, defer_many, workflow
from storm.model import value_of
from storm.plan import Case

CALLS = "calls.jsonl"
HELD = 8.0  # seconds that a caller's transaction is held open
AHEAD = 4.0  # seconds until a far ETA
WAITS = 15.0  # seconds until what is to be cancelled is due: its caller is done with that before, also on a busy machine
NEVER = "0 0 1 1 *"
LARGE = "x" * 1_100_000


def argument_of(case: Case) -> Any:
    """Return the last argument of a case's calls."""
    return {"text": "some text", "large": LARGE, "nan": float("nan")}[case.argument]


class Caller:
    """Calls the cases of a stage."""

    def __init__(self, app: Any, tm: TimeManagement, engine: Engine, folder: Path, refused_queue: str) -> None:
        self.app, self.tm, self.engine, self.folder = app, tm, engine, folder
        self.refused_queue = refused_queue

    def call(self, case: Case) -> None:
        """Make all calls of a case."""
        try:
            getattr(self, f"_{case.call}")(case)
        except Exception as error:
            self._note(case, None, error=f"{type(error).__name__}: {str(error)[:300]}")

    # What is called

    def queue(self, case: Case) -> str:
        """Return the queue that the worker of a case's pool listens to, or one that nobody can declare."""
        if case.fault == "queue refused":
            return self.refused_queue
        return f"{self.app.conf.task_default_queue}-{case.pool}"

    def signature(self, case: Case, copy: int) -> Any:
        """Return one call, its arguments by position or by name."""
        task, values = self.app.tasks[case.task], (case.name, case.label(copy), argument_of(case))
        if copy % 2 and case.call not in ("chunk", "definition", "replay"):
            named = task.s(**dict(zip(("subject", "label", "argument"), values, strict=True)))
            return named.set(queue=self.queue(case))
        return task.s(*values).set(queue=self.queue(case))

    def _tail(self, case: Case, copy: int) -> Any:
        return self.app.tasks["storm.tail"].s(case.name, case.label(copy)).set(queue=self.queue(case))

    def _errback(self, case: Case, copy: int) -> Any:
        return self.app.tasks["storm.errback"].s(case.name, case.label(copy)).set(queue=self.queue(case))

    # Deferred

    def _defer(self, case: Case) -> None:
        def work(session: Any) -> list[Any]:
            delays = (0, 0.4, 0) if case.fault != "queue refused" else (0.2,) * 3
            return [
                defer(self.signature(case, n), delay=delays[n % 3], entity_id=case.name, session=session, app=self.app)
                for n in range(case.copies)
            ]

        self._in_transaction(case, work)

    def _defer_many(self, case: Case) -> None:
        signatures = [self.signature(case, n) for n in range(case.copies)]
        self._in_transaction(
            case, lambda session: defer_many(signatures, entity_id=case.name, session=session, app=self.app)
        )

    def _chunk(self, case: Case) -> None:
        signatures = [self.signature(case, n) for n in range(case.copies)]
        self._in_transaction(
            case, lambda session: defer_many(signatures, delay=0.5, entity_id=case.name, session=session, app=self.app)
        )

    def _cancel(self, case: Case) -> None:
        """Defer, and take it back in the case's transaction."""
        signatures = [self.signature(case, n) for n in range(case.copies)]
        handles = defer_many(signatures, delay=WAITS, entity_id=case.name, app=self.app)
        for n, handle in enumerate(handles):
            self._answered(case, n, handle, commits=True)
        with self._transaction(case) as session:
            cancel(entity_id=case.name, session=session, app=self.app)

    def _step(self, case: Case) -> None:
        for n in range(case.copies):
            tail = self.app.tasks["storm.next_step"].s(case.name, case.label(n)).set(queue=self.queue(case))
            handle = defer(workflow([self.signature(case, n), tail]), app=self.app)
            self._note(case, n, id=handle.id)

    # Definitions

    def _definition(self, case: Case) -> None:
        self._add_definition(case, schedule="* * * * * *", max_runs=case.copies)
        self._note(case, 0)

    def _replay(self, case: Case) -> None:
        self._add_definition(case, schedule=NEVER)
        occurrence = self.tm.trigger(case.name).id
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = self.tm.occurrences(case.name)
            if all(str(one.state) in ("completed", "failed", "cancelled", "stale") for one in found):
                break
            time.sleep(0.3)
        self.tm.replay(occurrence)
        self._note(case, 0)

    def _add_definition(self, case: Case, **schedule: Any) -> None:
        args = [case.name, case.label(0), argument_of(case)]
        self.tm.definitions.add(
            name=case.name, task=case.task, args=args, queue=self.queue(case), overlap="allow", recovery="all", **schedule
        )

    # As in plain Celery

    def _delay(self, case: Case) -> None:
        self._each(case, lambda n: self.signature(case, n).apply_async().id)

    def _far_eta(self, case: Case) -> None:
        eta = datetime.now(UTC) + timedelta(seconds=AHEAD)
        self._each(case, lambda n: self.signature(case, n).apply_async(eta=eta).id)

    def _link(self, case: Case) -> None:
        def one(n: int) -> str:
            links = {"link": self._tail(case, n), "link_error": self._errback(case, n)}
            return str(self.signature(case, n).apply_async(**links).id)

        self._each(case, one)

    def _chain(self, case: Case) -> None:
        def one(n: int) -> str:
            whole = chain(self.signature(case, n), self._tail(case, n))
            return str(whole.apply_async(link_error=self._errback(case, n)).parent.id)

        self._each(case, one)

    def _group(self, case: Case) -> None:
        result = group([self.signature(case, n) for n in range(case.copies)]).apply_async()
        for n, each in enumerate(result.results):
            self._note(case, n, id=each.id)

    def _chord(self, case: Case) -> None:
        body = self._tail(case, 0).on_error(self._errback(case, 0))
        result = chord([self.signature(case, n) for n in range(case.copies)], body).apply_async()
        for n, each in enumerate(result.parent.results):
            self._note(case, n, id=each.id)

    def _each(self, case: Case, one: Callable[[int], str]) -> None:
        """Make the calls one by one: the last of a key comes when an earlier one has ended."""
        for n in range(case.copies):
            if case.key != "none" and n == case.copies - 1:
                time.sleep(2.5)
            id = one(n)
            self._note(case, n, id=id)
            time.sleep(0.1 if case.copies < 10 else 0)

    # In a transaction

    def _in_transaction(self, case: Case, work: Callable[[Any], Sequence[Any]]) -> None:
        with self._transaction(case) as session:
            handles = work(session)
        commits = case.transaction not in ("rolled back", "savepoint rolled back", "closed")
        for n, handle in enumerate(handles):
            self._answered(case, n, handle, commits=commits)

    @contextmanager
    def _transaction(self, case: Case) -> Iterator[Any]:
        """Be the caller whose transaction ends as the case says."""
        how = case.transaction
        if how == "none":
            yield None
            return
        with Session(self.engine, twophase=how == "two-phase") as session:
            if how == "repeatable read":
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
                session.execute(text("SELECT count(*) FROM tm_job"))
            if how == "savepoint rolled back":
                with session.begin_nested() as savepoint:
                    yield session
                    savepoint.rollback()
            else:
                yield session
            if how == "held open":
                time.sleep(HELD)
            if how == "two-phase":
                session.prepare()
            if how == "rolled back":
                session.rollback()
            elif how != "closed":
                session.commit()

    # What is written down

    def _answered(self, case: Case, copy: int, handle: Any, *, commits: bool) -> None:
        self._note(case, copy, id=handle.id, created=handle.created)
        if case.base == "plain" or not handle.created:
            return
        label = case.label(copy)
        kind = "transactional" if _leaves_a_mark(case) else "storm"
        ask = {"what": "asks", "ask": label, "kind": kind, "label": label, "key": handle.key, "commits": commits}
        answer = {
            "what": "answered" if commits else "rolled back",
            "ask": label,
            "job": handle.id,
            "created": handle.created,
        }
        answer["run_at"] = handle.run_at.isoformat() if commits else None
        record.write(self.folder, record.ASKED, ask, answer)

    def _note(self, case: Case, copy: int | None, **facts: Any) -> None:
        wanted = None if copy is None else value_of(case, copy)
        record.write(self.folder, CALLS, {"case": case.name, "copy": copy, "value": wanted, **facts})


def _leaves_a_mark(case: Case) -> bool:
    return case.transactional == "yes" and case.body not in ("rolls back", "ignores") and case.hook != "call returns"


def call_all(caller: Caller, cases: Sequence[Case], *, seconds: float) -> list[str]:
    """Call all cases at one time; return the names of those whose caller still waits when the time is over."""
    threads = [threading.Thread(target=caller.call, args=(case,), name=case.name, daemon=True) for case in cases]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(deadline - time.monotonic(), 0))
    return [thread.name for thread in threads if thread.is_alive()]
