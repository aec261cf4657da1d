"""What a real beat and real workers tell Prometheus is what the tables say, also when pool processes are killed."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import and_, func, select
from tmtest.stand import Process, Stand

from celery_tm import cancel, defer, defer_many, workflow
from celery_tm.domain.execution import Outcome
from celery_tm.domain.occurrence import ACTIVE
from celery_tm.domain.workflow import TASK
from celery_tm.metrics.names import METRICS
from celery_tm.store import tables

SECRET = "s3cret"
Numbers = dict[tuple[str, ...], float]
ONE_PAIR = pytest.mark.parametrize("stand", ["postgresql+redis"], indirect=True)


@pytest.fixture
def ports() -> tuple[int, int]:
    """Two ports that are free as long as nobody else asks."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found[0], found[1]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the processes that are started keep what they count."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def state_ports(stand: Stand, ports: tuple[int, int]) -> None:
    stand.conf |= {"tm_metrics_port": dict(zip(("beat", "worker"), ports, strict=True))}


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def numbers(text: str, sample: str, *labels: str) -> Numbers:
    """Return the values of a sample by those labels, added up over the others."""
    found: Numbers = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            if one.name == f"celery_tm_{sample}":
                place = tuple(one.labels[label] for label in labels)
                found[place] = found.get(place, 0.0) + one.value
    return {place: value for place, value in found.items() if value}


def told(ports: tuple[int, int], sample: str, *labels: str) -> Counter[tuple[str, ...]]:
    """Return what beat and worker tell together."""
    both: Counter[tuple[str, ...]] = Counter()
    for port in ports:
        both.update(numbers(scrape(port), sample, *labels))
    return both


def recorded(stand: Stand, *columns: Any, where: Any = True) -> Counter[tuple[str, ...]]:
    with stand.database.transaction(write=False) as tx:
        rows = tx.execute(select(*columns, func.count()).where(where).group_by(*columns)).all()
    return Counter({tuple(word or "" for word in row[:-1]): row[-1] for row in rows})


def pool_of(worker: Process) -> list[int]:
    children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text()
    return [int(pid) for pid in children.split()]


def agrees(stand: Stand, ports: tuple[int, int]) -> None:
    """Wait until what is told is what the tables say: what a process tells comes a moment after its commit."""
    execution, occurrence = tables.execution, tables.occurrence
    wanted = recorded(stand, execution.c.definition, execution.c.task, execution.c.outcome)
    labels = ("definition", "task", "outcome")
    stand.wait(lambda: told(ports, "executions_total", *labels) == wanted, seconds=10, what=f"{wanted}")
    bodies = and_(execution.c.worker.is_not(None), execution.c.task != TASK)  # a run as a whole has none
    assert told(ports, "attempts_total", "task") == recorded(stand, execution.c.task, where=bodies)
    timed = and_(bodies, execution.c.outcome != Outcome.ORPHANED)  # when such a one ended nobody has seen
    assert told(ports, "execution_seconds_count", "task") == recorded(stand, execution.c.task, where=timed)
    assert told(ports, "buried_total", "task") == recorded(stand, tables.dead_letter.c.task)
    ended = recorded(stand, occurrence.c.state, where=occurrence.c.state.not_in(ACTIVE))
    assert told(ports, "occurrences_total", "state") == ended


@pytest.mark.timeout(120)
@ONE_PAIR
def test_the_counts_are_exact_over_a_pool_whose_processes_are_killed(
    stand: Stand, ports: tuple[int, int], folder: Path
) -> None:
    state_ports(stand, ports)
    stand.beat()
    worker = stand.worker("--pool", "prefork", concurrency=2)
    app, tasks = stand.app, stand.app.tasks
    defer_many([tasks["effect"].s(f"{SECRET}{n}") for n in range(30)], delay=0.1, entity_id=SECRET)
    defer_many([(tasks["fails"].s(SECRET), {"max_retries": 0}) for _ in range(4)], delay=0.1)
    defer(tasks["flaky"].s(SECRET, 2), delay=0.1)
    defer(tasks["keyed"].s(SECRET), delay=0.1, key=f"{SECRET}:key")
    defer_many([tasks["chunked"].s(SECRET) for _ in range(20)], delay=0.1)
    defer(workflow([{"name": "first", "task": "steps.work"}, {"name": "then", "task": "steps.work"}]), app=app)
    cancel(id=defer(tasks["effect"].s(SECRET), delay="1h").id, app=app)  # told here, in neither of them
    stand.tm.definitions.add(
        name="ticking", task="effect", args=[SECRET], schedule="* * * * * *", max_runs=3, overlap="allow"
    )
    defer(tasks["sleepy_once"].s(SECRET, 60), delay=0.1, retry={"kind": "fixed", "delay": 0.2})
    [[*_, pid]] = stand.wait(lambda: stand.effects("start"), what="a body that takes its time")
    os.kill(int(pid), signal.SIGKILL)
    stand.wait(lambda: stand.outcomes(task="effect")["succeeded"] == 30 + 3, what="all instants")
    stand.wait_until_settled()
    with stand.database.transaction() as tx:  # neither of the two has told of what happened here
        tx.execute(tables.execution.delete().where(tables.execution.c.outcome == "cancelled"))
    agrees(stand, ports)
    assert told(ports, "executions_total", "task", "outcome")["sleepy_once", "orphaned"] == 1
    text = scrape(ports[1])
    assert set(numbers(text, "execution_seconds_count", "step")) == {("",), ("first",), ("then",)}
    assert numbers(scrape(ports[0]), "runs_total", "state") | numbers(text, "runs_total", "state") == {("completed",): 1}
    for child in pool_of(worker):  # idle now; what they have counted stays
        os.kill(child, signal.SIGKILL)
    stand.wait(lambda: len(pool_of(worker)) == 2, what="a new pool")
    agrees(stand, ports)
    defer_many([tasks["effect"].s(n) for n in range(10)], delay=0.1)
    stand.wait(lambda: stand.outcomes(task="effect")["succeeded"] == 30 + 3 + 10, what="the rest")
    agrees(stand, ports)
    assert SECRET not in scrape(ports[0]) + scrape(ports[1])
    assert len(list(folder.glob("celery_tm-metrics-*/*.db"))) <= 2 * 3, "what dead processes left is taken over"
    worker.stop()
    assert list(folder.glob("celery_tm-metrics-*")) == []


@pytest.mark.timeout(60)
@ONE_PAIR
def test_beat_tells_what_it_does_and_how_things_stand(stand: Stand, ports: tuple[int, int]) -> None:
    state_ports(stand, ports)
    stand.tm.definitions.add(name="nightly", task="effect", schedule="0 2 * * *")
    stand.tm.definitions.add(name="held up", task="effect", schedule="0 3 * * *")
    stand.tm.pause("held up")
    defer(stand.app.tasks["effect"].s(1), delay="1h")
    beat = stand.beat()
    defer_many([stand.app.tasks["effect"].s(n) for n in range(7)], delay=0.1)
    worker = stand.worker("--pool", "solo")
    stand.wait(lambda: stand.outcomes()["succeeded"] == 7, what="the bodies")
    stand.wait(lambda: numbers(scrape(ports[0]), "nodes", "kind") == {("beat",): 1, ("worker",): 1}, what="both nodes")
    text = scrape(ports[0])
    assert numbers(text, "dispatched_total") == {(): 7}
    assert numbers(text, "tick_seconds_count")[()] > 1
    assert numbers(text, "claim_seconds_count")[()] >= 1
    assert numbers(text, "up") == {(): 1}
    assert numbers(text, "jobs", "state") == {("pending",): 1}
    assert numbers(text, "paused") == {(): 1}
    standing = stand.tm.status().definitions  # beat has seeded some of its own
    assert numbers(text, "definitions", "standing") == {(word,): count for word, count in standing.items() if count}
    assert numbers(scrape(ports[1]), "executions_total", "outcome") == {("succeeded",): 7}
    known = {sample for metric in METRICS for sample in metric.samples}
    seen = {one.name for family in text_string_to_metric_families(text) for one in family.samples}
    assert seen - known == set()
    worker.stop()
    kinds = [node["kind"] for node in node_rows(stand)]
    assert kinds == ["beat"], "a worker that stops signs off"
    assert beat.is_running


def node_rows(stand: Stand) -> list[Any]:
    with stand.database.transaction(write=False) as tx:
        return [row._mapping for row in tx.execute(select(tables.node))]


@pytest.mark.timeout(60)
@ONE_PAIR
def test_a_beat_inside_a_worker_tells_its_own_and_recycled_processes_lose_nothing(
    stand: Stand, ports: tuple[int, int], folder: Path
) -> None:
    state_ports(stand, ports)
    beat = ["-B", "--scheduler", "celery_tm.Scheduler", "--schedule", str(folder / "unused")]
    stand.worker(*beat, "--max-tasks-per-child", "3", concurrency=2)
    defer_many([stand.app.tasks["effect"].s(n) for n in range(20)], delay=0.1)
    stand.wait_until_settled()
    stand.wait(lambda: numbers(scrape(ports[1]), "executions_total") == {(): 20}, seconds=10, what="all of them")
    assert numbers(scrape(ports[0]), "executions_total") == {}
    assert numbers(scrape(ports[0]), "dispatched_total") == {(): 20}
    assert numbers(scrape(ports[1]), "dispatched_total") == {}


@pytest.mark.thorough
@pytest.mark.timeout(60)
@ONE_PAIR
@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
def test_other_pools_count_in_their_own_process(stand: Stand, ports: tuple[int, int], pool: str, folder: Path) -> None:
    pytest.importorskip(pool if pool != "threads" else "threading")
    state_ports(stand, ports)
    stand.beat()
    stand.worker("--pool", pool, concurrency=4)
    defer_many([stand.app.tasks["effect"].s(n) for n in range(20)], delay=0.1)
    stand.wait_until_settled()
    stand.wait(lambda: numbers(scrape(ports[1]), "executions_total") == {(): 20}, seconds=10, what="all of them")
    assert list(folder.glob("celery_tm-metrics-*")) == []


@pytest.mark.timeout(60)
@ONE_PAIR
def test_a_port_that_is_taken_stops_neither_beat_nor_worker(stand: Stand, ports: tuple[int, int]) -> None:
    state_ports(stand, ports)
    with socket.create_server(("127.0.0.1", ports[0])), socket.create_server(("127.0.0.1", ports[1])):
        beat, worker = stand.beat(), stand.worker(concurrency=1)
        defer(stand.app.tasks["effect"].s(1), delay=0.1)
        stand.wait_until_settled()
    assert stand.outcomes() == {"succeeded": 1}
    for process, port in ((beat, ports[0]), (worker, ports[1])):
        assert process.text().count(f"metrics are not served on 127.0.0.1:{port}") == 1
        assert "give another tm_metrics_port" in process.text()
        assert process.is_running
