"""What is to happen after a commit happens after that commit only: savepoints, closed sessions and bodies included."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, func, make_url, select, text, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, cancel, current_job, defer, defer_many, workflow
from celery_tm.domain.job import Status
from celery_tm.scheduler.dispatcher import Dispatcher
from celery_tm.store import logs, tables
from celery_tm.store.database import Database
from celery_tm.store.dialects import with_driver

metadata = MetaData()
page = Table("page", metadata, Column("id", Integer, primary_key=True), Column("line", String(100)), mysql_engine="InnoDB")


@pytest.fixture(autouse=True)
def pages(database: Database) -> Iterator[None]:
    metadata.drop_all(database.engine)
    metadata.create_all(database.engine)
    with database.engine.begin() as connection:
        for line in ("one", "two"):
            connection.execute(page.insert().values(line=line))
    yield
    metadata.drop_all(database.engine)


@pytest.fixture
def engine(database: Database) -> Engine:
    return database.engine


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Courier:
    app.conf.result_backend = "cache+memory://"
    return Courier(tm)


def lines(database: Database) -> list[str]:
    with database.engine.connect() as connection:
        found = connection.execute(select(page.c.line).where(page.c.id > 2).order_by(page.c.id))
        return list(found.scalars())


# A caller's session


def test_what_a_rolled_back_savepoint_deferred_is_not_published(app: Celery, courier: Courier, engine: Engine) -> None:
    plain = app.tasks["plain"]
    with Session(engine) as session:
        kept = defer(plain.s(1), session=session)
        inner = session.begin_nested()
        defer(plain.s(2), session=session)
        innermost = session.begin_nested()
        defer(plain.s(3), session=session)
        innermost.commit()
        inner.rollback()
        with session.begin_nested():
            also = defer(plain.s(4), session=session)
        assert courier.collect() == []
        session.commit()
    assert [one.headers["id"] for one in courier.collect()] == [kept.id, also.id]


@pytest.mark.parametrize("how", ["cancelled", "savepoint of the connection"])
def test_a_plain_task_whose_row_is_gone_at_the_commit_is_not_published(
    app: Celery, courier: Courier, engine: Engine, how: str
) -> None:
    if engine.dialect.name == "sqlite" and how != "cancelled":
        pytest.skip("its driver has no savepoints here")
    with Session(engine) as session:
        kept = defer(app.tasks["plain"].s(1), session=session)
        savepoint = session.connection().begin_nested() if how != "cancelled" else None
        gone = defer(app.tasks["plain"].s(2), session=session)
        if savepoint is not None:
            savepoint.rollback()
        else:
            assert cancel(id=gone.id, app=app, session=session)
        session.commit()
    assert [one.headers["id"] for one in courier.collect()] == [kept.id]


@pytest.mark.parametrize("how", ["session", "connection"])
def test_no_notification_is_sent_in_a_two_phase_transaction(
    app: Celery, tm: TimeManagement, database_url: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = tm.installation.database.dialect
    if dialect.name == "sqlite":
        pytest.skip("SQLite has no two-phase commit")
    notified: list[Any] = []
    monkeypatch.setattr(type(dialect), "wake", lambda *_, **__: notified.append(True))
    engine = create_engine(with_driver(make_url(database_url)))
    with engine.connect() as connection:
        two_phase = connection.begin_twophase()
        if how == "connection":
            defer(app.tasks["effect"].s(1), delay="0.2s", session=connection)
        else:
            with Session(connection) as session:
                defer(app.tasks["effect"].s(1), delay="0.2s", concurrency_key="k", session=session)
        two_phase.rollback()
    engine.dispose()
    assert notified == []  # PostgreSQL refuses to prepare a transaction that has notified


@pytest.mark.parametrize("how", ["close", "rollback", "expunge and close", "failed flush"])
def test_a_session_that_ends_without_a_commit_publishes_nothing_later(
    app: Celery, courier: Courier, engine: Engine, how: str
) -> None:
    session = Session(engine)
    defer(app.tasks["plain"].s(1), session=session)
    if how == "failed flush":
        with suppress(SQLAlchemyError):
            session.execute(text("INSERT INTO no_such_table VALUES (1)"))
        session.rollback()
    elif how == "rollback":
        session.rollback()
    else:
        session.close()
    kept = defer(app.tasks["plain"].s(2), session=session)
    session.commit()
    session.close()
    assert [one.headers["id"] for one in courier.collect()] == [kept.id]


@pytest.mark.parametrize("how", ["savepoint", "close", "commit"])
def test_a_cancel_that_is_rolled_back_marks_no_result(app: Celery, courier: Courier, engine: Engine, how: str) -> None:
    handle = defer(app.tasks["effect"].s(1), delay="1h")
    session = Session(engine)
    session.execute(select(1))
    if how == "savepoint":
        with session.begin_nested() as savepoint:
            assert cancel(id=handle.id, app=app, session=session)
            savepoint.rollback()
        session.commit()
    else:
        assert cancel(id=handle.id, app=app, session=session)
        session.commit() if how == "commit" else session.close()
        session.execute(select(1))
        session.commit()
    session.close()
    assert app.AsyncResult(handle.id).state == ("REVOKED" if how == "commit" else "PENDING")
    assert handle.state == (Status.CANCELED if how == "commit" else Status.SCHEDULED)


def test_a_session_on_somebody_elses_connection_publishes_nothing_itself(
    app: Celery, courier: Courier, engine: Engine, database: Database
) -> None:
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            defer(app.tasks["effect"].s(1), session=session)
            session.commit()
        assert courier.collect() == []
        outer.rollback()
    assert owed(database) == []
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection) as session:
            defer(app.tasks["effect"].s(2), session=session)
            session.commit()
        outer.commit()
    assert Dispatcher(courier.tm.installation, "beat").dispatch_due().sent == 1


# A transactional body


def test_what_a_body_rolls_back_is_not_published(app: Celery, courier: Courier, database: Database) -> None:
    plain = app.tasks["plain"]

    @app.task(base=Task, bind=True, name="rolls_back", shared=False, transactional=True, max_retries=0)
    def rolls_back(self: Task, how: str) -> None:
        session = self.job.session
        defer(plain.s("kept"))
        session.commit()
        if how == "savepoint":
            with suppress(ZeroDivisionError), session.begin_nested():
                defer(plain.s("lost"))
                cancel(id=waiting.id, app=app)
                raise ZeroDivisionError
        else:
            defer(plain.s("lost"))
            cancel(id=waiting.id, app=app)
            session.close() if how == "close" else session.rollback()
        defer(plain.s("also kept"))

    for how in ("rollback", "close", "savepoint"):
        waiting = defer(app.tasks["effect"].s(1), delay="1h")
        handle = defer(rolls_back.s(how))
        [message] = courier.collect()
        courier.deliver(message)
        assert handle.state == Status.SUCCEEDED
        assert [one.payload[0] for one in courier.collect()] == [["kept"], ["also kept"]], how
        assert (waiting.state, app.AsyncResult(waiting.id).state) == (Status.SCHEDULED, "PENDING")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("by", ["entity", "key", "id", "session"])
def test_a_body_that_cancels_its_own_does_not_wait_for_itself(
    app: Celery, courier: Courier, database: Database, by: str
) -> None:
    @app.task(base=Task, bind=True, name="clears", shared=False, transactional=True, max_retries=0)
    def clears(self: Task) -> None:
        self.job.session.execute(page.insert().values(line="cleared"))
        if by == "entity":
            assert cancel(entity_id="customer-7", app=app)
        elif by == "session":
            assert cancel(entity_id="customer-7", app=app, session=self.job.session)
        elif by == "key":
            assert not cancel(key="own", app=app)
        else:
            assert cancel(id=self.job.id, app=app)
        self.job.report_progress("half way")
        self.job.log("a line")
        seen.append(self.job.cancelled)

    seen: list[bool] = []
    other = defer(app.tasks["effect"].s(1), entity_id="customer-7", delay="1h")
    handle = defer(clears.s(), entity_id="customer-7", key="own")
    courier.deliver_all()
    if by == "id":
        assert (seen, handle.state, lines(database)) == ([True], Status.CANCELED, [])
    else:
        assert (seen, handle.state, lines(database)) == ([False], Status.SUCCEEDED, ["cleared"])
    assert other.state == (Status.CANCELED if by in ("entity", "session") else Status.SCHEDULED)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["replace", "return", "many", "id"])
def test_a_body_that_defers_its_own_key_does_not_wait_for_itself(
    app: Celery, courier: Courier, tm: TimeManagement, database: Database, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(base=Task, bind=True, name="defers_itself", shared=False, transactional=True, max_retries=0)
    def defers_itself(self: Task) -> None:
        self.job.session.execute(page.insert().values(line="body"))
        if how == "many":
            handles = defer_many([(self.s(), {"key": key}) for key in ("own", "other")], delay="1h")
        elif how == "id":
            self.apply_async(task_id=self.job.id, countdown=3600)
            handles = []
        else:
            handles = [defer(self.s(), key="own", on_duplicate=how, delay="1h")]
        seen.extend((handle.id == self.job.id, handle.created) for handle in handles)
        self.job.report_progress("half way")

    seen: list[tuple[bool, bool]] = []
    handle = defer(defers_itself.s(), key="own")
    courier.deliver_all()
    assert seen == {"many": [(True, False), (False, True)], "id": []}.get(how, [(True, False)])
    assert (handle.state, lines(database)) == (Status.SUCCEEDED, ["body"])
    assert "was not written" not in caplog.text
    [execution] = tm.job(handle.id).executions
    with database.transaction(write=False) as tx:
        assert [line["message"] for line in logs.of_execution(tx, execution.id)] == ["half way"]


@pytest.mark.timeout(60)
def test_a_step_that_cancels_its_run_does_not_wait_for_itself(
    app: Celery, courier: Courier, tm: TimeManagement, database: Database
) -> None:
    @app.task(base=Task, bind=True, name="ends_run", shared=False, transactional=True, max_retries=0)
    def ends_run(self: Task) -> None:
        self.job.session.execute(page.insert().values(line="step"))
        assert cancel(id=run.id, app=app)
        self.job.report_progress("half way")
        self.job.log("a line")

    run = defer(workflow([ends_run.s(), app.tasks["effect"].s(2)]), app=app)
    courier.dispatch()  # which starts the run
    courier.deliver_all()
    assert run.state == Status.CANCELED
    assert lines(database) == ["step"]
    assert owed(database) == []


def test_writes_that_a_swallowed_error_undid_are_no_success(app: Celery, courier: Courier, database: Database) -> None:
    @app.task(base=Task, bind=True, name="swallows", shared=False, transactional=True, max_retries=0)
    def swallows(self: Task) -> None:
        self.job.session.execute(page.insert().values(line="a"))
        with suppress(DBAPIError):
            self.job.session.execute(text("INSERT INTO no_such_table VALUES (1)"))

    handle = defer(swallows.s())
    courier.deliver_all()
    assert (handle.state, lines(database)) in ((Status.SUCCEEDED, ["a"]), (Status.FAILED, []))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("then", ["returns", "rolls back", "in a savepoint", "committed before"])
def test_a_deadlock_that_a_body_swallows_is_no_success(app: Celery, courier: Courier, database: Database, then: str) -> None:
    if not database.dialect.is_server:
        pytest.skip("nobody else can write meanwhile")

    @app.task(base=Task, bind=True, name="deadlocks", shared=False, transactional=True, max_retries=0)
    def deadlocks(self: Task) -> None:
        session = self.job.session
        session.execute(page.insert().values(line="before"))
        if then == "committed before":
            session.commit()
        try:
            if then == "in a savepoint":
                with session.begin_nested():
                    meet_a_deadlock(database, session)
            else:
                meet_a_deadlock(database, session)
        except SQLAlchemyError as error:
            seen.append(type(error).__name__)
        if then in ("rolls back", "committed before"):
            with suppress(SQLAlchemyError):
                session.rollback()
        with suppress(SQLAlchemyError):
            session.execute(page.insert().values(line="after"))

    seen: list[str] = []
    handle = defer(deadlocks.s())
    courier.deliver_all()
    assert seen, "there was no deadlock"
    expected = {
        ("postgresql", "in a savepoint"): (Status.SUCCEEDED, ["before", "after"]),
        ("postgresql", "rolls back"): (Status.SUCCEEDED, ["after"]),  # it took its writes back itself
        ("postgresql", "committed before"): (Status.SUCCEEDED, ["before", "after"]),
    }
    found = (handle.state, [line for line in lines(database) if line != "heavy"])
    assert found == expected.get((database.dialect.name, then), (Status.FAILED, []))


def meet_a_deadlock(database: Database, session: Session) -> None:
    """Wait for another transaction that waits for us; ours has written less, so it is the one that is ended."""
    ready, may_go = threading.Event(), threading.Event()

    def other() -> None:
        with database.engine.connect() as connection, suppress(DBAPIError), connection.begin():
            connection.execute(page.insert(), [{"line": "heavy"} for _ in range(200)])
            if database.dialect.name == "postgresql":
                connection.execute(text("SET LOCAL deadlock_timeout = '30s'"))  # so that ours looks for it
            connection.execute(update(page).where(page.c.id == 2).values(line="other"))
            ready.set()
            assert may_go.wait(30)
            connection.execute(update(page).where(page.c.id == 1).values(line="other"))

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert ready.wait(30)
        session.execute(update(page).where(page.c.id == 1).values(line="ours"))
        may_go.set()
        session.execute(update(page).where(page.c.id == 2).values(line="ours"))
    finally:
        may_go.set()
        if database.dialect.name == "mysql":
            thread.join(30)  # it has what it waited for, our transaction is gone
        else:
            threads.append(thread)


threads: list[threading.Thread] = []


@pytest.fixture(autouse=True)
def joined(pages: None) -> Iterator[None]:
    yield
    for thread in threads:
        thread.join(30)
    threads.clear()


def test_a_detached_body_acts_after_its_own_commit(app: Celery, courier: Courier, database: Database) -> None:
    @app.task(base=Task, name="detached", shared=False, transactional=True)
    def detached(fails: bool) -> Any:
        current_job().session.execute(page.insert().values(line="x"))
        defer(app.tasks["plain"].s(1), app=app)
        if fails:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        detached(True)
    assert (courier.collect(), lines(database)) == ([], [])
    detached(False)
    assert (len(courier.collect()), lines(database)) == (1, ["x"])
    with database.transaction(write=False) as tx:
        assert tx.execute(select(func.count()).select_from(tables.job)).scalar_one() == 0
