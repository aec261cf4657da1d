"""The rules of `doctor`, without servers: what each finds, what it advises, and that it is silent when all is well."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_tm.domain.checkup import CHECKS
from celery_tm.domain.findings import Facts, Level, examine
from celery_tm.domain.status import Node, OldestDue, Status
from celery_tm.settings import Settings

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAY, HOUR, MINUTE, SECOND = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)


def node(name: str = "beat@a", kind: str = "beat", *, version: str = "1", silent: bool = False) -> Node:
    seen = NOW - (HOUR if silent else SECOND)
    return Node(name=name, kind=kind, started_at=NOW - DAY, seen_at=seen, version=version, is_silent=silent)


JOBS = {"pending": 0, "due": 0, "waiting_for_turn": 0, "dispatched": 0, "running": 0}
STATUS = Status(now=NOW, schema="0005", definitions={"on": 1}, jobs=JOBS, nodes=[node()])
WELL = Facts(
    settings=Settings(), version="1", database="sqlite:///x", schema_needed="0005", schema_found="0005", broker="redis://b",
    status=STATUS, ahead=SECOND / 10, statement=SECOND / 1000, known_tasks=frozenset({"shop.report"}),
    tasks_of_definitions={"shop.report": ["nightly"], "celery_tm.workflow": ["flow"]}, tasks_owed={"shop.report": 3},
)  # fmt: skip


def found(facts: Facts) -> list[tuple[str, str]]:
    return [(str(one.level), one.check) for one in examine(facts, CHECKS) if one.level is not Level.OK]


def only(facts: Facts) -> Any:
    [one] = [one for one in examine(facts, CHECKS) if one.level is not Level.OK]
    assert one.advice
    return one


def with_status(**values: Any) -> Facts:
    return replace(WELL, status=replace(STATUS, **values))


def test_a_healthy_installation_gets_one_ok_for_each_check() -> None:
    assert [(one.level, one.check) for one in examine(WELL, CHECKS)] == [(Level.OK, check.name) for check in CHECKS]


def test_what_runs_as_long_as_usual_or_has_no_usual_duration_is_no_finding() -> None:
    assert found(replace(WELL, running_longest=[("j", "slow", HOUR, HOUR), ("k", "new", HOUR, None)])) == []


LATE = OldestDue(id="j", task="shop.report", run_at=NOW - HOUR)


@pytest.mark.parametrize(
    ("facts", "level", "check", "words"),
    [
        (replace(WELL, ahead=3 * SECOND), "note", "clocks", "3s ahead of"),
        (replace(WELL, ahead=-45 * SECOND), "warning", "clocks", "45s behind"),
        (replace(WELL, broker_error="refused"), "error", "broker", "redis://b does not answer: refused"),
        (replace(WELL, schema_found="0006"), "warning", "schema", "another node is newer"),
        (with_status(nodes=[]), "error", "beats", "no beat is running"),
        (with_status(nodes=[node("worker@a", "worker")]), "error", "beats", "no beat is running"),
        (with_status(nodes=[node(), node("w@b", "worker", silent=True)]), "warning", "silent nodes", "w@b stopped"),
        (with_status(nodes=[node(), node("w@b", "worker", version="2")]), "note", "versions", "w@b run 2, this is 1"),
        (with_status(oldest_due=LATE, lag=3600.0, jobs={**JOBS, "due": 7}), "error", "due work", "7 jobs are due"),
        (with_status(expired_leases=2), "note", "expired leases", "2 jobs"),
        (replace(WELL, dispatched_again=[("j", "shop.report", 2)]), "note", "dispatches", "up to 2 times"),
        (replace(WELL, dispatched_again=[("j", "shop.report", 9)]), "warning", "dispatches", "up to 9 times"),
        (replace(WELL, running_longest=[("j", "t", HOUR, MINUTE)]), "warning", "long running", "running for 1h (job j)"),
        (replace(WELL, stuck=["o1", "o2"]), "warning", "occurrences", "2 occurrences"),
        (replace(WELL, known_tasks=None), "note", "tasks", "no tasks of its own"),
        (replace(WELL, tasks_owed={"shop.reprot": 4}), "warning", "tasks", "4 jobs would run 'shop.reprot'"),
        (replace(WELL, tasks_of_definitions={"x": ["a"]}), "warning", "tasks", "definition a would run 'x'"),
        (replace(WELL, never_again=["a", "b", "c", "d"]), "warning", "next runs", "a, b, c and 1 more: on, but"),
        (replace(WELL, spent=["a"]), "note", "next runs", "max_runs"),
        (replace(WELL, statement=6 * SECOND), "error", "leases", "a lease of 30s is renewed every 10s"),
        (replace(WELL, orphaned={"a": 1, "b": 5}), "warning", "leases", "6 executions of the last day lost"),
        (replace(WELL, paused=[("a", NOW - 8 * DAY)]), "note", "paused", "a: paused since 2026-05-24"),
        (replace(WELL, oldest={"executions": NOW - 93 * DAY}), "warning", "retention", "executions are kept for 90d"),
        (replace(WELL, oldest={"logs": NOW - 33 * DAY}), "warning", "retention", "logs are kept for 30d"),
        (replace(WELL, stated_late=["tm_redact"]), "note", "settings", "tm_redact changed after"),
        (replace(WELL, settings=Settings(tm_schema="x"), dialect="mysql"), "note", "settings", "only PostgreSQL"),
        (replace(WELL, settings=Settings(tm_dispatch_lease=SECOND)), "note", "settings", "is not longer than"),
        (replace(WELL, settings=Settings(tm_admins=())), "note", "settings", "names nobody"),
        (replace(WELL, settings=Settings(tm_redact=("shop.pay:card",))), "note", "settings", "fits no task"),
    ],
)  # fmt: skip
def test_each_rule_says_what_is_wrong_and_what_to_do(facts: Facts, level: str, check: str, words: str) -> None:
    one = only(facts)
    assert (one.level, one.check) == (level, check)
    assert words in one.text


def test_what_is_still_well_is_not_found() -> None:
    just = [
        replace(WELL, ahead=SECOND), with_status(oldest_due=LATE, lag=5.0), replace(WELL, dispatched_again=[("j", "t", 1)]),
        replace(WELL, paused=[("a", NOW - DAY)]), replace(WELL, oldest={"executions": NOW - 91 * DAY}),
        replace(WELL, settings=Settings(tm_redact=("SHOP.*:card", "*password*"))),
        replace(WELL, settings=Settings(tm_schema="x")), replace(WELL, statement=SECOND),
    ]  # fmt: skip
    assert [found(facts) for facts in just] == [[]] * len(just)


def test_a_full_house_is_told_from_a_beat_that_is_slow() -> None:
    facts = with_status(oldest_due=LATE, lag=3600.0, jobs={**JOBS, "due": 7}, in_flight=10, max_in_flight=10)
    assert "tm_max_in_flight (10) is reached" in only(facts).text
    assert only(facts).advice.startswith("start more workers")


def test_a_typo_is_answered_with_the_task_that_was_meant() -> None:
    assert "it has 'shop.report'" in only(replace(WELL, tasks_owed={"shop.reprot": 4})).text


def test_dead_letters_of_the_last_day_are_graver_than_old_ones() -> None:
    fresh = replace(with_status(dead_letters=12), last_buried_at=NOW - HOUR)
    assert (only(fresh).level, only(fresh).check) == (Level.WARNING, "dead letters")
    old = replace(with_status(dead_letters=10_000, capped=["dead_letters"]), last_buried_at=NOW - 9 * DAY)
    assert only(old).level is Level.NOTE
    assert "10,000+ dead letters" in only(old).text


@pytest.mark.parametrize(
    ("late", "longest", "is_found"),
    [
        ({"a": None}, {}, False),
        ({"a": 2 * HOUR}, {}, True),
        ({"a": MINUTE}, {}, False),
        ({"a": None}, {"a": 2 * HOUR}, True),
    ],
)
def test_a_body_longer_than_the_visibility_timeout_is_found(late: Any, longest: Any, is_found: bool) -> None:
    facts = replace(WELL, visibility=HOUR, late_tasks=late, longest=longest)
    assert bool(found(facts)) is is_found
    assert found(replace(facts, visibility=None)) == []


def test_etas_that_outlast_the_visibility_timeout_are_found() -> None:
    facts = replace(WELL, visibility=HOUR, settings=Settings(tm_capture_eta_after=2 * HOUR))
    assert only(facts).check == "acknowledgements"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"database_error": "cannot reach the database"}, "cannot reach the database"),
        ({"schema_found": None}, "there are no celery_tm tables"),
        ({"schema_found": "0004"}, "the tables are at 0004, this release needs 0005"),
    ],
)
def test_without_tables_only_what_needs_none_is_checked(values: dict[str, Any], words: str) -> None:
    facts = replace(WELL, status=None, **values)
    assert words in only(facts).text
    assert {one.check for one in examine(facts, CHECKS)} == {check.name for check in CHECKS if not check.needs_tables}


def test_the_worst_comes_first() -> None:
    facts = replace(with_status(expired_leases=1, nodes=[]), never_again=["a"])
    levels = [one.level for one in examine(facts, CHECKS)]
    assert levels == sorted(levels, key=list(Level).index)
    assert levels[0] is Level.ERROR
