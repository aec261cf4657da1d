"""Chords on Redis: Celery's claim on a chord outlives the process that was killed while it published the body."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chord
from celery.backends.redis import RedisBackend
from celery.signals import before_task_publish
from sqlalchemy import update
from tmtest.courier import Courier, owed
from tmtest.services import find, own_redis, why_missing

from celery_tm import Task, TimeManagement
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import tables
from celery_tm.store.database import Database
from celery_tm.worker import context as contexts

pytestmark = pytest.mark.skipif(
    not hasattr(RedisBackend, "_chord_publish_claim_expires"), reason="this Celery claims no chords"
)


class Killed(BaseException):
    """Stands for a process that is killed: nothing of ours or of Celery's handles it."""


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Iterator[Courier]:
    if find("redis") is None:
        pytest.skip(why_missing("redis"))

    @app.task(base=Task, name="part", shared=False, max_retries=0)
    def part(number: int) -> int:
        return 1 // number

    @app.task(base=Task, name="total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    with own_redis() as (url, prefix):
        app.conf.result_backend = url
        app.conf.result_backend_transport_options = {"global_keyprefix": prefix}
        yield Courier(tm)


def dies(*_: Any, **__: Any) -> Any:
    raise Killed


def kill_at_publishing(courier: Courier, message: Any, task: str, patch: pytest.MonkeyPatch) -> None:
    """Deliver a message to a process that is killed when it publishes a task, and writes nothing more."""

    def die(sender: str, **_: Any) -> None:
        if sender == task:
            raise Killed

    patch.setattr(RedisBackend, "_chord_cleanup_script", lambda *_, **__: 1)
    for name in ("forget", "carry_on"):
        patch.setattr(f"celery_tm.store.following.{name}", dies)
    before_task_publish.connect(die, weak=False)
    try:
        with pytest.raises(Killed):
            courier.deliver(message)
    finally:
        before_task_publish.disconnect(die)
        contexts.leave()


def make_due(database: Database) -> None:
    database.run(lambda tx: tx.execute(update(tables.job).where(tables.job.c.state == "pending").values(run_at=tx.now)))


def test_a_chord_s_body_is_published_once_the_claim_of_a_killed_process_has_expired(
    app: Celery, courier: Courier, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = chord([app.tasks["part"].s(1), app.tasks["part"].s(1)])(app.tasks["total"].s())
    first, last = courier.collect()
    courier.deliver(first)
    with monkeypatch.context() as patch:
        kill_at_publishing(courier, last, "total", patch)
    group = last.headers["group"]
    claim = app.backend.get_key_for_group(group, ".c")
    assert app.backend.client.ttl(claim) > 0

    database.run(lambda tx: tx.execute(update(tables.job).values(lease_until=tx.now)))
    sweep(database, default=courier.tm.installation.default_policy, limit=100)
    courier.deliver_all()
    assert [one.task for one in owed(database)] == ["part"]  # kept: the body is still to be published

    app.backend.client.delete(claim)  # as if it had expired
    make_due(database)
    courier.deliver_all()
    assert result.get(timeout=10) == 2
    assert owed(database) == []
