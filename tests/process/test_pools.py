"""Every pool Celery has keeps every promise: prefork, threads, solo, gevent and eventlet, and `worker -B` beside them.

For each pair of database and broker one worker of each pool lives through the same work at the same time, and is stopped;
the tests then read from the tables and from what the bodies wrote. There is no beat but those inside two of the workers.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from tmtest.stand import Process, Stand

from celery_tm import cancel, defer, defer_many
from celery_tm.domain.job import Status
from celery_tm.errors import JobNotFound
from celery_tm.store import tables

# Five workers at once: on a machine that is busy with more, a lease of three seconds may end before it can be renewed.
pytestmark = [pytest.mark.alone, pytest.mark.timeout(180)]

LEASE = 3
LONG = LEASE * 1.5  # a body that outlives its first lease
SLEEPERS = {"prefork": 2, "threads": 20, "solo": 1, "gevent": 20, "eventlet": 20}  # bodies at one time
CROWDED = ("threads", "gevent", "eventlet")
PATIENCE = 20.0  # seconds that the bodies of a crowd wait for each other
BEATS = {"prefork": ("-B", "--scheduler", "tm"), "solo": ("-B", "--scheduler=celery_tm.Scheduler")}
GREEN = ("gevent", "eventlet")
PAIRS = ("sqlite+files", "postgresql+redis", "mysql+rabbitmq")


def is_there(pool: str) -> bool:
    return pool not in GREEN or importlib.util.find_spec(pool) is not None


@dataclass
class Life:
    """What was asked of the workers of one pair, and how they ended."""

    stand: Stand
    workers: dict[str, Process] = field(default_factory=dict)
    ids: dict[tuple[str, str], str] = field(default_factory=dict)
    beats: dict[int, int] = field(default_factory=dict)  # their process ids, and whose group they were in
    refused: dict[str, Process] = field(default_factory=dict)
    trouble: str = ""
    exit_codes: dict[str, int | None] = field(default_factory=dict)
    left: dict[str, bool] = field(default_factory=dict)

    def queue(self, pool: str) -> str:
        return f"{self.stand.conf['task_default_queue']}-{pool}"

    def defer(self, pool: str, name: str, task: str, *args: Any, hard_limit: float | None = None, **options: Any) -> None:
        signature = self.stand.app.tasks[task].s(*args).set(queue=self.queue(pool), time_limit=hard_limit)
        self.ids[pool, name] = defer(signature, **options).id

    def call(self, pool: str, name: str, task: str, *args: Any) -> None:
        self.ids[pool, name] = self.stand.app.tasks[task].apply_async(args, queue=self.queue(pool)).id

    def defer_witnesses(self, pool: str) -> None:
        company = SLEEPERS[pool] if pool in CROWDED else 1
        signature = self.stand.app.tasks["witness"].s(f"witness-{pool}", company, PATIENCE).set(queue=self.queue(pool))
        for n, handle in enumerate(defer_many([(signature, {"delay": 0.1})] * SLEEPERS[pool])):
            self.ids[pool, f"witness {n}"] = handle.id

    def job(self, pool: str, name: str) -> Any:
        return self.stand.tm.job(self.ids[pool, name])

    def story(self, pool: str, name: str) -> list[tuple[int, str]]:
        """Return the attempts of a job and how they ended, first to last."""
        return [(e.attempt, str(e.outcome)) for e in reversed(self.job(pool, name).executions)]

    def lines(self, first: str, n: str) -> list[list[str]]:
        return [line for line in self.stand.effects(first) if line[1] == n]


@pytest.fixture(scope="module", params=PAIRS)
def life(request: pytest.FixtureRequest, open_stand: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    """A stand on which a worker of every pool has done its work and was stopped."""
    folder: Path = tmp_path_factory.mktemp("pools")
    effects = folder / "effects.log"
    effects.touch()
    with pytest.MonkeyPatch.context() as patch, open_stand(request.param, folder, effects) as stand:
        patch.setenv("TM_TEST_EFFECTS", str(effects))
        life = Life(stand)
        start(life)
        ask(life)
        see_through(life)
        stop(life)
        if stand.pair == PAIRS[1]:
            start_refused(life)
        yield life


def start(life: Life) -> None:
    """Start the workers, all at once."""
    for pool in filter(is_there, SLEEPERS):
        options = [f"--pool={pool}", "-Q", life.queue(pool), *BEATS.get(pool, ())]
        concurrency = SLEEPERS[pool] + (5 if pool in CROWDED else 0)
        life.workers[pool] = life.stand.worker(*options, concurrency=concurrency, wait=False)
    for worker in life.workers.values():
        life.stand.wait_for_text(worker, "ready.")


def start_refused(life: Life) -> None:
    """Start what Celery does not allow, to see it say so."""
    for pool in filter(life.workers.__contains__, GREEN):
        life.refused[pool] = life.stand.worker(f"--pool={pool}", "-B", "--scheduler=tm", wait=False)


def ask(life: Life) -> None:
    """Ask the same of every worker."""
    for pool in life.workers:
        life.defer(pool, "cancelled", "sleepy", f"cancelled-{pool}", 60)
        life.defer(pool, "later", "effect", f"later-{pool}", delay=0.2)
        life.defer(pool, "at once", "effect", f"at-once-{pool}")
        if pool == "gevent":  # of the pools that stay in one process the only one with a time limit
            life.defer(pool, "limited", "sleepy_once", "limited", 60, hard_limit=1)
        life.call(pool, "direct", "effect", f"direct-{pool}")
        life.defer(pool, "long", "sleepy", f"long-{pool}", LONG)
        life.defer(pool, "fails", "fails", f"fails-{pool}", retry={"kind": "fixed", "delay": 0.2})
        life.call(pool, "flaky", "flaky", f"flaky-{pool}", 2)
        life.defer(pool, "reports", "reports", "success")
        life.defer_witnesses(pool)
        life.stand.tm.definitions.add(
            name=pool, task="effect", args=[f"tick-{pool}"], schedule="* * * * * *", queue=life.queue(pool), overlap="allow"
        )


def see_through(life: Life) -> None:
    """Wait until all is done, or note what was not: the tests then say what is wrong with which pool."""
    try:
        cancel_and_disable(life)
        owed = list(life.ids.values())
        life.stand.wait(lambda: all_ended(life.stand, owed), seconds=40, what="the end of all")
        life.stand.wait_until_settled(seconds=20)
    except AssertionError as error:
        life.trouble = str(error)
    with life.stand.database.transaction(write=False) as tx:
        names = tx.execute(select(tables.node.c.name).where(tables.node.c.kind == "beat")).scalars().all()
    pids = [int(name.rsplit(":", 1)[1]) for name in names]
    life.beats = {pid: os.getpgid(pid) for pid in pids}


def cancel_and_disable(life: Life) -> None:
    stand = life.stand
    for pool in life.workers:
        stand.wait(lambda n=f"cancelled-{pool}": life.lines("start", n), what=f"the body to cancel, {pool}")
        cancel(id=life.ids[pool, "cancelled"], app=stand.app)
    for pool in life.workers:
        stand.wait(lambda n=f"tick-{pool}": len(life.lines("effect", n)) >= 2, what=f"two instants, {pool}")
        stand.tm.disable(pool)


def all_ended(stand: Stand, owed: list[str]) -> bool:
    """Take off what has ended, and say whether nothing is left."""
    while owed and has_ended(stand, owed[-1]):
        owed.pop()
    return not owed


def has_ended(stand: Stand, id: str) -> bool:
    try:
        return stand.tm.job(id).state in (Status.SUCCEEDED, Status.FAILED, Status.CANCELED)
    except JobNotFound:
        return False


def stop(life: Life) -> None:
    """Ask all workers to end, and note how they did."""
    for worker in life.workers.values():
        os.kill(worker.pid, signal.SIGTERM)
    for pool, worker in life.workers.items():
        life.exit_codes[pool] = worker.wait(20)
        life.left[pool] = is_group(worker.pid)


def is_group(id: int) -> bool:
    """Say whether a process of the group is there, soon after its leader has gone."""
    deadline = time.monotonic() + 3
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(id, 0)
            time.sleep(0.05)
        return True
    return False


@pytest.fixture(params=SLEEPERS)
def pool(request: pytest.FixtureRequest) -> str:
    if not is_there(request.param):
        pytest.skip(f"{request.param} was not found: pip install {request.param}")
    return request.param


def test_it_runs_deferred_and_direct_calls_once(life: Life, pool: str) -> None:
    for name in ("later", "at once", "direct"):
        assert life.story(pool, name) == [(1, "succeeded")], name
        assert len(life.lines("effect", f"{name.replace(' ', '-')}-{pool}")) == 1
    assert life.job(pool, "direct").executions[0].source == "direct"
    assert life.job(pool, "later").executions[0].source == "deferred"


def test_it_retries_what_failed(life: Life, pool: str) -> None:
    assert life.story(pool, "flaky") == [(1, "failed"), (2, "failed"), (3, "succeeded")]
    assert [line[3] for line in life.lines("flaky", f"flaky-{pool}")] == ["1", "2", "3"]


def test_what_fails_for_good_becomes_a_dead_letter(life: Life, pool: str) -> None:
    assert life.story(pool, "fails") == [(1, "failed"), (2, "failed"), (3, "failed")]
    [letter] = [found for found in life.stand.tm.dead_letters.list() if found.id == life.ids[pool, "fails"]]
    assert (letter.attempts, letter.last_error) == (3, f"ValueError: no fails-{pool}")


def test_a_body_longer_than_its_lease_keeps_it(life: Life, pool: str) -> None:
    assert life.story(pool, "long") == [(1, "succeeded")]
    assert len(life.lines("start", f"long-{pool}")) == len(life.lines("end", f"long-{pool}")) == 1


def test_a_cancelled_body_sees_it(life: Life, pool: str) -> None:
    assert life.story(pool, "cancelled") == [(1, "cancelled")]
    assert len(life.lines("end", f"cancelled-{pool}")) == 1


@pytest.mark.parametrize("pool", ["gevent"], indirect=True)
def test_a_hard_time_limit_is_recorded_at_once_and_tried_again(life: Life, pool: str) -> None:
    assert life.story(pool, "limited") == [(1, "timeout"), (2, "succeeded")]


def test_reports_are_kept(life: Life, pool: str) -> None:
    [execution] = life.job(pool, "reports").executions
    assert execution.message == "all sold"
    with life.stand.database.transaction(write=False) as tx:
        query = select(tables.log.c.level, tables.log.c.message).where(tables.log.c.execution == execution.id)
        assert [tuple(row) for row in tx.execute(query)] == [("progress", "half way")]


def test_bodies_at_one_time_know_their_own_job(life: Life, pool: str) -> None:
    lines = life.lines("witness", f"witness-{pool}")
    ids = {id for (where, name), id in life.ids.items() if where == pool and name.startswith("witness")}
    assert sorted(line[3:] for line in lines) == sorted([id] for id in ids), "a body took itself for another's"
    for n in range(SLEEPERS[pool]):
        assert life.story(pool, f"witness {n}") == [(1, "succeeded")]


@pytest.mark.parametrize("pool", CROWDED, indirect=True)
def test_twenty_bodies_really_run_at_one_time(life: Life, pool: str) -> None:
    assert [line[2] for line in life.lines("witness", f"witness-{pool}")] == ["20"] * 20, (
        "some waited for the others in vain"
    )


def test_it_runs_what_definitions_plan(life: Life, pool: str) -> None:
    definition = life.stand.tm.definitions.get(pool)
    occurrence = tables.occurrence
    ran = life.stand.count(occurrence, occurrence.c.definition == definition.id, occurrence.c.state == "completed")
    assert ran == len(life.lines("effect", f"tick-{pool}")) >= 2


def test_stopped_it_leaves_no_process(life: Life, pool: str) -> None:
    assert (life.exit_codes[pool], life.left[pool]) == (0, False), life.workers[pool].text()[-3000:]


def test_nothing_went_wrong_beside_it(life: Life, pool: str) -> None:
    assert not life.trouble
    text = life.workers[pool].text()
    assert [trouble for trouble in ("cannot renew", "was not written", "LeaseWasLost") if trouble in text] == []


def test_the_beats_inside_workers_sign_on_and_off(life: Life) -> None:
    workers = {life.workers[pool].pid for pool in BEATS}
    assert set(life.beats.values()) == workers, "each is a child of its worker"
    assert not workers & set(life.beats)
    assert life.stand.count(tables.node, tables.node.c.kind == "beat") == 0


@pytest.mark.parametrize("life", [PAIRS[1]], indirect=True)  # it is the same on every pair
@pytest.mark.parametrize("pool", GREEN, indirect=True)
def test_celery_refuses_a_beat_inside_a_green_pool(life: Life, pool: str) -> None:
    refused = life.refused[pool]
    assert refused.wait(20) != 0
    assert "-B option doesn't work with eventlet/gevent pools" in refused.text()
