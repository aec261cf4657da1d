"""Transactional tasks: the body's writes, what it defers and its completion commit together, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, func, select, text, update
from sqlalchemy.orm import Session, sessionmaker
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, current_job, defer
from celery_tm.domain.job import JobState, Status
from celery_tm.errors import DatabaseUnavailable, ForeignSession, InvalidValue, TmError
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import logs, tables
from celery_tm.store.body import BodyTransaction, refuse_foreign
from celery_tm.store.database import Database
from celery_tm.worker import recorder

metadata = MetaData()
book = Table("book", metadata, Column("id", Integer, primary_key=True), Column("line", String(100)))


class Killed(BaseException):
    """Stands for a worker that is killed."""


@pytest.fixture(autouse=True)
def written(database: Database) -> Iterator[None]:
    metadata.create_all(database.engine)
    with database.engine.begin() as connection:
        connection.execute(book.delete())
    yield
    metadata.drop_all(database.engine)


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Courier:
    @app.task(base=Task, bind=True, name="writes", shared=False, transactional=True, max_retries=1)
    def writes(self: Task, line: str, how: str = "returns") -> str:
        self.job.session.execute(book.insert().values(line=line))
        if how == "raises":
            raise ValueError("no")
        if how == "retries" and self.request.retries == 0:
            raise self.retry(countdown=0)
        if how == "commits":
            self.job.session.commit()
            self.job.session.execute(book.insert().values(line="taken back"))
            self.job.session.rollback()
        if how == "dies":
            raise Killed
        if how == "defers":
            defer(app.tasks["effect"].s(line), delay="1h", key="later")
            app.tasks["effect"].delay("now")
        if how == "fails to flush":
            self.job.session.execute(text("INSERT INTO no_such_table VALUES (1)"))
        return line

    return Courier(tm)


def lines(database: Database) -> list[str]:
    with database.engine.connect() as connection:
        return list(connection.execute(select(book.c.line).order_by(book.c.id)).scalars())


def test_a_success_and_its_writes_are_one(app: Celery, courier: Courier, database: Database) -> None:
    handle = defer(app.tasks["writes"].s("a"))
    courier.deliver_all()
    assert (lines(database), handle.state) == (["a"], Status.SUCCEEDED)
    direct = app.tasks["writes"].delay("b")
    courier.deliver_all()
    assert (lines(database), courier.tm.job(direct.id).state) == (["a", "b"], Status.SUCCEEDED)


@pytest.mark.parametrize("how", ["raises", "fails to flush"])
def test_a_failure_leaves_nothing_of_its_writes(app: Celery, courier: Courier, database: Database, how: str) -> None:
    handle = defer(app.tasks["writes"].s("a", how), max_retries=0)
    courier.deliver_all()
    assert (lines(database), handle.state) == ([], Status.FAILED)


@pytest.mark.parametrize("transactional", [True, False])
def test_an_errback_that_runs_in_the_process_of_the_failed_job_has_a_transaction_of_its_own(
    app: Celery, courier: Courier, database: Database, transactional: bool
) -> None:
    @app.task(base=Task, name="fails_at_once", shared=False, transactional=transactional, max_retries=0)
    def fails() -> None:
        if transactional:
            current_job().session.execute(book.insert().values(line="failed"))
        raise ValueError("no")

    @app.task(base=Task, name="notes", shared=False, transactional=True)
    def notes(request: Any, exc: Any, traceback: Any) -> None:  # Celery calls such an errback inline
        current_job().session.execute(book.insert().values(line=f"noted {request.task}"))

    handle = fails.apply_async(link_error=notes.s())
    courier.deliver_all()
    assert lines(database) == ["noted fails_at_once"]
    assert courier.tm.job(handle.id).state == Status.FAILED
    assert owed(database) == []


@pytest.mark.parametrize("how", ["returns", "raises"])
def test_hooks_after_the_body_are_refused_its_session(app: Celery, courier: Courier, database: Database, how: str) -> None:
    errors: list[str] = []

    class Hooked(Task):
        abstract = True

        def _write(self) -> None:
            try:
                self.job.session.execute(book.insert().values(line="hook"))
            except TmError as error:
                errors.append(str(error))

        def on_success(self, *_: Any) -> None:
            self._write()

        def on_failure(self, *_: Any) -> None:
            self._write()

    @app.task(base=Hooked, name="hooked", shared=False, transactional=True, max_retries=0)
    def hooked() -> None:
        current_job().session.execute(book.insert().values(line="body"))
        if how == "raises":
            raise ValueError("no")

    hooked.delay()
    courier.deliver_all()
    assert lines(database) == (["body"] if how == "returns" else [])
    assert errors == ["the body has ended, and its transaction with it; open a session of your own here"]


def test_a_retry_leaves_nothing_of_the_try_before(app: Celery, courier: Courier, database: Database) -> None:
    handle = defer(app.tasks["writes"].s("a", "retries"))
    courier.deliver_all()
    assert (lines(database), handle.state) == (["a"], Status.SUCCEEDED)


def test_a_body_that_commits_by_itself_publishes_nothing_early(app: Celery, courier: Courier, database: Database) -> None:
    handle = defer(app.tasks["writes"].s("a", "commits"))
    courier.deliver_all()
    assert (lines(database), handle.state) == (["a"], Status.SUCCEEDED)


def test_what_it_defers_and_calls_commits_with_it(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch, effects
) -> None:
    defer(app.tasks["writes"].s("a", "defers"))
    [message] = courier.collect()
    with monkeypatch.context() as patch:
        patch.setattr(recorder.settlement, "succeed", _killed)
        with pytest.raises(Killed):
            courier.deliver(message)
    assert courier.collect() == []
    assert (lines(database), [job.task for job in owed(database)]) == ([], ["writes"])

    defer(app.tasks["writes"].s("b", "defers"))
    courier.deliver_all()
    assert lines(database) == ["b"]
    later = [job for job in owed(database) if job.task == "effect"]
    assert [(job.dedupe_key, job.state) for job in later] == [("later", JobState.PENDING)]
    assert [line.split()[1] for line in effects.read_text().splitlines()] == ["now"]


def _killed(*_: Any, **__: Any) -> None:
    raise Killed


def test_a_stale_workers_writes_roll_back(app: Celery, courier: Courier, tm: TimeManagement, database: Database) -> None:
    @app.task(base=Task, bind=True, name="slow", shared=False, transactional=True)
    def slow(self: Task) -> None:
        if self.job.attempt == 1:
            with database.transaction() as tx:  # as if it had slept through its lease
                tx.execute(update(tables.job).values(lease_until=tx.now))
            sweep(database, default=tm.installation.default_policy, limit=10)
        self.job.session.execute(book.insert().values(line=f"attempt {self.job.attempt}"))

    handle = defer(slow.s(), retry={"kind": "fixed", "delay": 0})
    courier.deliver_all()
    assert (lines(database), handle.state) == (["attempt 2"], Status.SUCCEEDED)
    assert [one.outcome for one in tm.job(handle.id).executions] == ["succeeded", "orphaned"]


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_answer_is_lost_is_looked_up(
    app: Celery, courier: Courier, database: Database, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = BodyTransaction.commit_with
    calls: list[int] = []

    def unsure(self: BodyTransaction, finish: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            return real(self, finish)
        if committed:
            real(self, finish)
        else:
            self.roll_back()
        raise DatabaseUnavailable("db", "connection lost")

    monkeypatch.setattr(BodyTransaction, "commit_with", unsure)
    handle = defer(app.tasks["writes"].s("a"), retry={"kind": "fixed", "delay": 0})
    courier.deliver_all()
    assert (lines(database), handle.state) == (["a"], Status.SUCCEEDED)
    outcomes = [one.outcome for one in courier.tm.job(handle.id).executions]
    assert outcomes == (["succeeded"] if committed else ["succeeded", "failed"])


def test_a_sessionmaker_of_ones_own_makes_the_session(app: Celery, courier: Courier, database: Database) -> None:
    class OwnSession(Session):
        pass

    @app.task(
        base=Task, name="own", shared=False, transactional=True, session=sessionmaker(class_=OwnSession, autoflush=False)
    )
    def own() -> str:
        session = current_job().session
        session.execute(book.insert().values(line="own"))
        return type(session).__name__

    handle = defer(own.s(), key="k")
    courier.deliver_all()
    assert (handle.result, lines(database)) == ("OwnSession", ["own"])


def test_a_session_on_another_database_is_refused(database: Database, tmp_path) -> None:
    elsewhere = create_engine(f"sqlite:///{tmp_path}/elsewhere.db")
    with pytest.raises(ForeignSession, match="a transaction cannot span both"):
        refuse_foreign(database, sessionmaker(elsewhere))
    with pytest.raises(InvalidValue, match="binds= leads its writes past the job's transaction"):
        refuse_foreign(database, sessionmaker(binds={Session: database.engine}))
    refuse_foreign(database, sessionmaker(database.engine))
    refuse_foreign(database, None)


def test_job_session_needs_transactional(app: Celery, courier: Courier) -> None:
    @app.task(base=Task, bind=True, name="forgot", shared=False, max_retries=0)
    def forgot(self: Task) -> None:
        self.job.session.execute(select(1))

    handle = defer(forgot.s())
    courier.deliver_all()
    assert "has no job.session; give its task transactional=True" in (courier.tm.job(handle.id).last_error or "")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"transactional": "yes"}, "transactional: 'yes' is not True or False"),
        ({"session": sessionmaker()}, "session: nothing commits it"),
        ({"transactional": True, "chunk": 5}, "chunk: a transactional body commits alone"),
        ({"chunk": 0}, "chunk: 0 is not a number of jobs"),
        ({"chunk": True}, "chunk: True is not a number of jobs"),
        ({"chunk": "100"}, "chunk: '100' is not a number of jobs"),
    ],
)
def test_options_that_cannot_be_are_refused_when_the_task_is_made(options: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidValue, match=error):
        type("SomeTask", (Task,), {"abstract": True, **options})


def test_called_without_a_worker_it_commits_at_its_end(app: Celery, courier: Courier, database: Database) -> None:
    assert app.tasks["writes"]("plain call") == "plain call"
    app.tasks["writes"].apply(("applied",))
    with pytest.raises(ValueError, match="no"):
        app.tasks["writes"]("raised", "raises")
    assert lines(database) == ["plain call", "applied"]


def test_progress_and_lines_are_written_meanwhile(app: Celery, courier: Courier, database: Database) -> None:
    @app.task(base=Task, bind=True, name="talks", shared=False, transactional=True)
    def talks(self: Task) -> None:
        self.job.session.execute(book.insert().values(line="a"))
        self.job.report_progress("half way")
        self.job.log("a line")

    handle = defer(talks.s())
    courier.deliver_all()
    [execution] = courier.tm.job(handle.id).executions
    with database.transaction(write=False) as tx:
        assert [line["message"] for line in logs.of_execution(tx, execution.id)] == ["half way", "a line"]


def test_a_body_that_never_asks_for_its_session_costs_no_transaction(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(base=Task, name="idle", shared=False, transactional=True)
    def idle() -> None: ...

    monkeypatch.setattr(BodyTransaction, "commit_with", _killed)
    handle = defer(idle.s())
    courier.deliver_all()
    assert handle.state == Status.SUCCEEDED


def test_a_counter_is_exact_over_failures_and_retries(app: Celery, courier: Courier, database: Database) -> None:
    with database.engine.begin() as connection:
        connection.execute(book.insert().values(id=1, line="0"))

    @app.task(base=Task, bind=True, name="adds_up", shared=False, transactional=True, max_retries=5)
    def adds_up(self: Task, n: int) -> None:
        line = self.job.session.execute(select(book.c.line).where(book.c.id == 1)).scalar_one()
        self.job.session.execute(update(book).values(line=str(int(line) + 1)))
        if self.job.attempt <= n % 3:
            raise ValueError("not yet")

    for n in range(30):
        defer(adds_up.s(n), retry={"kind": "fixed", "delay": 0})
    courier.deliver_all(rounds=50)
    assert lines(database) == ["30"]
    with database.transaction(write=False) as tx:
        assert tx.execute(select(func.count()).select_from(tables.job)).scalar_one() == 0


def test_detached_errors_tell_what_to_do() -> None:
    with pytest.raises(TmError, match="no job runs here"):
        current_job()
