"""A transactional body may put another call in its place, whether it has used its session or not."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from tmtest.courier import Courier, owed

from celery_tm import Task, TimeManagement


@pytest.mark.parametrize("uses_session", [False, True])
def test_what_replaces_a_transactional_body_runs(app: Celery, tm: TimeManagement, uses_session: bool) -> None:
    ran: list[int] = []

    @app.task(base=Task, bind=True, name="gives_way", transactional=True, shared=False)
    def gives_way(self: Any, n: int) -> Any:
        ran.append(n)
        if uses_session:
            self.job.session.connection()
        return self.replace(self.s(n + 1)) if n == 1 else n

    gives_way.delay(1)
    Courier(tm).deliver_all()
    assert ran == [1, 2]
    assert owed(tm.installation.database) == []
