"""Bodies that only return a coroutine: none of them is recorded as having run."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from celery import Celery
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, defer
from celery_tm.domain.execution import Outcome
from celery_tm.errors import InvalidValue, TmError
from celery_tm.store import executions
from celery_tm.store.database import Database


async def slow(n: int) -> int:
    return n


async def slow_numbers() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize("body", [slow, slow_numbers])
@pytest.mark.parametrize("bind", [False, True])
def test_an_async_body_is_refused_where_it_is_registered(app: Celery, body: Any, bind: bool) -> None:
    with pytest.raises(TmError, match=r"its body is async def, and a Celery worker awaits nothing; .*asyncio\.run"):
        app.task(base=Task, name="async_body", shared=False, lazy=False, bind=bind)(body)
    assert "async_body" not in app.tasks


def test_so_is_one_of_a_class(app: Celery) -> None:
    with pytest.raises(InvalidValue, match=r"^slowly: its body is async def"):

        class Slowly(Task):
            name = "slowly"

            async def run(self) -> None: ...


def counted(n: int = 3) -> Iterator[int]:
    yield from range(n)


class Callable:
    """An object whose call is a coroutine: nothing tells so before it is made."""

    __name__ = "Callable"

    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "body",
    [lambda: slow(1), Callable(), partial(slow, 1).__call__, slow_numbers.__call__, counted],
    ids=["lambda", "callable", "partial", "async generator", "generator"],
)
@pytest.mark.parametrize("way", ["direct", "deferred", "chunk"])
def test_a_body_that_returns_what_nothing_runs_has_failed(
    app: Celery, tm: TimeManagement, database: Database, body: Any, way: str, recwarn: pytest.WarningsRecorder
) -> None:
    courier = Courier(tm)

    @app.task(base=Task, name="returns", shared=False, typing=False, chunk=10 if way == "chunk" else None)
    def returns() -> Any:
        return body()

    if body is counted:
        returns = app.task(base=Task, name="counted", shared=False, chunk=10 if way == "chunk" else None)(counted)
    ids = [returns.delay().id] if way == "direct" else [defer(returns.s(), delay=0.001).id for _ in range(2)]
    deadline = time.monotonic() + 30
    while owed(database) or courier.deliver_all():
        courier.deliver_all()
        assert time.monotonic() < deadline
    with database.transaction(write=False) as tx:
        assert {one.outcome for id in ids for one in executions.of_job(tx, id)} == {Outcome.FAILED}
    assert {letter.id for letter in tm.dead_letters.list()} == set(ids)
    assert owed(database) == []
    assert not [one for one in recwarn if "never awaited" in str(one.message)]


def test_a_generator_that_a_body_returns_beside_its_work_is_its_result(app: Celery, tm: TimeManagement) -> None:
    @app.task(base=Task, name="lazily", shared=False, ignore_result=True)
    def lazily() -> Any:
        return (n for n in range(3))

    id = lazily.delay().id
    Courier(tm).deliver_all()
    assert [one.outcome for one in tm.job(id).executions] == [Outcome.SUCCEEDED]
