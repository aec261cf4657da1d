"""Nothing grows beyond its limit: what callers give is refused, what bodies say is shortened, and every job still ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import func, select
from tmtest.courier import Courier, owed
from tmtest.said import listening

from celery_tm import Task, TimeManagement, current_job, defer, defer_many
from celery_tm.domain.codec import MAX_BYTES
from celery_tm.domain.definition import MAX_DEFINITION
from celery_tm.domain.execution import MAX_ERROR, MAX_LINES, MAX_MESSAGE, MAX_SHOWN_RESULT, MAX_TRACEBACK, Outcome
from celery_tm.domain.ids import new_id
from celery_tm.domain.job import MAX_ENTITY, MAX_ID, MAX_KEY, MAX_NAME, MAX_SCOPE, MAX_TASK, MAX_WORKER
from celery_tm.errors import InvalidValue
from celery_tm.installation import Installation, worker_name
from celery_tm.store import tables
from celery_tm.store.database import Database
from celery_tm.store.insertion import insert_one
from celery_tm.worker.reports import AT_ONCE, LAST_LINE

LONG = "five megabytes " * 350_000
TURTLE = "🐢"  # four bytes: limits are in characters
Told = tuple[Any, Any]  # as it was given, and as it is kept

# What a caller gives: the limit, and how to give a text of a length.


def _deferred(tm: TimeManagement, task: str = "effect", **options: Any) -> Any:
    handle = defer(task, delay="1h", app=tm.app, remote=True, **options)
    return tm.job(handle.id).job


def _as_args(tm: TimeManagement, size: int) -> Told:
    text = "x" * (size - 4)
    return f'["{text}"]', _deferred(tm, args=[text]).args


def _as_kwargs(tm: TimeManagement, size: int) -> Told:
    text = "x" * (size - 9)
    return f'{{"n": "{text}"}}', _deferred(tm, kwargs={"n": text}).kwargs


def _as_headers(tm: TimeManagement, size: int) -> Told:
    text = "x" * (size - 100 if size <= MAX_BYTES else size)  # with what Celery's signals may add to it
    handle = defer(tm.app.tasks["effect"].s(1).set(headers={"note": text}), delay="1h")
    found = tm.job(handle.id).job
    assert found is not None
    return text, found.options["headers"]["note"]


def _as_scope(tm: TimeManagement, size: int) -> Told:
    text = "x" * (size - 14)
    return text, _deferred(tm, scope={"tenant": text}).scope["tenant"]


def _as_id(tm: TimeManagement, size: int) -> Told:
    handle = defer(tm.app.tasks["effect"].s(1).set(task_id=TURTLE * size), delay="1h")
    return TURTLE * size, tm.job(handle.id).id


def _as_name(tm: TimeManagement, size: int) -> Told:
    tm.definitions.add(name=TURTLE * size, task="effect", schedule="@daily")
    return TURTLE * size, tm.definitions.get(TURTLE * size).name


def _as_definition(tm: TimeManagement, size: int) -> Told:
    half = (size - 75) // 2
    texts = ["x" * half, "y" * (size - 75 - half)]
    found = tm.definitions.add(name="long", task="effect", args=texts[:1], kwargs={"n": texts[1]}, schedule="@daily")
    return texts[1], tm.definitions.get(found.name).kwargs[7:-2]


def _column(name: str, option: str = "") -> Callable[[TimeManagement, int], Told]:
    def give(tm: TimeManagement, size: int) -> Told:
        return TURTLE * size, getattr(_deferred(tm, **{option or name: TURTLE * size}), name)

    return give


GIVEN: dict[str, tuple[int, Callable[[TimeManagement, int], Told]]] = {
    "args": (MAX_BYTES, _as_args),
    "kwargs": (MAX_BYTES, _as_kwargs),
    "options": (MAX_BYTES, _as_headers),
    "scope": (MAX_SCOPE, _as_scope),
    "key": (MAX_KEY, _column("dedupe_key", "key")),
    "concurrency_key": (MAX_KEY, _column("concurrency_key")),
    "entity_id": (MAX_ENTITY, _column("entity_id")),
    "queue": (255, _column("queue")),
    "actor": (255, _column("actor")),
    "task": (MAX_TASK, _column("task")),
    "task_id": (MAX_ID, _as_id),
    "name": (MAX_NAME, _as_name),
    "definition": (MAX_DEFINITION, _as_definition),
}


def test_what_a_caller_gives_is_kept_whole_at_its_limit_and_refused_beyond(tm: TimeManagement) -> None:
    for field, (limit, give) in GIVEN.items():
        given, kept = give(tm, limit)
        assert kept == given, field
        if field == "definition":
            tm.definitions.remove("long")
        before = _rows(tm)
        with pytest.raises(InvalidValue, match=rf"{field}: .*characters.*; stay (within|under) {limit:,}") as refused:
            give(tm, limit + 1)
        assert refused.value.field == field
        assert _rows(tm) == before


def _rows(tm: TimeManagement) -> int:
    with tm.installation.database.transaction(write=False) as tx:
        counted = (select(func.count()).select_from(one) for one in (tables.job, tables.definition, tables.version))
        return sum(tx.execute(each).scalar_one() for each in counted)


def test_many_jobs_with_long_arguments_are_written_at_once(tm: TimeManagement) -> None:
    text = "x" * (MAX_BYTES - 4)
    calls = [tm.app.tasks["effect"].s(text) for _ in range(20)]  # a packet of MySQL holds 16 of them
    handles = defer_many(calls, delay="1h")
    assert {len(tm.job(handle.id).job.args or "") for handle in handles} == {MAX_BYTES}  # type: ignore[union-attr]


def test_what_cannot_be_stored_is_refused_in_our_words_and_the_connection_goes_on(database: Database) -> None:
    refuse_what_is_too_long(database)
    with listening(database):  # where somebody listens, statements take another way
        refuse_what_is_too_long(database)


def refuse_what_is_too_long(database: Database) -> None:
    draft = {"id": new_id(), "task": "effect", "args": "[]", "delay": timedelta(0), "original_delay": timedelta(0)}
    for alone in (True, False):
        with pytest.raises(InvalidValue, match="value: 1,000,009 characters"):
            database.run(lambda tx: insert_one(tx, draft | {"scope": {"a": "x" * MAX_BYTES}}, fresh=True), alone=alone)
    assert database.run(lambda tx: insert_one(tx, draft, fresh=True), alone=True) is not None


def test_a_task_whose_name_is_too_long_is_refused_when_it_is_made(app: Celery) -> None:
    def body() -> None: ...

    app.task(base=Task, name="t" * MAX_TASK, shared=False, lazy=False)(body)
    with pytest.raises(InvalidValue, match="task: 256 characters are too many; stay within 255"):
        app.task(base=Task, name="t" * (MAX_TASK + 1), shared=False, lazy=False)(body)


def test_a_worker_with_a_long_name_runs_jobs_under_a_shorter_one(tm: TimeManagement) -> None:
    courier = Courier(tm, hostname="w" * 300)
    handle = defer("effect", app=tm.app)
    called = tm.app.tasks["effect"].delay()
    assert courier.deliver_all() == 2
    for id in (handle.id, called.id):
        [execution] = tm.job(id).executions
        assert len(execution.worker or "") == MAX_WORKER
    assert worker_name("w" * 300, 1) != worker_name("w" * 301, 1)


# What a body says and returns


class Unspeakable(Exception):
    """An error that cannot be shown in any way."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class Speechless(Exception):
    """An error that shows itself as what is no text."""

    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class Opaque:
    """A result that is no JSON and cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")


class OddJson:
    """A result that says how it is JSON, and cannot."""

    def __json__(self) -> Any:
        raise KeyError("no JSON")


def raises(make: Callable[[], BaseException]) -> Callable[[], Any]:
    def body() -> None:
        raise make()

    return body


def fails(what: Any) -> None:
    current_job().report_failure(what)


def succeeds(what: Any) -> None:
    current_job().report_success(what)


# What the body does, how that ends, and what the record says of it.
ENDS: dict[str, tuple[Callable[[], Any], Outcome, str]] = {
    "an error of megabytes": (raises(lambda: ValueError(LONG)), Outcome.FAILED, "ValueError: five"),
    "an error that cannot be shown": (raises(Unspeakable), Outcome.FAILED, "Unspeakable"),
    "an error that shows no text": (raises(Speechless), Outcome.FAILED, "Speechless"),
    "a NUL in an error": (raises(lambda: ValueError("a\x00b")), Outcome.FAILED, "a\ufffdb"),
    "half a surrogate in an error": (raises(lambda: ValueError("a\ud800b")), Outcome.FAILED, "a?b"),
    "a reported failure of megabytes": (lambda: fails(LONG), Outcome.FAILED, "five megabytes"),
    "a reported failure that cannot be shown": (lambda: fails(Unspeakable()), Outcome.FAILED, "Unspeakable"),
    "a message of megabytes": (lambda: succeeds(LONG), Outcome.SUCCEEDED, "five megabytes"),
    "a message that is no text": (lambda: succeeds({"rows": 3}), Outcome.SUCCEEDED, "{'rows': 3}"),
    "a message that cannot be shown": (lambda: succeeds(Opaque()), Outcome.SUCCEEDED, "Opaque"),
    "a NUL in a message": (lambda: succeeds("a\x00b\x1f"), Outcome.SUCCEEDED, "a\ufffdb"),
    "a result of ten megabytes": (lambda: [LONG, LONG], Outcome.SUCCEEDED, ""),
    "a result that is no JSON": (lambda: {1j}, Outcome.SUCCEEDED, ""),
    "a result that cannot be shown": (Opaque, Outcome.SUCCEEDED, ""),
    "a result that fails to be JSON": (OddJson, Outcome.SUCCEEDED, ""),
    "a NUL in a result": (lambda: "a\x00b\ud800", Outcome.SUCCEEDED, ""),
}


@pytest.fixture
def courier(app: Celery, tm: TimeManagement, monkeypatch: pytest.MonkeyPatch) -> Courier:
    monkeypatch.setattr(logging.getLogger("celery.app.trace"), "disabled", True)  # it says all of it once more
    for chunk in (None, 10):

        @app.task(base=Task, name=f"ends{chunk or ''}", shared=False, max_retries=0, ignore_result=True, chunk=chunk)
        def ends(how: str) -> Any:
            return ENDS[how][0]()

    return Courier(tm)


@pytest.mark.parametrize("task", ["ends", "ends10"])
def test_however_much_a_body_says_its_attempt_ends_with_its_outcome(courier: Courier, task: str) -> None:
    tm = courier.tm
    asked = [(how, defer(task, args=[how], key=how, app=tm.app).id) for how in ENDS]
    asked += [(how, tm.app.tasks[task].delay(how).id) for how in ENDS]
    courier.deliver_all()
    assert owed(tm.installation.database) == []
    for how, id in asked:
        _, outcome, told = ENDS[how]
        story = tm.job(id)
        [one] = story.executions
        assert one.outcome is outcome, how
        assert told in (one.error or "") + (one.message or ""), how
        lengths = [len(text or "") for text in (one.error, one.message, one.traceback)]
        assert all(size <= most for size, most in zip(lengths, (MAX_ERROR, MAX_MESSAGE, MAX_TRACEBACK), strict=True)), how


def test_a_result_is_kept_with_its_key_whole_or_as_much_as_shows_what_it_was(tm: TimeManagement, courier: Courier) -> None:
    sizes = {"whole": MAX_BYTES - 2, "longer": MAX_BYTES - 1}
    for key, size in sizes.items():
        ENDS[key] = (lambda size=size: "x" * size, Outcome.SUCCEEDED, "")  # type: ignore[misc]
        defer("ends", args=[key], key=key, app=tm.app)
    courier.deliver_all()
    kept = {key: defer("ends", args=[key], key=key, app=tm.app).result for key in sizes}
    assert kept["whole"] == "x" * sizes["whole"]
    assert len(kept["longer"]) <= MAX_SHOWN_RESULT
    assert "more …" in kept["longer"]


def test_lines_are_kept_whole_at_their_limit_and_shortened_with_a_mark_beyond(tm: TimeManagement, app: Celery) -> None:
    @app.task(base=Task, name="talks", shared=False)
    def talks() -> None:
        job = current_job()
        job.log(TURTLE * MAX_MESSAGE)
        job.log(LONG, level="error")
        job.log("a\x00b\ud800")
        job.report_progress(TURTLE * MAX_MESSAGE)
        time.sleep(0.25)
        job.report_progress(LONG)

    handle = defer(talks.s())
    Courier(tm).deliver_all()
    whole, long, odd, progress, much = [line.message for line in tm.log(handle.id)]
    assert (whole, odd, progress) == (TURTLE * MAX_MESSAGE, "a\ufffdb?", TURTLE * MAX_MESSAGE)
    for text in (long, much):
        assert len(text) <= MAX_MESSAGE
        assert text.startswith("five")
        assert "more …" in text


def test_a_body_that_never_stops_talking_does_not_flood_the_database(
    tm: TimeManagement, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(base=Task, name="babbles", shared=False)
    def babbles() -> None:
        job = current_job()
        for number in range(MAX_LINES + 500):
            job.report_progress(f"{number} of many")
            job.log(f"line {number}")

    database, writes = Installation.of(app).database, []
    run = database.run
    monkeypatch.setattr(database, "run", lambda *args, **options: writes.append(args) or run(*args, **options))
    began = time.monotonic()
    handle = defer(babbles.s())
    Courier(tm).deliver_all()
    took = time.monotonic() - began
    [execution] = tm.job(handle.id).executions
    assert execution.outcome is Outcome.SUCCEEDED
    lines = _lines(tm, execution.id)
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == ("warning", LAST_LINE)
    said = [message for level, message in lines[:-1] if level == "info"]
    assert said == [f"line {number}" for number in range(len(said))]
    assert len(writes) <= 100 + 10 * took  # of more than 20,000 calls


def _lines(tm: TimeManagement, execution: str) -> list[tuple[str, str]]:
    log = tables.log
    with tm.installation.database.transaction(write=False) as tx:
        query = select(log.c.level, log.c.message).where(log.c.execution == execution).order_by(log.c.id)
        return [(row.level, row.message) for row in tx.execute(query)]


def test_what_is_said_last_is_kept_however_the_attempt_ends(tm: TimeManagement, app: Celery) -> None:
    @app.task(base=Task, bind=True, name="last words", shared=False, max_retries=0)
    def last_words(self: Task, how: str) -> None:
        for number in range(AT_ONCE + 20):
            self.job.log(f"{number}")
        if how == "raises":
            raise ValueError("no")
        if how == "retries":
            raise self.retry(countdown=3600, max_retries=5)

    handles = [defer(last_words.s(how)) for how in ("returns", "raises", "retries")]
    Courier(tm).deliver_all()
    for handle in handles:
        assert [line.message for line in tm.log(handle.id, limit=1000)] == [f"{n}" for n in range(AT_ONCE + 20)]
