"""Hundreds of forged messages for a real worker with its pool: it refuses them, lives on, and runs the next good job."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from conftest import OpenStand
from hypothesis import HealthCheck, Phase, given, seed, settings
from tmtest.stand import Process, Stand

from celery_tm import defer, defer_many
from fuzz.forging import Edit, Raw, forged
from fuzz.test_messages import KNOWN, LONG_AGO, Forgery, forgeries, head

MANY, MANY_MORE = 250, 5000
LIMITS = [[-1, -1], ["1", "2"], [10**400, 1], [None, {}], "12", -5]


def test_a_worker_outlives_what_it_is_sent(open_stand: OpenStand, tmp_path: Path, effects: Path, thorough: bool) -> None:
    with open_stand("postgresql+redis", tmp_path, effects) as stand:
        worker = stand.worker()
        real = real_messages(stand)
        sent = [forged(real, number, changes) for number, changes in chosen(MANY_MORE if thorough else MANY)]
        for raw in [*sent, *real]:
            put(stand, raw)
        good = defer(stand.app.tasks["effect"].s("good"))
        stand.wait(lambda: good.state == "SUCCEEDED", seconds=60, what="the good job")
        assert worker.is_running
        check_effects(stand)
        check_log(worker)


def real_messages(stand: Stand) -> list[Raw]:
    """Return messages of jobs and calls, taken from the broker before the worker gets them."""
    app, queue = stand.app, stand.app.conf.task_default_queue
    app.conf.task_default_queue = f"{queue}-aside"
    app.amqp.queues.clear()
    effect, chunked = app.tasks["effect"], app.tasks["chunked"]
    defer_many([effect.s(n) for n in range(1, 5)])
    defer_many([chunked.s(n) for n in range(5, 9)])
    defer(app.tasks["keyed"].s(9))
    for n in range(3):
        effect.delay(f"direct-{n}")
    effect.apply_async(["linking"], link=effect.si("linked"))
    found = taken(stand, app.conf.task_default_queue)
    app.conf.task_default_queue = queue
    app.amqp.queues.clear()
    return found


def taken(stand: Stand, queue: str) -> list[Raw]:
    with stand.app.connection_for_read() as connection:
        channel = connection.default_channel
        return [channel._get(queue) for _ in range(channel._size(queue))]


def put(stand: Stand, raw: Raw) -> None:
    with stand.app.pool.acquire(block=True) as connection:
        connection.default_channel._put(stand.app.conf.task_default_queue, raw)


def chosen(count: int) -> list[Forgery]:
    """Return so many forgeries, the same each time."""
    found: list[Forgery] = [one for each in KNOWN.values() for one in each]
    found += [(number, [head("timelimit", limit)]) for number in range(3) for limit in LIMITS]

    @seed(9)
    @settings(max_examples=count, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    @given(some=forgeries)
    def gather(some: list[Forgery]) -> None:
        found.extend(some[: max(count - len(found), 0)])

    gather()
    return [(number, [change for change in changes if not is_far(change)]) for number, changes in found]


def is_far(change: Edit) -> bool:
    """Say whether a change lets a message wait: there is no time for that here."""
    return change.where[-1] == "eta" and isinstance(change.value, str) and change.value > LONG_AGO


def check_effects(stand: Stand) -> None:
    lines = [line.split(" ") for line in stand.effects_file.read_text().split("\n") if line]
    attempts = Counter(tuple(line[-1:]) if line[0] == "keyed" else tuple(line[-2:]) for line in lines)
    assert [one for one, count in attempts.items() if count > 1] == []
    owed = {str(n) for n in range(1, 10)}
    assert Counter(line[1] for line in lines if line[1] in owed) == dict.fromkeys(owed, 1)


def check_log(worker: Process) -> None:
    """Fail where a traceback is in the log that does not tell of a refusal, or of a body that was called."""
    said = worker.text()
    ends = re.findall(r"^([A-Za-z_.]+(?:Error|Exception|Disallowed|Warning|Ignore)\b.*)$", said, re.MULTILINE)
    known = (
        "kombu.exceptions.",
        "celery.exceptions.InvalidTaskError",
        "celery_tm.",
        "KeyError",
        "ValueError: no ",
        "TypeError: ",
    )
    assert [line for line in ends if not line.startswith(known)] == []
    for fatal in ("Unrecoverable", "WorkerLostError", "Process 'ForkPoolWorker"):
        assert fatal not in said, said[said.index(fatal) - 2000 : said.index(fatal) + 2000]
