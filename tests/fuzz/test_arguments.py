"""What `defer` is given: stored and delivered as it is, or refused by an error of ours, never by one of a driver's."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.utils.json import dumps
from sqlalchemy import text
from tmtest.courier import owed

from celery_tm import Task, TimeManagement, defer
from celery_tm.domain.codec import decode
from celery_tm.errors import DatabaseReadOnly, InvalidValue, TmError
from fuzz.inbox import Inbox, collect
from fuzz.values import ANY_TEXT, VALUES, Rude

OPTIONS = ("key", "entity_id", "scope", "delay", "run_at", "expires", "priority", "max_retries", "retry", "timeout", "queue",
           "keep_key", "actor", "on_duplicate", "concurrency_key", "concurrency", "args", "kwargs", "session", "app",
           "remote")  # fmt: skip


@pytest.fixture(params=["sqlite", "postgresql", "mysql"])
def app(request: pytest.FixtureRequest, app_on: Callable[[str], Celery]) -> Celery:
    return app_on(request.param)


@pytest.fixture
def try_out(examples: int, thorough: bool) -> Callable[..., Any]:
    """Return how to try a property with many examples."""

    def tried(**given_: st.SearchStrategy[Any]) -> Callable[..., Any]:
        def run(check: Any) -> None:
            limits = settings(
                max_examples=examples * 5, derandomize=not thorough, suppress_health_check=list(HealthCheck), database=None
            )
            limits(given(**given_)(check))()

        return run

    return tried


def test_arguments_come_back_as_they_are_or_are_refused(app: Celery, try_out: Callable[..., Any]) -> None:
    database, effect, refused = TimeManagement(app).installation.database, app.tasks["effect"], list[str]()

    def check(value: Any) -> None:
        try:
            handle = defer(effect.s(value))
        except TmError as error:
            refused.append(str(error))
            return
        [stored] = [job.args for job in owed(database) if job.id == handle.id]
        assert dumps(decode(stored)) == dumps([value])  # as text: Decimal("NaN") is not even itself
        [raw] = collect(app)
        assert json.loads(base64.b64decode(raw["body"]))[0] == json.loads(dumps([value]))

    try_out(value=VALUES)(check)
    assert refused


def test_options_are_read_or_refused(app: Celery, try_out: Callable[..., Any]) -> None:
    effect, refused = app.tasks["effect"], list[str]()

    def check(name: str, value: Any, words: str) -> None:
        for given_ in (value, words):
            try:
                assert defer("effect", **{"app": app, name: given_}).id
                assert defer(effect.s(1).set(**{name: given_})).id
            except TmError as error:
                refused.append(str(error))
        collect(app)

    try_out(name=st.sampled_from(OPTIONS), value=VALUES, words=ANY_TEXT)(check)
    assert refused


def test_what_a_direct_call_is_given_is_run_or_refused_by_plain_celery(app: Celery, try_out: Callable[..., Any]) -> None:
    """A key that a task's own rule makes of odd arguments is one that every database holds."""
    inbox, keyed = Inbox(app), app.tasks["keyed"]

    def check(words: str) -> None:
        keyed.delay(words)
        [raw] = collect(app)
        inbox.take(raw)
        inbox.take(raw)

    try_out(words=ANY_TEXT)(check)


def late() -> None:
    """Do nothing."""


@pytest.mark.parametrize("value", ["soon", "-1s", "30", ""])
def test_an_expiry_that_nobody_can_read_is_refused_where_it_is_stated(value: str) -> None:
    own = Celery("own", broker="memory://", set_as_current=False)
    with pytest.raises(InvalidValue, match="expires"):
        own.task(base=Task, name="expiring", shared=False, expires=value, lazy=False)(late)
    task = own.task(base=Task, name="expiring", shared=False)(late)
    with pytest.raises(InvalidValue, match="expires"):
        task.apply_async(expires=value)


@pytest.mark.parametrize("value", ["30s", timedelta(seconds=30)])
def test_an_expiry_in_words_is_one_for_a_task_and_for_a_call(app_on: Callable[[str], Celery], value: Any) -> None:
    app = app_on("sqlite")
    task = app.task(base=Task, name="expiring", shared=False, expires=value)(late)
    assert task.expires == 30
    for raw in ([task.delay(), *collect(app)], [app.tasks["effect"].apply_async(expires=value), *collect(app)]):
        assert 0 < (datetime.fromisoformat(raw[1]["headers"]["expires"]) - datetime.now(UTC)).total_seconds() <= 30


@pytest.mark.parametrize("options", [{"app": "shop"}, {"scope": 10**5000}, {"scope": Rude()}, {"on_duplicate": Rude()}])
def test_options_that_cannot_even_be_shown_are_refused(app_on: Callable[[str], Celery], options: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue, match=next(iter(options))):
        defer("effect", **{"app": app_on("sqlite"), **options})


def test_a_transaction_that_may_only_read_is_told_where_to_write(app_on: Callable[[str], Celery]) -> None:
    app = app_on("postgresql")
    engine = TimeManagement(app).installation.database.engine
    with engine.connect() as reading:
        reading.execute(text("SET TRANSACTION READ ONLY"))
        with pytest.raises(DatabaseReadOnly, match="session= a transaction that may write"):
            defer(app.tasks["effect"].s(1), session=reading)
        reading.rollback()
