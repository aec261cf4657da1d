"""What is promised with a figure: how soon work goes on after a worker or a database died; and workers that come back late.

On servers of these tests' own: PostgreSQL and Redis, and MariaDB where time does not matter.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from tmtest.rows import all_rows
from tmtest.servers import OwnMariaDB, OwnPostgreSQL, OwnRedis
from tmtest.stand import Process, Stand

from celery_tm import defer, defer_many, workflow
from celery_tm.store import tables

pytestmark = [pytest.mark.alone, pytest.mark.timeout(150)]
LEASE, DISPATCH_LEASE = 2.0, 3.0
AFTER_A_KILL, AFTER_A_RESTART = 2.0, 5.0  # seconds that are promised: after the lease, after the database's return
Server = OwnPostgreSQL | OwnMariaDB


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Servers that are started when a test asks for them, and shared."""
    started: dict[str, Any] = {}
    yield started
    for server in started.values():
        server.stop()


@pytest.fixture
def stand(
    request: pytest.FixtureRequest,
    servers: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    effects: Path,
) -> Iterator[Stand]:
    kind = getattr(request, "param", OwnPostgreSQL)
    for each in (kind, OwnRedis):
        if each.__name__ not in servers:
            servers[each.__name__] = each(tmp_path_factory.mktemp(each.__name__))
            servers[each.__name__].start()
    conf = {"broker_url": servers["OwnRedis"].url, "tm_database_url": servers[kind.__name__].url}
    queue = {"task_default_queue": tmp_path.name, "tm_lease": LEASE, "tm_dispatch_lease": DISPATCH_LEASE}
    stand = Stand(conf | queue, tmp_path, effects)
    stand.tm.upgrade()
    with stand.database.transaction() as tx:
        for table in reversed(tables.metadata.sorted_tables):
            tx.execute(table.delete())
        tx.execute(text("DROP TABLE IF EXISTS late_effect"))
        tx.execute(text("CREATE TABLE late_effect (n VARCHAR(40), attempt INTEGER)"))
    stand.server = servers[kind.__name__]  # type: ignore[attr-defined]
    yield stand
    stand.close()


def began(stand: Stand, attempt: int) -> dict[str, float]:
    """Return when bodies of this attempt began, by name."""
    lines = (line for line in stand.effects("began") if line[2] == str(attempt))
    return {line[1]: int(line[3]) / 1e9 for line in lines}


def begin(stand: Stand, names: dict[str, Any], *, seconds: float) -> None:
    """Defer one job of each task, and wait until all of them have begun."""
    for name, task in names.items():
        if name == "step":
            late = stand.app.tasks[task]
            defer(workflow([[late.s(name, seconds), late.s("other-step", 0)], late.s("join", 0)]), app=stand.app)
        elif name == "chunk":
            defer_many([stand.app.tasks[task].s(f"{name}-{n}", seconds) for n in range(3)], delay=0.05, app=stand.app)
        else:
            defer(stand.app.tasks[task].s(name, seconds), app=stand.app)
    wanted = {f"{name}-0" if name == "chunk" else name for name in names}
    stand.wait(lambda: wanted <= set(began(stand, 1)), what=f"the first attempts of {wanted}")


def test_a_killed_worker_s_jobs_run_elsewhere_within_the_lease_and_two_seconds(stand: Stand) -> None:
    stand.beat()
    victim = stand.worker("--prefetch-multiplier", "2", concurrency=4)
    running = {f"job-{n}": "late.plain" for n in range(2)} | {"transaction": "late.transactional", "step": "late.plain"}
    begin(stand, running, seconds=60)
    waiting = [f"prefetched-{n}" for n in range(4)]
    for name in waiting:
        defer(stand.app.tasks["late.plain"].s(name, 0), app=stand.app)
    stand.wait(lambda: victim.text().count("received") >= 8, what="jobs that its processes have no time for")
    stand.worker(concurrency=4)
    victim.kill()
    killed = time.monotonic()

    seconds = {name: at - killed for name, at in wait_for(stand, 2, running).items()}
    print("after a kill:", json.dumps(seconds))
    assert max(seconds.values()) < LEASE + AFTER_A_KILL
    # What the worker had fetched and not begun is dispatched again when its dispatch lease ends; no try is used.
    late = {name: at - killed for name, at in wait_for(stand, 1, waiting).items()}
    print("fetched by the killed worker:", json.dumps(late))
    assert max(late.values()) < DISPATCH_LEASE + AFTER_A_KILL
    stand.wait_until_settled()
    assert stand.outcomes() == {"orphaned": 4, "succeeded": 4 + 4 + 2 + 1}  # the other steps, and the run itself


def wait_for(stand: Stand, attempt: int, names: Any) -> dict[str, float]:
    """Wait until these jobs have begun this attempt, and return when."""
    found = stand.wait(
        lambda: seen if set(names) <= set(seen := began(stand, attempt)) else None,
        what=f"attempt {attempt} of {list(names)}",
    )
    return {name: found[name] for name in names}


def outage(stand: Stand, seconds: float) -> float:
    """Let the database crash and stay away for a while; return when it took connections again."""
    server: Server = stand.server  # type: ignore[attr-defined]
    server.stop()
    time.sleep(seconds)
    server.start()
    return time.monotonic()


BOTH = [OwnPostgreSQL, pytest.param(OwnMariaDB, marks=pytest.mark.thorough)]


@pytest.mark.parametrize("stand", BOTH, indirect=True)
def test_an_idle_beat_goes_on_within_five_seconds_of_the_database_s_return(stand: Stand, thorough: bool) -> None:
    stand.beat()
    stand.worker(concurrency=1)
    defer(stand.app.tasks["late.plain"].s("before", 0), app=stand.app)
    wait_for(stand, 1, ["before"])
    away = 20.0 if thorough else 7.8  # beat waits longer and longer between two tries: this is one of its longest waits
    defer(stand.app.tasks["late.plain"].s("after", 0), delay=away / 2, app=stand.app)
    back = outage(stand, away)
    first = wait_for(stand, 1, ["after"])["after"] - back
    print(f"first job {first:.2f} s after the database's return")
    assert first < AFTER_A_RESTART


@pytest.mark.parametrize("stand", BOTH, indirect=True)
def test_work_goes_on_within_five_seconds_of_the_database_s_return(stand: Stand, thorough: bool) -> None:
    stand.beat()
    stand.worker(concurrency=2)
    late = stand.app.tasks["late.plain"]
    stand.tm.definitions.add(name="tick", task="effect", schedule="* * * * * *", overlap="allow", recovery="all")
    away = 20.0 if thorough else 2.0
    for n in range(80):
        defer(late.s(f"{n}", 0), delay=n * (away + 2) / 80, app=stand.app)
    wait_for(stand, 1, ["5"])
    server: Server = stand.server  # type: ignore[attr-defined]
    server.stop()
    for n in range(5):
        stand.app.tasks["late.plain"].delay(f"direct-{n}", 0)
    time.sleep(away)
    known = len(began(stand, 1))
    server.start()
    back = time.monotonic()
    stand.wait(lambda: len(began(stand, 1)) > known, what="the first job after the return")
    first = min(at for at in began(stand, 1).values() if at > back - 0.5) - back
    print(f"first job {first:.2f} s after the database's return, under load")
    assert first < AFTER_A_RESTART
    stand.tm.disable("tick")
    stand.wait(lambda: len(began(stand, 1)) >= 85, seconds=40, what="all the others")


LATE = {
    "job": "late.plain", "transaction": "late.transactional", "chunk": "late.chunked", "step": "late.plain",
    "reporter": "late.reports", "failure": "late.fails",
}  # fmt: skip


def test_a_worker_stopped_past_its_lease_and_continued_changes_nothing(stand: Stand) -> None:
    stand.beat()
    sleeper = stand.worker(concurrency=6)
    begin(stand, LATE, seconds=4)
    sleeper.signal_all(signal.SIGSTOP)
    stand.worker(concurrency=3)
    stand.wait_until_settled(seconds=40)
    before, written = all_rows(stand.tm), effects_in_tables(stand)
    assert written == [("transaction", 2)]

    sleeper.signal_all(signal.SIGCONT)
    lost = len(LATE) + 2  # a chunk has three jobs
    stand.wait(lambda: sleeper.text().count("LeaseWasLost") >= lost, what="the worker that finds out")
    late = {"job", "transaction", "step", "reporter", "failure", "chunk-0"}
    stand.wait(lambda: late <= ended_late(stand, sleeper), what="the ends of their late bodies")
    assert all_rows(stand.tm) == before
    assert effects_in_tables(stand) == written
    time.sleep(LEASE / 3 + 0.2)  # it would have renewed once more by now
    assert all_rows(stand.tm) == before
    begun = [line for line in stand.effects("began") if line[1].startswith("chunk") and int(line[4]) in pids(sleeper)]
    assert [line[1] for line in begun] == ["chunk-0"], "what it had lost was begun all the same"


def ended_late(stand: Stand, sleeper: Process) -> set[str]:
    """Return whose first attempts a worker has run to their end."""
    return {line[1] for line in stand.effects("ended") if line[2] == "1" and int(line[4]) in pids(sleeper)}


def effects_in_tables(stand: Stand) -> list[tuple[str, int]]:
    with stand.database.transaction(write=False) as tx:
        return [(row[0], row[1]) for row in tx.execute(text("SELECT n, attempt FROM late_effect"))]


def pids(process: Process) -> set[int]:
    """Return the pool processes of a worker."""
    listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert os.path.exists(f"/proc/{process.pid}")
    return {int(pid) for pid in listed}
