"""What people look at needs no right to write: commands and pages may read from a replica of PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import make_url
from tmtest import services

from celery_tm import Task, TimeManagement, clock, defer
from celery_tm.errors import DatabaseReadOnly

READ_ONLY = {"options": "-c default_transaction_read_only=on"}  # as every session of a replica


def shop(url: str) -> TimeManagement:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.tm_database_url = url

    @app.task(base=Task, name="shop.pack", shared=False)
    def pack(order_id: int) -> int:
        return order_id

    return TimeManagement(app)


def pack_of(tm: TimeManagement) -> Any:
    return tm.installation.app.tasks["shop.pack"]


@pytest.fixture
def own_url() -> Iterator[str]:
    if not services.find("postgresql"):
        pytest.skip(services.why_missing("postgresql"))
    with services.own_database("postgresql", suffix="_replica") as url:
        yield url


def test_everything_that_only_looks_works_on_a_replica(own_url: str) -> None:
    primary = shop(own_url)
    primary.upgrade()
    primary.definitions.add(name="nightly", task="shop.pack", args=[1], schedule="30 2 * * *")
    done, waiting = (defer(pack_of(primary).s(n), delay=delay) for n, delay in ((1, "1s"), (2, "1d")))
    primary.run_due_jobs(now=clock.now() + timedelta(minutes=1))

    replica = shop(make_url(own_url).update_query_dict(READ_ONLY).render_as_string(hide_password=False))
    assert [job.id for job in replica.jobs()] == [waiting.id]
    assert [execution.job for execution in replica.history()] == [done.id]
    assert replica.job(done.id).state == "SUCCEEDED"
    assert "nightly" in [definition.name for definition in replica.definitions.list()]
    assert "nightly" in str(replica.explain("nightly"))
    assert (replica.dead_letters.list(), replica.occurrences("nightly")) == ([], [])
    for look in (replica.status, replica.doctor, replica.audit):
        assert look()
    with pytest.raises(DatabaseReadOnly, match=r"read-only transaction.*use the primary in tm_database_url"):
        defer(pack_of(replica).s(3), delay="1s")
    for tm in (primary, replica):
        tm.installation.database.dispose()
        tm.installation.app.close()
