"""A result that cannot be stored or passed on is a failure in the record too, as in Celery."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.backends.base import BaseBackend
from kombu.serialization import dumps
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement, defer, defer_many
from celery_tm.domain.job import Status

stored: dict[str, tuple[str, Any]] = {}


class Rows(BaseBackend):
    """A backend like django-celery-results: no key-value store, and one that encodes when it stores."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.supports_native_join = False

    def _store_result(self, task_id: str, result: Any, state: str, *_: Any, **__: Any) -> Any:
        stored[task_id] = (state, self.encode(result))
        return result

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        state, _ = stored.get(task_id, ("PENDING", None))
        return {"status": state, "result": None}


class Picky(Rows):
    """A backend of somebody's own, with errors of its own."""

    def encode(self, data: Any) -> Any:
        if isinstance(data, (set, dict)) and not isinstance(data, BaseException) and "exc_type" not in data:
            raise TypeError("no such column")
        return dumps(data, serializer="json")


@pytest.fixture
def courier(tm: TimeManagement, app: Celery) -> Courier:
    stored.clear()

    @app.task(base=Task, name="odd", shared=False, max_retries=3)
    def odd(kind: str) -> Any:
        return {"object": object(), "mapping": {"a": 1}}[kind]

    @app.task(base=Task, name="odd_chunk", shared=False, max_retries=3, chunk=5)
    def odd_chunk() -> Any:
        return object()

    return Courier(tm)


@pytest.mark.parametrize(("backend", "kind"), [(Rows, "object"), (Picky, "mapping")])
@pytest.mark.parametrize("way", ["defer", "delay"])
def test_what_a_backend_cannot_encode_is_buried(
    app: Celery, courier: Courier, backend: type[BaseBackend], kind: str, way: str
) -> None:
    app.tasks["odd"].backend = backend(app=app)
    id = defer(app.tasks["odd"].s(kind)).id if way == "defer" else app.tasks["odd"].delay(kind).id
    courier.deliver_all()
    assert (courier.tm.job(id).state, stored[id][0]) == (Status.FAILED, "FAILURE")
    assert [letter.job.id for letter in courier.tm.dead_letters.list()] == [id]


def test_what_a_backend_can_encode_is_done(app: Celery, courier: Courier) -> None:
    app.tasks["odd"].backend = Rows(app=app)
    handle = defer(app.tasks["odd"].s("mapping"))
    courier.deliver_all()
    assert (handle.state, stored[handle.id][0]) == (Status.SUCCEEDED, "SUCCESS")


def test_of_a_chunk_too(app: Celery, courier: Courier) -> None:
    app.tasks["odd_chunk"].backend = Rows(app=app)
    handles = defer_many([app.tasks["odd_chunk"].s() for _ in range(2)])
    courier.deliver_all()
    assert [(handle.state, stored[handle.id][0]) for handle in handles] == [(Status.FAILED, "FAILURE")] * 2


@pytest.mark.parametrize("ignored", [True, False])
def test_the_call_says_whether_a_result_is_kept(app: Celery, courier: Courier, ignored: bool) -> None:
    app.tasks["odd"].backend = Rows(app=app)
    app.tasks["odd"].ignore_result = not ignored
    result = app.tasks["odd"].apply_async(("object",), ignore_result=ignored)
    courier.deliver_all()
    assert courier.tm.job(result.id).state == (Status.SUCCEEDED if ignored else Status.FAILED)
    assert stored.get(result.id, ("", ""))[0] == ("" if ignored else "FAILURE")


def test_what_callbacks_cannot_get_is_buried(app: Celery, courier: Courier) -> None:
    app.tasks["odd"].backend = Rows(app=app)
    result = app.tasks["odd"].apply_async(("object",), ignore_result=True, link=app.tasks["effect"].s())
    courier.deliver_all()
    assert courier.tm.job(result.id).state == Status.FAILED
    assert owed(courier.tm.installation.database) == []
