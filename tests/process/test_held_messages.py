"""Messages that a worker holds back, for a rate limit or until a process is free, are not dispatched a second time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tmtest.stand import Process, Stand

from celery_tm import defer_many

JOBS = 24


@pytest.fixture
def stand(open_stand: Any, tmp_path: Path, effects: Path) -> Iterator[Stand]:
    with open_stand("postgresql+redis", tmp_path, effects) as shared:
        conf = {"tm_dispatch_lease": 2, "tm_lease": 10}
        stand = Stand(shared.conf | conf, tmp_path, effects)
        yield stand
        stand.close()


def limited_worker(stand: Stand) -> Process:
    worker = stand.worker()
    answers = stand.app.control.rate_limit("effect", "2/s", reply=True, timeout=10, limit=1)
    assert "ok" in next(iter(answers[0].values())), answers
    return worker


def test_jobs_under_a_rate_limit_are_published_once_however_short_the_dispatch_lease(stand: Stand) -> None:
    beat = stand.beat()
    limited_worker(stand)
    defer_many([stand.app.tasks["effect"].s(n) for n in range(JOBS)])
    stand.wait_until_settled(seconds=90)
    again = sum(map(int, re.findall(r"JobsSwept redispatched=(\d+)", beat.text())))
    assert again <= JOBS // 8, f"{again} messages of {JOBS} jobs were sent again while they waited"
    assert len(stand.effects("effect")) == JOBS
    beat.stop()


def test_what_a_killed_worker_held_is_dispatched_again(stand: Stand) -> None:
    stand.beat()
    first = limited_worker(stand)
    defer_many([stand.app.tasks["effect"].s(n) for n in range(JOBS)])
    stand.wait(lambda: len(stand.effects("effect")) > 2, what="some of them")
    first.kill()
    limited_worker(stand)
    stand.wait_until_settled(seconds=120)
    ran = {line[1] for line in stand.effects("effect")}
    assert ran == {str(n) for n in range(JOBS)}
