"""Filters that are malformed, names that nobody has, and the figures people look at first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from tmtest.ledger import NOON, add, claim, plan, start

from celery_tm import TimeManagement, defer
from celery_tm.errors import DefinitionNotFound, InvalidValue, JobNotFound, UnknownOption
from celery_tm.store import nodes, schema
from celery_tm.testing import MovableClock
from celery_tm.worker import recorder

Ask = Callable[[TimeManagement], Any]
REFUSED: list[tuple[Ask, str]] = [
    (lambda tm: tm.history(outcome="fail"), "outcome: 'fail' .* did you mean 'failed'"),
    (lambda tm: tm.history(source="schedule"), "source: .* did you mean 'scheduled'"),
    (lambda tm: tm.history(task=""), "task: it is empty"),
    (lambda tm: tm.history(task="a\x00b"), "task: .* cannot be seen"),
    (lambda tm: tm.history(worker=7), "worker: 7 is not text"),  # type: ignore[arg-type]
    (lambda tm: tm.history(entity_id="\ud800"), "entity_id: .* cannot be seen"),
    (lambda tm: tm.history(since="yesterday"), "since: 'yesterday' is not a date and time"),  # type: ignore[arg-type]
    (lambda tm: tm.history(until=datetime(2026, 6, 1)), "until: .* has no time zone"),
    (lambda tm: tm.history(before="zz"), "before: 'zz' is not a cursor"),
    (lambda tm: tm.history(limit=1001), "limit: 1001 .* from 1 to 1000"),
    (lambda tm: tm.jobs(state="waiting"), "state: 'waiting' .* use one of 'pending', 'dispatched', 'running'"),
    (lambda tm: tm.jobs(after="x" * 2000), "after: .* is not a cursor"),
    (lambda tm: tm.jobs(key="k" * 300), "key: 300 characters are too many"),
    (lambda tm: tm.jobs(limit=0), "limit: 0"),
    (lambda tm: tm.occurrences("tick", state="done"), "state: 'done' .* 'completed'"),
    (lambda tm: tm.occurrences("tick", limit=-1), "limit: -1"),
    (lambda tm: tm.occurrences(state="failed", troubled=True), "state: .* give one of the two"),
    (lambda tm: tm.audit(before="€"), "before: '€' is not a cursor"),
    (lambda tm: tm.audit(action="a" * 50), "action: 50 characters"),
    (lambda tm: tm.log("x", limit="all"), "limit: 'all'"),  # type: ignore[arg-type]
    (lambda tm: tm.log("\x00"), "id: "),
    (lambda tm: tm.definitions.list(standing="off"), "standing: 'off' .* 'on', 'paused', 'disabled', 'retired'"),
    (lambda tm: tm.definitions.list(search=" "), "search: it is empty"),
    (lambda tm: tm.definitions.list(limit=5000), "limit: 5000"),
    (lambda tm: tm.dead_letters.list(error=""), "error: it is empty"),
    (lambda tm: tm.dead_letters.list(limit=10**9), "limit: 1000000000"),
    (lambda tm: tm.dead_letters.list(before="bm8"), "before: 'bm8' is not a cursor"),
    (lambda tm: tm.dead_letters.preview(since="now"), "since: "),  # type: ignore[typeddict-item]
    (lambda tm: tm.dead_letters.revive_all(ids="abc"), "ids: 'abc' is not a list"),
    (lambda tm: tm.dead_letters.purge(ids=["a", "\x00"]), "ids: .* cannot be seen"),
    (lambda tm: tm.dead_letters.purge("id", task="t"), "id: it says already"),
    (lambda tm: tm.dead_letters.purge("id", all=True), "id: it says already"),
    (lambda tm: tm.dead_letters.purge(), "all: no dead letter is selected"),
    (lambda tm: tm.dead_letters.purge(task=None, expected=0), "all: no dead letter is selected"),
    (lambda tm: tm.dead_letters.purge(ids=[]), "ids: no dead letter is selected"),
    (lambda tm: tm.dead_letters.revive_all(ids=[]), "ids: no dead letter is selected"),
    (lambda tm: tm.dead_letters.purge(all=True, expected=-1), "expected: -1"),
    (lambda tm: tm.status(at=datetime(2026, 6, 1)), "at: .* has no time zone"),
]


@pytest.mark.parametrize(("ask", "told"), REFUSED, ids=[told for _, told in REFUSED])
def test_a_malformed_question_is_refused_and_says_what_would_be_right(tm: TimeManagement, ask: Ask, told: str) -> None:
    add(tm)
    with pytest.raises(InvalidValue, match=told):
        ask(tm)


def test_a_cursor_of_another_list_is_refused(tm: TimeManagement) -> None:
    add(tm, name="a")
    add(tm, name="b")
    cursor = tm.audit(limit=1).next
    for ask in (tm.history, tm.dead_letters.list):
        with pytest.raises(InvalidValue, match="before: it is a cursor of 'audit', not of"):
            ask(before=cursor)


UNKNOWN: list[Ask] = [
    lambda tm: tm.history("tikc"),
    lambda tm: tm.occurrences("tikc"),
    lambda tm: tm.jobs(definition="tikc"),
    lambda tm: tm.dead_letters.list(definition="tikc"),
    lambda tm: tm.dead_letters.purge(definition="tikc"),
]


@pytest.mark.parametrize("ask", UNKNOWN)
def test_an_unknown_definition_is_told_with_the_one_that_was_meant(tm: TimeManagement, ask: Ask) -> None:
    add(tm)
    with pytest.raises(DefinitionNotFound, match="did you mean 'tick'"):
        ask(tm)


@pytest.mark.parametrize("name", ["a\x00b", "\ud800", ""])
def test_a_name_that_none_can_have_is_not_found(tm: TimeManagement, name: str) -> None:
    for ask in (tm.history, tm.occurrences):
        with pytest.raises(DefinitionNotFound):
            ask(name)


def test_an_unknown_job_has_no_log(tm: TimeManagement) -> None:
    with pytest.raises(JobNotFound, match="no job 'x'"):
        tm.log("x")


def test_trouble_is_found_over_all_definitions(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, name="well")
    add(tm, name="paused", paused=True)
    noon.forward("2m")
    plan(tm)
    for id in claim(tm):
        recorder.record_success(tm.installation, start(tm, id), None)
    found = tm.occurrences(troubled=True)
    assert [(tm.names_of(found)[one.definition], str(one.state)) for one in found] == [("paused", "skipped")] * 2
    assert len(tm.occurrences()) > len(found)
    tm.definitions.remove("paused")
    assert tm.names_of(found) == {}
    assert len(tm.occurrences(troubled=True)) == 2, "a definition that was removed keeps its instants"


def test_an_unknown_filter_is_refused(tm: TimeManagement) -> None:
    with pytest.raises(UnknownOption, match="did you mean 'task'"):
        tm.dead_letters.purge(tasks="t")  # type: ignore[call-arg]


def test_status_tells_what_is_going_on(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    add(tm, schedule="0 * * * *")
    add(tm, name="off", paused=True)
    for n in range(4):
        defer(app.tasks["effect"].s(n), delay=timedelta(minutes=n + 1))
    for _ in range(2):
        defer(app.tasks["effect"].s(9), delay="1m", concurrency_key="lane")
    defer(app.tasks["fails"].s(1), delay="30s", max_retries=0)
    noon.forward("30s")
    tm.run_due_jobs()
    noon.forward("30s")
    first, *_ = claim(tm, limit=3)
    start(tm, first)
    noon.forward("90s")
    status = tm.status()
    assert status.now == NOON + timedelta(seconds=150)
    assert status.schema == schema.LATEST
    assert status.definitions == {"on": 1, "paused": 1, "disabled": 0, "retired": 0}
    assert status.jobs == {"pending": 4, "due": 1, "waiting_for_turn": 1, "dispatched": 1, "running": 1}
    assert (status.in_flight, status.expired_leases, status.max_in_flight) == (2, 2, None)
    assert (status.dead_letters, status.recent, status.capped) == (1, {"failed": 1}, [])
    assert (status.lag, status.next_run_at) == (30.0, NOON + timedelta(minutes=1))
    assert status.oldest_due is not None
    assert (status.oldest_due.task, status.oldest_due.run_at) == ("effect", NOON + timedelta(minutes=2))
    later = tm.status(at=NOON + timedelta(days=2))
    assert (later.jobs["due"], later.recent, later.occurrences_recent) == (3, {}, {})


def test_an_empty_installation_has_a_status(tm: TimeManagement) -> None:
    status = tm.status()
    assert (status.lag, status.oldest_due, status.next_run_at, list(status.nodes)) == (0.0, None, None, [])
    assert {*status.definitions.values(), *status.jobs.values()} == {0}


def test_a_node_that_was_not_seen_for_a_while_is_silent(tm: TimeManagement, noon: MovableClock) -> None:
    database = tm.installation.database
    database.run(lambda tx: nodes.see(tx, "old", "beat", started_ago=timedelta(hours=1)))
    noon.forward("1m")
    database.run(lambda tx: nodes.see(tx, "new", "worker", started_ago=timedelta(0)))
    found = {node.name: (node.kind, node.is_silent, node.started_at) for node in tm.status().nodes}
    assert found == {
        "new": ("worker", False, NOON + timedelta(minutes=1)),
        "old": ("beat", True, NOON - timedelta(hours=1)),
    }


def test_counts_end_at_their_cap_and_say_so(tm: TimeManagement, app: Celery, noon: MovableClock) -> None:
    from celery_tm.store import overview

    for n in range(5):
        defer(app.tasks["effect"].s(n), delay="1m")
    noon.forward("2m")
    status = overview.status(tm.installation.database, cap=3)
    assert (status.jobs["pending"], status.jobs["due"], status.cap, status.capped) == (3, 3, 3, ["due", "pending"])


def test_what_ended_lately_is_counted_to_the_last_one(tm: TimeManagement, noon: MovableClock) -> None:
    add(tm, overlap="allow", recovery="all")
    noon.forward("20m")
    for _ in range(20):
        tm.run_due_jobs()
    from celery_tm.store import overview

    status = overview.status(tm.installation.database, cap=3)
    assert (status.recent, status.occurrences_recent) == ({"succeeded": 20}, {"completed": 20})
    assert not {"recent", "occurrences_recent"} & set(status.capped)
