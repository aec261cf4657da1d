"""How things stand as Prometheus is told it, and what is counted: without processes, on every database."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families
from tmtest.ledger import add, plan

from celery_tm import TimeManagement, defer, defer_many, events
from celery_tm.installation import Installation
from celery_tm.metrics import collecting, counting, names, serving
from celery_tm.metrics.collecting import StateCollector, TallyCollector
from celery_tm.metrics.tally import SharedTally, Tally
from celery_tm.testing import MovableClock

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(*collectors: Any) -> Samples:
    registry = CollectorRegistry()
    for one in collectors:
        registry.register(one)
    found: Samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for one in family.samples:
            found[one.name.removeprefix(names.PREFIX), tuple(sorted(one.labels.items()))] = one.value
    return found


@pytest.fixture
def tally(app: Celery) -> Iterator[Tally]:
    """What is counted of an app."""
    made = Tally()
    counting.count_events(app, made)
    yield made
    counting.stop_counting(app)


RECOVERED = {"all": 60, "last": 1, "bounded": 3, "compressed": 1, "none": 5}


def test_planned_runs_are_counted_by_the_recovery_policy(tm: TimeManagement, noon: MovableClock, tally: Tally) -> None:
    bounded = {"bounded": {"recovery_count": 3}}
    for policy in ("all", "last", "skip", "bounded", "compressed"):
        add(tm, name=policy, recovery=policy, overlap="allow", **bounded.get(policy, {}))
    noon.forward("60m 30s")
    plan(tm)
    noon.forward("30s")
    plan(tm)
    found = samples(TallyCollector(tally))
    assert {word: found.get(("planned_runs_total", (("recovery", word),)), 0) for word in RECOVERED} == RECOVERED


def test_recovered_runs_are_counted_by_how_they_ended(tm: TimeManagement, noon: MovableClock, tally: Tally) -> None:
    add(tm, name="kept", recovery="last")
    add(tm, name="broken", task="fails", recovery="last", max_retries=0)
    noon.forward("9m 30s")
    tm.run_due_jobs()
    noon.forward("30s")  # this one is on time
    tm.run_due_jobs()
    found = samples(TallyCollector(tally))
    counted = {labels: count for (name, labels), count in found.items() if name == "recovery_runs_total"}
    ends = {"kept": "completed", "broken": "failed"}
    assert counted == {(("definition", name), ("state", state)): 1 for name, state in ends.items()}


def test_how_things_stand_is_what_status_says(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    add(tm, name="a")
    add(tm, name="b")
    tm.pause("b")
    defer(app.tasks["effect"].s(1), delay="1h")
    defer_many([app.tasks["effect"].s(n) for n in range(3)], delay="1m")
    noon.forward("61s")
    found = samples(StateCollector(tm.installation))
    assert found["up", ()] == 1
    assert (found["queued", ()], found["running", ()], found["paused", ()]) == (3, 0, 1)
    assert found["jobs", (("state", "pending"),)] == 4
    assert found["jobs", (("state", "due"),)] == 3
    assert found["due_lag_seconds", ()] == 1.0
    assert found["definitions", (("standing", "on"),)] == 1
    assert found["next_run_timestamp_seconds", ()] == tm.definitions.get("a").next_run_at.timestamp()


def test_the_database_is_not_asked_by_every_scrape(tm: TimeManagement, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    plain = collecting.status
    monkeypatch.setattr(collecting, "status", lambda database: asked.append(1) or plain(database))
    collector = StateCollector(tm.installation)
    for _ in range(3):
        assert samples(collector)["up", ()] == 1
    assert len(asked) == 1
    collector._asked_at -= collecting.FRESH_FOR
    samples(collector)
    assert len(asked) == 2


def test_a_database_that_is_away_is_not_up_and_nothing_else_is_told() -> None:
    app = Celery("away", set_as_current=False, tm_database_url="postgresql://nobody@127.0.0.1:1/nothing")
    assert samples(StateCollector(Installation.of(app))) == {("up", ()): 0.0}


def test_what_happens_is_counted_by_name_and_outcome(
    tm: TimeManagement, app: Celery, tally: Tally, noon: MovableClock
) -> None:
    add(tm, name="each minute", task="effect", args=["s3cret"], max_runs=1)
    defer(app.tasks["fails"].s("s3cret"), delay="1m", key="s3cret", max_retries=0, entity_id="s3cret")
    noon.forward("1m")
    tm.run_due_jobs()
    tm.dead_letters.purge(all=True)
    found = samples(TallyCollector(tally))
    mine = (("definition", "each minute"), ("task", "effect"))
    assert found["executions_total", (mine[0], ("outcome", "succeeded"), mine[1])] == 1
    assert found["executions_total", (("definition", ""), ("outcome", "failed"), ("task", "fails"))] == 1
    assert found["attempts_total", mine] == 1
    assert found["execution_seconds_count", (mine[0], ("step", ""), mine[1])] == 1
    assert found["occurrences_total", (mine[0], ("state", "completed"))] == 1
    assert found["deferred_total", (("task", "fails"),)] == 1
    assert (found["buried_total", (("definition", ""), ("task", "fails"))], found["purged_total", ()]) == (1, 1)
    assert found["revived_total", ()] == 0
    registry = CollectorRegistry()
    registry.register(TallyCollector(tally))
    assert b"s3cret" not in generate_latest(registry)


def test_no_event_breaks_what_counts_it(app: Celery, tally: Tally, caplog: pytest.LogCaptureFixture) -> None:
    from dataclasses import fields

    for kind in events.SIGNALS:
        values: dict[str, Any] = {field.name: {} if field.name == "by_recovery" else 1 for field in fields(kind)}
        events.emit(app, kind(**values))
    assert "Signal handler" not in caplog.text
    assert samples(TallyCollector(tally))["tick_seconds_count", ()] == 1


def test_a_histogram_adds_up_from_bucket_to_bucket() -> None:
    tally = Tally()
    for seconds in (0.0005, 0.001, 0.003, 99.0):
        tally.observe(names.TICK_SECONDS, seconds=seconds)
    found = samples(TallyCollector(tally))
    assert found["tick_seconds_bucket", (("le", "0.001"),)] == 2
    assert found["tick_seconds_bucket", (("le", "0.005"),)] == 3
    assert found["tick_seconds_bucket", (("le", "+Inf"),)] == found["tick_seconds_count", ()] == 4
    assert found["tick_seconds_sum", ()] == pytest.approx(99.0045)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedTally]:
    made = SharedTally(str(tmp_path))
    yield made
    made.close()


def in_a_child(work: Any) -> None:
    """Do something in a fork that then vanishes without a chance to clean up."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def test_what_forked_processes_count_outlives_them(tmp_path: Path, shared: SharedTally) -> None:
    shared.count(names.DISPATCHED, by=2)
    for _ in range(3):
        in_a_child(lambda: [shared.count(names.DISPATCHED) for _ in range(5)])
    in_a_child(lambda: shared.observe(names.TICK_SECONDS, seconds=0.2))
    assert len(list(tmp_path.glob("*.db"))) == 5
    for _ in range(2):  # the second time, what the dead left has been taken over
        found = samples(TallyCollector(shared))
        assert found["dispatched_total", ()] == 2 + 3 * 5
        assert found["tick_seconds_count", ()] == 1
        assert len(list(tmp_path.glob("*.db"))) == 2


def test_an_exporter_of_the_users_own_reads_the_same_files(tmp_path: Path, shared: SharedTally) -> None:
    shared.count(names.SWEPT, "orphaned", by=3)
    shared.observe(names.TICK_SECONDS, seconds=0.2)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))
    text = generate_latest(registry).decode()
    assert 'celery_tm_swept_total{kind="orphaned"} 3.0' in text
    assert "celery_tm_tick_seconds_count 1.0" in text


def test_a_stated_folder_is_used_and_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(serving.STANDARD, str(tmp_path / "shared"))
    assert serving._folder() == str(tmp_path / "shared")
    others = tmp_path / "shared" / "counter_123.db"
    others.touch()
    SharedTally(str(tmp_path / "shared")).values()
    assert others.exists()


def test_without_the_package_the_log_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    app = Celery("bare", set_as_current=False, tm_database_url="sqlite://", tm_metrics_port=9808)
    serving.serve_beat(Installation.of(app))
    serving.count_worker(Installation.of(app), has_processes=True)
    assert caplog.text.count("pip install 'celery-tm[metrics]'") == 2


def test_labels_are_names_and_states_only() -> None:
    named = {"definition", "task", "step", "queue", "table", "version", "schema"}
    allowed = named | {"outcome", "state", "standing", "reason", "kind", "what", "recovery"}
    assert {label for metric in names.METRICS for label in metric.labels} <= allowed
    assert len({metric.name for metric in names.METRICS}) == len(names.METRICS)
