"""What creating jobs costs: so many statements, round trips and commits, however many jobs; lookups go by index."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import event, insert, select, text
from tmtest import wire
from tmtest.wire import Talk

from celery_tm import Task, TimeManagement, defer, defer_many
from celery_tm.domain.job import JobState
from celery_tm.errors import InvalidValue
from celery_tm.store import insertion, jobs, keys, tables
from celery_tm.store.database import Database
from celery_tm.store.given import BETWEEN, ByPairs, as_texts
from celery_tm.testing import MovableClock

HOUR = timedelta(hours=1)
MANY = 500
BEGIN_AND_COMMIT = 2


@pytest.fixture
def listen(database: Database, app: Celery, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], Talk]:
    """Count what PostgreSQL is told, once its driver has prepared what it prepares."""
    if database.dialect.name != "postgresql":
        pytest.skip("the wire of PostgreSQL is listened to")
    monkeypatch.setattr("celery_tm.store.connections.TRUSTED_FOR", 600)  # or a slow machine asks whether it lives

    def counted(action: Callable[[], object]) -> Talk:
        for _ in range(7):
            action()
        return wire.listen(database, action)

    return counted


def fresh_key() -> str:
    return f"key:{random.getrandbits(64)}"


def test_a_defer_is_one_statement_one_round_trip_and_one_commit(listen, app: Celery) -> None:
    assert listen(lambda: defer(app.tasks["effect"].s(1), delay="15m")) == Talk(1, 1, 1)


def test_so_is_one_that_is_published_at_once(listen, app: Celery) -> None:
    assert listen(lambda: defer(app.tasks["effect"].s(1))) == Talk(1, 1, 1)


def test_so_is_a_call_far_ahead(listen, app: Celery) -> None:
    assert listen(lambda: app.tasks["effect"].apply_async((1,), countdown=900)) == Talk(1, 1, 1)


def test_a_call_whose_id_was_chosen_asks_whether_it_ran(listen, app: Celery) -> None:
    talk = listen(lambda: app.tasks["effect"].apply_async((1,), countdown=900, task_id=fresh_key()))
    assert (talk.statements - BEGIN_AND_COMMIT, talk.commits) == (2, 1)


def test_a_defer_that_beat_is_woken_for_says_so_in_its_transaction(listen, app: Celery) -> None:
    assert listen(lambda: defer(app.tasks["effect"].s(1), delay=0.5)).commits == 1


def test_a_defer_with_a_key_writes_and_asks_in_one_transaction(listen, app: Celery) -> None:
    talk = listen(lambda: defer(app.tasks["effect"].s(1), delay="15m", key=fresh_key()))
    assert (talk.statements - BEGIN_AND_COMMIT, talk.commits) == (2, 1)


def test_thousands_of_jobs_cost_what_one_costs(listen, app: Celery) -> None:
    assert listen(lambda: defer_many([app.tasks["effect"].s(n) for n in range(MANY)], delay="15m")) == Talk(1, 1, 1)


def test_many_jobs_without_keys_have_nothing_to_replace(listen, app: Celery) -> None:
    items = [app.tasks["effect"].s(n) for n in range(3)]
    assert listen(lambda: defer_many(items, delay="15m", on_duplicate="replace")) == Talk(1, 1, 1)


def test_thousands_of_jobs_with_keys_are_written_by_one_statement_and_asked_for_by_another(listen, app: Celery) -> None:
    effect = app.tasks["effect"]
    talk = listen(lambda: defer_many([(effect.s(n), {"key": fresh_key()}) for n in range(MANY)], delay="15m"))
    assert (talk.statements - BEGIN_AND_COMMIT, talk.commits) == (2, 1)


def test_keys_that_are_taken_are_found_by_one_more(listen, app: Celery) -> None:
    effect = app.tasks["effect"]
    items = [(effect.s(n), {"key": f"k{n}"}) for n in range(MANY)]
    handles = defer_many(items, delay="15m")
    talk = listen(lambda: defer_many(items, delay="15m"))
    assert (talk.statements - BEGIN_AND_COMMIT, talk.commits) == (3, 1)
    assert [one.id for one in defer_many(items, delay="15m")] == [one.id for one in handles]


def test_keys_that_have_succeeded_are_taken_back_by_one_more(listen, app: Celery, database: Database) -> None:
    items = [(app.tasks["effect"].s(n), {"key": f"k{n}"}) for n in range(MANY)]
    succeed(database, [f"k{n}" for n in range(MANY)])
    talk = listen(lambda: defer_many(items, delay="15m"))
    assert (talk.statements - BEGIN_AND_COMMIT, talk.commits) == (3, 1)
    with database.transaction(write=False) as tx:
        assert jobs.select_jobs(tx) == []


def succeed(database: Database, wanted: list[str]) -> None:
    now = datetime.now(UTC)
    rows = [
        {"task": "effect", "key": key, "job": f"job-{key}", "execution": "e", "done_at": now, "kept_until": now + HOUR}
        for key in wanted
    ]
    with database.transaction() as tx:
        tx.execute(insert(tables.key), rows)


def test_more_jobs_take_no_more_statements_each(app: Celery, database: Database) -> None:
    def statements_for(count: int) -> int:
        items = [(app.tasks["effect"].s(n), {"key": fresh_key()}) for n in range(count)]
        seen: list[str] = []

        def note(_c: object, _cur: object, statement: str, *_: object) -> None:
            seen.append(statement)

        event.listen(database.engine, "before_cursor_execute", note)
        try:
            defer_many(items, delay="15m")
        finally:
            event.remove(database.engine, "before_cursor_execute", note)
        return len(seen)

    defer(app.tasks["effect"].s(1), delay="15m")
    assert statements_for(2 * MANY) <= 2 * statements_for(MANY)


@pytest.mark.parametrize("lookup", [keys._AMONG[True], jobs._BY_KEY], ids=["succeeded", "owed"])
def test_keys_are_looked_up_by_index(app: Celery, database: Database, lookup: ByPairs) -> None:
    if not database.dialect.takes_tables:
        pytest.skip("the others are asked for a list of pairs")
    names = [f"k{n}" for n in range(10 * MANY)]
    succeed(database, names)
    defer_many([(app.tasks["fails"].s(n), {"key": key}) for n, key in enumerate(names)], delay="15m")
    with database.transaction() as tx:
        for table in (tables.key, tables.job):
            tx.execute(text(f"ANALYZE {table.name}"))
        prepared = lookup._prepared.text(tx.dialect, tx.dialect.clock, tx.connection.dialect, None)
        lists = as_texts({column.name: ["effect", "effect"] for column in lookup._pair})
        cursor = tx.connection.connection.cursor()
        cursor.execute(f"EXPLAIN {prepared.text}", lists)
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Index" in plan
    assert "Seq Scan" not in plan


# What is written


def calls(app: Celery) -> list[tuple[Any, dict[str, Any]]]:
    """Return calls with options in every mixture, the same each time."""
    later = datetime(2026, 6, 2, 9, 30, tzinfo=UTC)
    tasks = [app.tasks["effect"], app.tasks["fails"], app.tasks["flaky"]]
    values: dict[str, list[Any]] = {
        "delay": [0, 0.25, "15m", timedelta(days=200, microseconds=1)],
        "run_at": [later],
        "key": ["a", "b'\"\\", "ü{}", "c,d"],
        "keep_key": ["2h", None],
        "entity_id": ["42", "\u00e9"],
        "scope": [{"tenant_id": 7}, {"x": "\\x1f"}],
        "queue": ["slow", None],
        "priority": [0, 1, 255],
        "expires": ["3d", later + 300 * HOUR],
        "max_retries": [0, 1, None],
        "retry": ["never", {"kind": "fixed", "delay": 3}, None],
        "timeout": [1.5, None],
        "actor": ["ann"],
        "concurrency_key": ["lane"],
    }
    told = random.Random(7)
    made = []
    for n in range(150):
        task = told.choice(tasks)
        signature = task.s(n, 1) if task.name == "flaky" else task.s({"n": n, "text": "\x1f\x1e\n\u2028"})
        if told.random() < 0.2:
            signature.set(headers={"n": told.choice([1, 1.0, True, "1"])}, queue="own", priority=3)
        options = {name: told.choice(some) for name, some in values.items() if told.random() < 0.25}
        if "run_at" in options:
            options.pop("delay", None)
        made.append((signature, options))
    return made


def rows_of(database: Database) -> list[dict[str, Any]]:
    with database.transaction() as tx:
        rows = tx.execute(select(tables.job).order_by(tables.job.c.id)).all()
        tx.execute(tables.job.delete())
    return [{name: value for name, value in row._mapping.items() if name != "id"} for row in rows]


@pytest.mark.parametrize("is_noon", [True, False], ids=["moved clock", "own clock"])
def test_many_jobs_are_written_as_they_are_one_by_one(
    app: Celery, database: Database, tm_clock: MovableClock, is_noon: bool
) -> None:
    tm_clock.move_to(datetime(2026, 6, 1, 12, tzinfo=UTC))
    if not is_noon:
        tm_clock.release()
    made = [(what, options) for what, options in calls(app) if is_noon or "run_at" not in options]
    made = [(what, options) for what, options in made if is_noon or not isinstance(options.get("expires"), datetime)]
    singly = [defer(what, **options) for what, options in made]
    one_by_one = rows_of(database)
    together = defer_many(made)
    at_once = rows_of(database)

    def plain(row: dict[str, Any]) -> dict[str, Any]:
        times = {name for name in row if name.endswith(("_at", "_until")) and not is_noon}
        return {name: value is not None if name in times else (type(value), value) for name, value in row.items()}

    assert [plain(row) for row in at_once] == [plain(row) for row in one_by_one]
    assert [(one.created, one.task, one.key) for one in together] == [(one.created, one.task, one.key) for one in singly]
    assert len(at_once) > 50


def test_handles_of_many_jobs_say_when_theirs_are_due(app: Celery, database: Database) -> None:
    delays = [timedelta(0), timedelta(microseconds=1), 15 * HOUR, timedelta(days=36_500)]
    handles = defer_many([(app.tasks["effect"].s(n), {"delay": delay}) for n, delay in enumerate(delays)])
    with database.transaction(write=False) as tx:
        written = [jobs.find(tx, handle.id) for handle in handles]
    assert [handle.run_at for handle in handles] == [job.run_at for job in written if job]
    assert [job.run_at - job.created_at for job in written if job] == delays
    assert [job.state for job in written if job] == [JobState.DISPATCHED, *[JobState.PENDING] * 3]


def test_ids_of_many_jobs_sort_as_they_were_given(app: Celery) -> None:
    handles = defer_many([app.tasks["effect"].s(n) for n in range(MANY)], delay="15m")
    assert [one.id for one in handles] == sorted({one.id for one in handles})


def test_a_draft_with_what_stands_between_values_is_refused(app: Celery, database: Database) -> None:
    if not database.dialect.takes_tables:
        pytest.skip("only a text that is taken apart could be taken apart wrongly")
    draft = {"task": "t", "args": "[]", "delay": HOUR, "original_delay": HOUR, "max_retries": 1}
    with pytest.raises(InvalidValue, match="id"):
        database.run(lambda tx: insertion.insert_many(tx, [draft | {"id": f"a{BETWEEN}b"}, draft | {"id": "c"}]))


def test_garbage_is_collected_again_after_many_jobs(app: Celery) -> None:
    defer_many([app.tasks["effect"].s(1)], delay="15m")
    assert gc.isenabled()
    with pytest.raises(InvalidValue):
        defer_many([app.tasks["effect"].s(1)], delay=-1)
    assert gc.isenabled()


def test_jobs_of_several_apps_are_refused(app: Celery, tm: TimeManagement) -> None:
    other = Celery("other", set_as_current=False, broker="memory://")
    other.conf.tm_database_url = app.conf.tm_database_url

    @other.task(base=Task, name="effect", shared=False)
    def effect(n: int) -> None: ...

    with pytest.raises(InvalidValue, match="several Celery apps"):
        defer_many([app.tasks["effect"].s(1), effect.s(1)], delay="15m")
