"""A hook that raises `Reject` after the body has succeeded: its message is rejected, and the worker goes on to consume."""

from __future__ import annotations

import pytest
from tmtest.stand import Stand

from celery_tm import defer

MANY = 20  # more than the worker prefetches


@pytest.mark.parametrize("pool", ["threads", "gevent", "prefork", "solo"])
def test_a_worker_goes_on_after_hooks_that_reject(stand: Stand, pool: str) -> None:
    stand.worker("-P", pool, concurrency=2)
    rejects, effect = (stand.app.tasks[name] for name in ("rejects_afterwards", "effect"))
    for n in range(MANY):
        rejects.delay(n)
        defer(rejects.s(n + MANY))
    effect.delay("direct")
    defer(effect.s("deferred"))

    stand.wait(lambda: len(stand.effects("effect")) == 2, what="what came after them")
    stand.wait(lambda: len(stand.effects("rejects_afterwards")) >= 2 * MANY, what="all of them")
    assert sorted(int(line[1]) for line in stand.effects("rejects_afterwards")) == list(range(2 * MANY))
    stand.wait(lambda: stand.outcomes() == {"succeeded": 2 * MANY + 2}, what="their records")
