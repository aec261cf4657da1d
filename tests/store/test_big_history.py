"""A definition with a million executions: its history, and what else people look at first, opens at once.

The rows are made inside the database: in the usual run on PostgreSQL alone, with `--thorough` on every database.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tmtest import many_rows, services
from tmtest.app import make_app
from tmtest.many_rows import NOW
from tmtest.said import listening

from celery_tm import TimeManagement

MANY, OTHERS, OWED, INSTANTS = 1_000_000, 200_000, 200_000, 100_000
FAILED = 10  # of the million
MOST_SECONDS = 0.5  # of the median of five; on an idle machine it is a few milliseconds
DAY = timedelta(days=1)


@pytest.fixture(scope="module", params=("postgresql", "sqlite", "mysql"))
def big(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimeManagement]:
    """A database with a long past, and much that is owed."""
    kind = request.param
    if kind != "postgresql" and not request.config.getoption("--thorough"):
        pytest.skip("a million rows are made on PostgreSQL; with --thorough on every database")
    if kind in services.KINDS and not services.find(kind):
        pytest.skip(services.why_missing(kind))
    with ExitStack() as stack:
        folder: Path = tmp_path_factory.mktemp("big")
        own = services.own_database
        url = f"sqlite:///{folder}/big.db" if kind == "sqlite" else stack.enter_context(own(kind, suffix="_big"))
        tm = TimeManagement(make_app({"broker_url": "memory://", "tm_database_url": url, "tm_auto_upgrade": True}))
        stack.callback(tm.installation.database.dispose)
        fill(tm)
        yield tm


def fill(tm: TimeManagement) -> None:
    """Make the past: the million, and besides those that others would have to be read past."""
    for name in ("nightly", "hourly"):
        tm.definitions.add(name=name, task="effect", schedule="* * * * *")
    rarely = f"CASE WHEN n % {MANY // FAILED} = 0 THEN 'failed' ELSE 'succeeded' END"
    often = "CASE WHEN n % 3 = 0 THEN 'failed' ELSE 'succeeded' END"
    with many_rows.indexed_afterwards(tm, "tm_execution"):
        many_rows.executions(tm, MANY, "nightly", outcome=rarely)
        many_rows.executions(tm, OTHERS, "hourly", every=5, task="'other'", outcome=often)
    many_rows.jobs(tm, OWED)
    many_rows.occurrences(tm, INSTANTS, "nightly")
    many_rows.analyze(tm)


Question = Callable[[TimeManagement], Any]
QUESTIONS: dict[str, tuple[Question, int]] = {
    "history of the definition": (lambda tm: tm.history("nightly"), 50),
    "a big page of it": (lambda tm: tm.history("nightly", limit=1000), 1000),
    "history of all": (lambda tm: tm.history(), 50),
    "what failed of it": (lambda tm: tm.history("nightly", outcome="failed"), FAILED),
    "what never happened": (lambda tm: tm.history("nightly", outcome="timeout"), 0),
    "what failed of all": (lambda tm: tm.history(outcome="failed"), 50),
    "history of a task": (lambda tm: tm.history(task="other"), 50),
    "of an entity": (lambda tm: tm.history(entity_id="order:1"), 0),
    "of a day long ago": (lambda tm: tm.history("nightly", since=NOW - 9 * DAY, until=NOW - 8 * DAY), 50),
    "owed jobs": (lambda tm: tm.jobs(), 100),
    "jobs that wait": (lambda tm: tm.jobs(state="pending"), 100),
    "jobs that run": (lambda tm: tm.jobs(state="running"), 0),
    "instants": (lambda tm: tm.occurrences("nightly"), 50),
    "all definitions at a glance": (lambda tm: tm.glance(), 2),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_what_people_ask_first_is_answered_at_once(big: TimeManagement, name: str) -> None:
    ask, count = QUESTIONS[name]
    with listening(big.installation.database) as said:
        assert len(ask(big)) == count
    assert median_seconds(lambda: ask(big)) < MOST_SECONDS
    assert whole_scans(big, said.statements) == []
    if big.installation.database.dialect.is_server:  # SQLite is always told OFFSET 0 by SQLAlchemy
        assert not any(re.search(r"\bOFFSET\b", statement, re.IGNORECASE) for statement in said.texts)


def test_status_costs_the_same_however_much_there_is(big: TimeManagement) -> None:
    with listening(big.installation.database) as said:
        status = big.status(at=NOW)
    assert (status.jobs["pending"], status.jobs["due"], status.capped) == (10_000, 10_000, ["due", "pending"])
    assert (status.lag, status.recent["succeeded"]) == (OWED / 2 - 1, 3600 + 480)
    assert median_seconds(lambda: big.status(at=NOW)) < MOST_SECONDS
    assert whole_scans(big, [one for one in said.statements if "tm_execution" in one[0]]) == []


def test_a_late_page_costs_what_the_first_one_does(big: TimeManagement) -> None:
    late = big.history("nightly", until=NOW - timedelta(seconds=MANY - 200), limit=50)
    assert len(late) == 50
    with listening(big.installation.database) as said:
        following = big.history("nightly", before=late.next)
    assert (len(following), len({one.id for one in [*late, *following]})) == (50, 100)
    assert median_seconds(lambda: big.history("nightly", before=late.next)) < MOST_SECONDS
    assert whole_scans(big, said.statements) == []


def test_the_last_page_says_that_it_is(big: TimeManagement) -> None:
    start = NOW - timedelta(seconds=MANY - 99)
    found, cursor, pages = 0, None, 0
    while pages == 0 or cursor:
        page = big.history("nightly", until=start, before=cursor, limit=50)
        found, cursor, pages = found + len(page), page.next, pages + 1
    assert (found, pages) == (99, 2)


def test_a_whole_scan_would_be_noticed(big: TimeManagement) -> None:
    assert whole_scans(big, [("SELECT * FROM tm_execution WHERE message = 'x'", ())]) != []


def median_seconds(work: Callable[[], Any]) -> float:
    """Return how long something takes once it was done before."""
    took = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return statistics.median(took)


def whole_scans(tm: TimeManagement, asked: list[tuple[str, Any]]) -> list[str]:
    """Return where the database would look at every execution, job or instant."""
    return [
        line
        for statement, parameters in asked
        if statement.startswith("SELECT")
        for line in many_rows.plan_of(tm, statement, parameters)
        if many_rows.is_whole_scan(line)
    ]
