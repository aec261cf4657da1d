"""Bad input to `defer` and to the set-up: one clear error that names the field and the way out, and nothing written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, chain, group
from sqlalchemy import func, select

from celery_tm import TimeManagement, cancel, defer, defer_many
from celery_tm.errors import (
    DatabaseUnavailable,
    DriverMissing,
    InvalidValue,
    SchemaMissing,
    TmError,
    UnknownOption,
    UnknownSetting,
    UnknownTask,
)
from celery_tm.store import tables
from celery_tm.store.database import Database

BAD: list[tuple[str, dict[str, Any], type[TmError], str]] = [
    ("naive run_at", {"run_at": datetime(2030, 1, 1)}, InvalidValue, "run_at: .*no time zone"),
    (
        "past run_at",
        {"run_at": datetime.now(UTC) - timedelta(hours=1), "past": "raise"},
        InvalidValue,
        "run_at: .*in the past; give a later time, or past='now'",
    ),
    ("past", {"past": "skip"}, InvalidValue, "past: 'skip' is unknown; use one of now, raise"),
    ("run_at as text", {"run_at": "tomorrow"}, InvalidValue, "run_at: 'tomorrow' is not a datetime"),
    ("negative delay", {"delay": -1}, InvalidValue, "delay: -1 is negative"),
    ("delay in words", {"delay": "soon"}, InvalidValue, "delay: 'soon' is not a duration"),
    ("both", {"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, InvalidValue, "delay: run_at is given too"),
    ("empty key", {"key": ""}, InvalidValue, "key: it is empty"),
    ("blank key", {"key": " k"}, InvalidValue, "key: .*blanks"),
    ("long key", {"key": "k" * 256}, InvalidValue, "key: 256 characters"),
    ("key with NUL", {"key": "a\x00b"}, InvalidValue, "key"),
    ("number as key", {"key": 42}, InvalidValue, "key: 42 is not text"),
    ("long entity", {"entity_id": "e" * 201}, InvalidValue, "entity_id: 201 characters"),
    ("bad scope", {"scope": {"tenant": object()}}, InvalidValue, "scope"),
    ("typo", {"dealy": 5}, UnknownOption, "unknown option 'dealy', did you mean 'delay'"),
    (
        "on_duplicate",
        {"on_duplicate": "ignore"},
        InvalidValue,
        "on_duplicate: 'ignore' is unknown; use one of return, replace",
    ),
    ("priority", {"priority": "high"}, InvalidValue, "priority"),
    ("expired", {"expires": 0}, InvalidValue, "expires"),
    ("retries", {"max_retries": -1}, InvalidValue, "max_retries"),
    ("retry", {"retry": "sometimes"}, InvalidValue, "retry: unknown kind 'sometimes'"),
    ("timeout", {"timeout": 0}, InvalidValue, "timeout"),
    ("session", {"session": "postgresql://"}, InvalidValue, "session: str is no SQLAlchemy Session"),
    ("keep_key", {"keep_key": "long"}, InvalidValue, "keep_key"),
]


@pytest.mark.parametrize(("options", "error", "words"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_bad_options_write_nothing(
    app: Celery, database: Database, options: dict[str, Any], error: type[TmError], words: str
) -> None:
    with pytest.raises(error, match=words):
        defer(app.tasks["effect"].s(1), **options)
    with pytest.raises(error, match=words):
        defer_many([app.tasks["effect"].s(1), app.tasks["effect"].s(2)], **options)
    assert count(database) == 0


def count(database: Database) -> int:
    with database.transaction(write=False) as tx:
        return int(tx.execute(select(func.count()).select_from(tables.job)).scalar_one())


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("efect", UnknownTask, "unknown task 'efect', did you mean 'effect'"),
        ("no.such.task", UnknownTask, "remote=True"),
        ("", InvalidValue, "task: it is empty"),
        (42, InvalidValue, "task: 42 is no signature"),
        (None, InvalidValue, "task: None is no signature"),
    ],
)
def test_an_unknown_task_is_refused(app: Celery, database: Database, what: Any, error: type[TmError], words: str) -> None:
    with pytest.raises(error, match=words):
        defer(what, app=app)
    assert count(database) == 0


def test_arguments_that_are_not_json_are_refused_where_they_are(app: Celery, database: Database) -> None:
    with pytest.raises(InvalidValue, match=r"args\[0\]\['a'\]\[1\] = <object"):
        defer(app.tasks["effect"].s({"a": [1, object()]}))
    with pytest.raises(InvalidValue, match=r"kwargs\['n'\] = nan"):
        defer(app.tasks["effect"].s(n=float("nan")))
    assert count(database) == 0


def test_arguments_that_the_task_does_not_take_are_refused(app: Celery, database: Database) -> None:
    with pytest.raises(InvalidValue, match="effect does not take them"):
        defer(app.tasks["effect"].s(1, 2, 3))
    assert count(database) == 0


def test_several_tasks_at_once_are_refused(app: Celery) -> None:
    effect = app.tasks["effect"]
    for several in (chain(effect.s(1), effect.s(2)), group(effect.s(1), effect.s(2))):
        with pytest.raises(InvalidValue, match="is several tasks"):
            defer(several, app=app)


def test_cancel_needs_to_know_what(app: Celery) -> None:
    with pytest.raises(InvalidValue, match="id=, key= or entity_id="):
        cancel(task=app.tasks["effect"])


def test_run_due_jobs_needs_a_number_and_an_aware_instant(tm: TimeManagement) -> None:
    with pytest.raises(InvalidValue, match="limit"):
        tm.run_due_jobs(limit=0)
    with pytest.raises(InvalidValue, match=r"now: .*no time zone"):
        tm.run_due_jobs(now=datetime(2026, 1, 1))


def fresh(**conf: Any) -> Celery:
    app = Celery("fresh", broker="memory://", set_as_current=False)
    app.conf.update(conf)
    return app


@pytest.mark.parametrize(
    ("conf", "error", "words"),
    [
        ({"tm_leese": 5}, UnknownSetting, "unknown setting 'tm_leese', did you mean 'tm_lease'"),
        ({"tm_lease": -5}, InvalidValue, "tm_lease"),
        ({"tm_database_url": "not a url"}, InvalidValue, "tm_database_url: it is not a database URL; use e.g."),
        ({"tm_database_url": "oracle://x/y"}, InvalidValue, "tm_database_url: .*oracle"),
        ({"tm_database_url": "nosuchdb://x/y"}, InvalidValue, "tm_database_url: .*nosuchdb"),
        ({"tm_database_url": "postgresql+nodriver://x/y"}, InvalidValue, "tm_database_url: .*nodriver"),
    ],
)
def test_a_bad_setting_is_refused_on_first_use(conf: dict[str, Any], error: type[TmError], words: str) -> None:
    with pytest.raises(error, match=words):
        TimeManagement(fresh(**conf)).definitions.list()


def test_a_missing_driver_names_what_to_install() -> None:
    with pytest.raises(DriverMissing, match=r"pip install 'celery-tm\[mysql\]'"):
        TimeManagement(fresh(tm_database_url="mysql+mysqldb://root@127.0.0.1/x")).definitions.list()


def test_a_wrong_database_url_is_named_without_its_password() -> None:
    tm = TimeManagement(fresh(tm_database_url="postgresql://ann:secret@127.0.0.1:1/jobs"))
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1:1/jobs.*check tm_database_url") as refused:
        tm.definitions.list()
    assert "secret" not in str(refused.value)


def test_a_server_without_our_tables_names_the_command(postgresql_url: str) -> None:
    tm = TimeManagement(fresh(tm_database_url=postgresql_url, tm_schema="nothing_here"))
    with pytest.raises(SchemaMissing, match="celery -A app tm schema upgrade"):
        tm.definitions.list()
    tm.installation.database.dispose()
