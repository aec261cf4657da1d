"""A little of every kind of work, for hours: deferred, keyed, retried, failing, direct, chunked, in steps and recurring."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from itertools import count

from celery import chain

from celery_tm import TimeManagement, defer, defer_many

KEPT = timedelta(seconds=60)
CONF = {
    "tm_keep_executions": 60, "tm_keep_logs": 60, "tm_keep_audit": 60, "tm_keep_keys": 30, "result_expires": 60,
    "tm_poll_interval": 0.5, "tm_lease": 10, "tm_dispatch_lease": 20,
}  # fmt: skip
STEPS = [{"name": "a", "task": "effect"}, [{"name": "b", "task": "effect"}, {"name": "c", "task": "reports", "args": ["x"]}]]


def define(tm: TimeManagement) -> None:
    """State the definitions: each second, in steps, and the pruning, which is a daily one elsewhere."""
    tm.definitions.add(name="second", task="effect", schedule="* * * * * *", overlap="allow")
    tm.definitions.add(name="queued", task="effect", schedule="*/5 * * * * *", overlap="queue_one")
    tm.definitions.add(name="steps", steps=STEPS, schedule="*/15 * * * * *")
    tm.definitions.add(name="pruning", task="celery_tm.prune", schedule="*/10 * * * * *")


class Load:
    """What a caller asks for, again and again."""

    def __init__(self, tm: TimeManagement, seed: int = 9) -> None:
        self.tm, self.tasks, self.asked = tm, tm.app.tasks, Counter[str]()
        self.random, self.number = random.Random(seed), count()

    def ask(self) -> None:
        """Ask for one thing, each kind as often as it should be."""
        kinds = {
            self._plain: 8,
            self._keyed: 4,
            self._flaky: 3,
            self._fails: 1,
            self._direct: 4,
            self._chunk: 1,
            self._chain: 1,
        }
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        self.asked[kind.__name__.strip("_")] += 1
        kind(next(self.number))

    def _plain(self, n: int) -> None:
        defer(self.tasks["effect"].s(n), delay=self.random.choice([0, 0.5, 3]))

    def _keyed(self, n: int) -> None:
        handle = defer(self.tasks["effect"].s(n), delay=1, key=f"key-{n % 50}", keep_key="10s")
        if n % 10 == 0:
            handle.cancel()

    def _flaky(self, n: int) -> None:
        defer(self.tasks["flaky"].s(n, 1))

    def _fails(self, n: int) -> None:
        defer(self.tasks["fails"].s(n), max_retries=0)

    def _direct(self, n: int) -> None:
        self.tasks["effect"].delay(n)

    def _chunk(self, n: int) -> None:
        defer_many([self.tasks["chunked"].s(n) for _ in range(5)], delay=0.5)

    def _chain(self, n: int) -> None:
        chain(self.tasks["effect"].s(n), self.tasks["plain"].s()).apply_async()

    def tidy(self) -> None:
        """Do what an operator does who looks after dead letters: they are never pruned."""
        letters = self.tm.dead_letters.list(limit=200)
        for letter in letters[20:]:
            self.tm.dead_letters.purge(letter.id, actor="soak")
