"""Lines that a body keeps with its execution, marked info or error, are read by job and by execution."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import Celery

from celery_tm import JobContext, Task, TimeManagement, defer
from celery_tm.errors import InvalidValue
from celery_tm.testing import MovableClock
from celery_tm.worker import context as contexts
from celery_tm.worker.detached import detached


@pytest.fixture
def talkative(app: Celery) -> Task:
    @app.task(base=Task, bind=True, name="talkative", shared=False, retry={"kind": "fixed", "delay": 60})
    def talkative(self: Task) -> None:
        self.job.log(f"attempt {self.job.attempt} looks up the order")
        if self.job.attempt == 1:
            self.job.log("the shop is closed", level="error")
            raise RuntimeError("closed")
        self.job.report_progress("half way")

    return talkative


def test_lines_are_kept_per_execution_and_marked_info_or_error(
    tm: TimeManagement, talkative: Task, noon: MovableClock
) -> None:
    handle = defer(talkative.s(), delay="1m")
    for _ in range(2):
        noon.forward("2m")
        tm.run_due_jobs()
    second, first = tm.job(handle.id).executions
    assert [(line.level, line.message) for line in tm.log(first.id)] == [
        ("info", "attempt 1 looks up the order"),
        ("error", "the shop is closed"),
    ]
    assert [(line.level, line.message) for line in tm.log(second.id)] == [
        ("info", "attempt 2 looks up the order"),
        ("progress", "half way"),
    ]
    assert [line.attempt for line in tm.log(handle.id)] == [1, 1, 2, 2]


@pytest.fixture
def alone(app: Celery) -> Iterator[JobContext]:
    context = detached(app.tasks["effect"])
    yield context
    contexts.leave()


@pytest.mark.parametrize(("level", "told"), [("eror", "did you mean 'error'"), ("progress", "use one of"), (None, "None")])
def test_a_level_that_is_none_is_refused_at_once(alone: JobContext, level: str, told: str) -> None:
    with pytest.raises(InvalidValue, match=told):
        alone.log("a line", level=level)
