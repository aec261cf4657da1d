"""The limits of one delivery: a task's `max_duration` is checked, and the pool gets it unless a shorter limit is stated."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_tm import Task
from celery_tm.domain.time_limits import PoolLimits
from celery_tm.errors import InvalidValue
from celery_tm.worker.time_limits import max_duration_of, note_pool, pool_limits


def task_of(*, default: Any = None, **options: Any) -> Any:
    def body() -> None: ...

    app = Celery("limits", set_as_current=False)
    app.conf.tm_task_timeout = default
    return app.task(base=Task, name="limited", shared=False, lazy=False, **options)(body)


@pytest.mark.parametrize("value", ["soon", 0, -5, [], "0s", True])
def test_a_limit_that_leaves_no_time_is_refused_when_the_task_is_made(value: Any) -> None:
    with pytest.raises(InvalidValue, match="max_duration"):
        task_of(max_duration=value)


@pytest.mark.parametrize("value", ["15m", 900, timedelta(minutes=15)])
def test_a_limit_is_a_duration_like_any_other(value: Any) -> None:
    assert max_duration_of(task_of(max_duration=value)) == timedelta(minutes=15)


def test_a_pool_is_told_nothing_where_the_task_has_no_limit() -> None:
    assert pool_limits(task_of(), None, jobs=1) is None


@pytest.mark.parametrize(
    ("options", "header", "pool", "limits"),
    [
        ({}, None, {}, PoolLimits(910, 900)),
        ({}, [70, 60], {}, PoolLimits(70, 60)),
        ({}, [7000, 6000], {}, PoolLimits(910, 900)),
        ({"timeout": "1m"}, None, {}, PoolLimits(70, 60)),
        ({"time_limit": 30}, None, {}, PoolLimits(30, 900)),
        ({}, None, {"timeout": 20, "soft_timeout": 10}, PoolLimits(20, 10)),  # worker --time-limit 20 --soft-time-limit 10
    ],
)
def test_no_shorter_limit_is_weakened(options: Any, header: Any, pool: Any, limits: PoolLimits) -> None:
    task = task_of(max_duration="15m", **options)
    note_pool(task.app, SimpleNamespace(options=pool))
    assert pool_limits(task, header, jobs=1) == limits


def test_each_job_of_a_chunk_has_its_time() -> None:
    assert pool_limits(task_of(max_duration="1m"), None, jobs=10) == PoolLimits(610, 600)


@pytest.mark.parametrize(
    ("options", "header", "pool", "limits"),
    [
        ({}, None, {}, PoolLimits(310, 300)),
        ({"max_duration": "1h"}, None, {}, PoolLimits(310, 300)),
        ({"max_duration": "1m"}, None, {}, PoolLimits(70, 60)),
        ({"timeout": "1h"}, None, {}, None),  # Celery takes the task's own
        ({"soft_time_limit": 7}, None, {}, None),
        ({}, [7000, 6000], {}, None),
        ({}, None, {"timeout": 9000}, None),
    ],
)
def test_a_default_timeout_holds_where_no_limit_is_stated(options: Any, header: Any, pool: Any, limits: Any) -> None:
    task = task_of(default="5m", **options)
    note_pool(task.app, SimpleNamespace(options=pool))
    assert pool_limits(task, header, jobs=1) == limits
