"""An attempt that has ended leaves no frames and no job behind for the collector, however it ended."""

from __future__ import annotations

import gc
import types
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from tmtest.courier import Courier

from celery_tm import JobContext, Task, TimeManagement
from celery_tm.domain.job import Job


@pytest.fixture
def garbage() -> Iterator[list[Any]]:
    """What the collector finds unreachable, kept to be looked at."""
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield gc.garbage
    gc.set_debug(0)
    gc.garbage.clear()
    gc.collect()


@pytest.mark.parametrize("how", ["returns", "fails", "is tried again", "asks for a retry", "talks"])
def test_nothing_of_an_attempt_waits_for_the_collector(
    tm: TimeManagement, app: Celery, request: pytest.FixtureRequest, how: str
) -> None:
    @app.task(base=Task, bind=True, name="ends", shared=False, max_retries=0 if how == "fails" else 5, ignore_result=True)
    def ends(self: Task) -> None:
        if how in ("fails", "is tried again"):
            raise ValueError("no")
        if how == "asks for a retry":
            raise self.retry(countdown=3600)
        if how == "talks":
            self.job.log("a line")
            self.job.report_progress("half way")

    courier = Courier(tm)
    ends.delay()
    courier.deliver_all()  # whatever is done once
    ends.delay()
    [message] = courier.collect()
    found = request.getfixturevalue("garbage")
    courier.deliver(message)
    gc.collect()
    kinds = (types.FrameType, types.TracebackType, JobContext, Job)
    assert [one for one in found if isinstance(one, kinds)] == []
    assert len(found) < 100
