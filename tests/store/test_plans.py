"""How the databases that are embedded, or are MySQL, find the rows of a job's life: by index, however many others wait.

PostgreSQL's plans are read in `test_tick_cost.py`, with a million rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery
from sqlalchemy import text
from tmtest.ledger import claim
from tmtest.said import listening

from celery_tm import TimeManagement, defer, defer_many
from celery_tm.recovery.sweeper import sweep
from celery_tm.store import agenda
from celery_tm.store.database import Database
from celery_tm.worker import gate, recorder

WAITING = 5_000


@pytest.fixture
def crowded(tm: TimeManagement, app: Celery, database: Database) -> TimeManagement:
    """Many jobs that wait, and a database that knows how many."""
    if database.dialect.name == "postgresql":
        pytest.skip("its plans are read in test_tick_cost.py")
    defer_many([app.tasks["effect"].s(n) for n in range(WAITING)], delay="5h")
    with database.engine.begin() as connection:
        connection.execute(text("ANALYZE" if database.dialect.name == "sqlite" else "ANALYZE TABLE tm_job"))
    return tm


def said_by(database: Database, action: Callable[[], object]) -> list[tuple[str, Any]]:
    """Do something, and return how it asked for jobs."""
    with listening(database) as said:
        action()
    return [one for one in said.statements if "tm_job" in one[0] and not one[0].startswith("INSERT")]


def whole_scans(database: Database, said: list[tuple[str, Any]]) -> list[str]:
    """Return the statements for which the database would look at every row of the job table."""
    found = []
    with database.engine.connect() as connection:
        for statement, parameters in said:
            if database.dialect.name == "sqlite":
                rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
                scans = [row for row in rows if row[3].startswith("SCAN tm_job") and "INDEX" not in row[3]]
            else:
                plan = connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).mappings().all()
                scans = [row for row in plan if row["table"] == "tm_job" and row["type"] == "ALL"]
            found += [statement] if scans else []
    return found


def test_a_whole_table_scan_would_be_seen(crowded: TimeManagement, database: Database) -> None:
    assert whole_scans(database, [("SELECT * FROM tm_job WHERE last_error = 'x'", ())])


def test_every_step_of_a_job_is_found_by_index(crowded: TimeManagement, app: Celery, database: Database) -> None:
    installation = crowded.installation
    handle = defer(app.tasks["effect"].s(1), delay=0.001, key="one")
    jobs: list[Any] = []
    steps: dict[str, Callable[[], object]] = {
        "look": lambda: database.run(agenda.look),
        "claim": lambda: claim(crowded),
        "gate": lambda: jobs.append(gate.admit_job(installation, handle.id, 1, worker="w:1").job),
        "finish": lambda: recorder.record_success(installation, jobs[0], None),
        "a key that is taken": lambda: [defer(app.tasks["effect"].s(1), delay="1h", key="two") for _ in range(2)],
        "sweep": lambda: sweep(database, default=installation.default_policy, limit=10),
        "cancel": lambda: defer(app.tasks["effect"].s(2), delay="1h", entity_id="e").cancel(),
    }
    for name, step in steps.items():
        said = said_by(database, step)
        assert said, f"{name} says nothing: then this shows nothing"
        assert (name, whole_scans(database, said)) == (name, [])
    assert crowded.job(handle.id).state == "SUCCEEDED"
