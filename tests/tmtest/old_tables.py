"""Tables of an earlier revision with a past in them, and people who go on writing to them while they are upgraded."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sqlalchemy import text
from sqlalchemy.engine import Connection

from celery_tm import TimeManagement
from celery_tm.settings import read_settings
from celery_tm.store import schema
from celery_tm.store.database import Database

from . import many_rows
from .app import make_app

NOON = "2026-06-01 12:00:00"
UPGRADE = """
import sys
from celery_tm.settings import read_settings
from celery_tm.store import schema
from celery_tm.store.database import Database
print(schema.upgrade(Database(read_settings({"tm_database_url": sys.argv[1]}, {}))))
"""


def old_tables(url: str, count: int, *, revision: str = "0004") -> TimeManagement:
    """Make tables of a revision with so many executions and a tenth as many jobs of a definition."""
    tm = TimeManagement(make_app({"broker_url": "memory://", "tm_database_url": url}))
    schema.upgrade(tm.installation.database, revision)
    say = many_rows.words_of(tm)
    definition = {
        "id": "'d'", "name": "'tick'", "task": "'t'", "args": "'[]'", "kwargs": "'{}'", "schedule_kind": "'cron'",
        "schedule": "'* * * * *'", "timezone": "'UTC'", "gap": "'shift'", "enabled": say.false, "paused": say.false,
        "overlap": "'skip'", "recovery": "'last'", "version": "4", "planned_until": f"'{NOON}'",
        "created_at": f"'{NOON}'", "updated_at": f"'{NOON}'",
    }  # fmt: skip
    many_rows.insert(tm, "tm_definition", 1, **definition)
    at = {"scheduled_at": say.before("n"), "version": "1", "is_recovery": say.false, "state": "'completed'"}
    many_rows.insert(tm, "tm_occurrence", count, id=say.named("at"), definition="'d'", **at)
    with many_rows.indexed_afterwards(tm, "tm_execution"):
        done = {"task": "'t'", "source": "'scheduled'", "attempt": "1", "outcome": "'succeeded'"}
        named = {"id": say.named("execution"), "job": say.named("done"), "occurrence": say.named("at")}
        many_rows.insert(tm, "tm_execution", count, completed_at=say.before("n"), **named, **done)
    many_rows.jobs(tm, max(1, count // 10), occurrence=say.named("at"), source="'scheduled'")
    many_rows.analyze(tm)
    return tm


def upgrade_in_a_process(url: str) -> subprocess.Popen[str]:
    """Begin to upgrade, in a process that can be watched and killed."""
    return subprocess.Popen(
        [sys.executable, "-c", UPGRADE, url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@dataclass
class Writer:
    """Inserts executions and jobs, claims jobs and ends them, as old and new nodes alike do, and times each transaction."""

    url: str
    number: int
    waits: list[float] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    ended: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        told = "?application_name=writer" if "postgresql" in self.url else ""
        database = Database(read_settings({"tm_database_url": self.url + told}, {}))
        count = 0
        while not self.is_over.is_set() and not self.errors:
            count += 1
            for work in (self._insert, self._claim, self._end):
                began = time.monotonic()
                try:
                    with database.engine.begin() as connection:
                        work(connection, f"{self.number}-{count}")
                except Exception as error:
                    self.errors.append(error)
                self.waits.append(time.monotonic() - began)
            time.sleep(0.002)
        database.dispose()

    def _insert(self, connection: Connection, id: str) -> None:
        """Write a new job, and one that was done at once."""
        columns = "id, task, run_at, created_at, original_delay, state, attempt, tries_from, dispatches, source"
        values = f"'{id}', 't', '{NOON}', '{NOON}', 0, 'pending', 1, 1, 0, 'deferred'"
        no = "false" if "postgresql" in self.url else "0"
        _say(connection, f"INSERT INTO tm_job ({columns}, cancel_requested) VALUES ({values}, {no})")
        _say(connection, _execution(f"direct-{id}"))

    def _claim(self, connection: Connection, id: str) -> None:
        """Take the oldest jobs that nobody has, as a beat does."""
        where = "state = 'pending' AND slot IS NULL"
        due = f"SELECT id FROM tm_job WHERE {where} ORDER BY run_at LIMIT 3 FOR UPDATE SKIP LOCKED"
        for found in _say(connection, due).scalars().all():
            _say(connection, f"UPDATE tm_job SET state = 'running', claimed_by = '{self.number}' WHERE id = '{found}'")

    def _end(self, connection: Connection, id: str) -> None:
        """End what was taken, as workers do."""
        mine = f"SELECT id FROM tm_job WHERE state = 'running' AND claimed_by = '{self.number}' FOR UPDATE"
        for number, found in enumerate(_say(connection, mine).scalars().all()):
            _say(connection, f"DELETE FROM tm_job WHERE id = '{found}'")
            _say(connection, _execution(f"ended-{id}-{number}"))
            self.ended += 1


def _execution(id: str) -> str:
    columns = "id, job, task, source, attempt, completed_at, outcome"
    return f"INSERT INTO tm_execution ({columns}) VALUES ('{id}', '{id}', 't', 'deferred', 1, '{NOON}', 'succeeded')"


def _say(connection: Connection, statement: str) -> Any:
    return connection.execute(text(statement.replace(":", r"\:")))


@contextmanager
def writers(url: str, count: int = 2) -> Iterator[list[Writer]]:
    """Let so many write for as long as this block takes."""
    found = [Writer(url, number) for number in range(count)]
    threads = [threading.Thread(target=writer.run) for writer in found]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        for writer in found:
            writer.is_over.set()
        for thread in threads:
            thread.join()


class LockWatch:
    """Looks all the time at who waits for a lock, and keeps how long the longest wait was, by the server's own clock.

    How long a statement took says more about a busy machine than about locks.
    """

    ASKED: ClassVar = {
        "postgresql": "SELECT pid, extract(epoch FROM clock_timestamp() - waitstart) FROM pg_locks JOIN pg_stat_activity "
        "USING (pid) WHERE NOT granted AND datname = current_database() AND application_name = 'writer'",
        "mysql": "SELECT id, time_ms / 1000 FROM information_schema.processlist WHERE db = DATABASE() "
        "AND state LIKE 'Waiting for table%%' AND info NOT LIKE 'ALTER%%'",
    }

    def __init__(self, url: str) -> None:
        self.database = Database(read_settings({"tm_database_url": url}, {}))
        self.longest, self.looks = 0.0, 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        with self.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not self._is_over.wait(0.02):
                for _, waited in connection.exec_driver_sql(self.ASKED[self.database.dialect.name]):
                    self.longest = max(self.longest, float(waited or 0))
                self.looks += 1

    def __enter__(self) -> LockWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.database.dispose()
