"""A small installation in which processes die: set up once, brought back as often as one is to die, then looked at.

The process that dies is a forked child, at the real time. Those that go on are a beat and a worker in the test's own
process, with the time moved on to whatever is due next, and they get every message that was ever sent once more.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from celery import Celery
from sqlalchemy import Column, Integer, MetaData, String, Table, delete, make_url, select

from celery_tm import TimeManagement, clock
from celery_tm.domain.occurrence import OccurrenceState
from celery_tm.domain.workflow import TASK as WHOLE_RUN
from celery_tm.management.easy import embedded_broker
from celery_tm.scheduler import Scheduler
from celery_tm.store import agenda, tables
from celery_tm.store.database import Database
from celery_tm.worker import context as contexts

from .courier import Courier

metadata = MetaData()
# What the bodies and callers write themselves; nothing in it is unique, so that what is doubled shows.
book = Table("crash_book", metadata, Column("id", Integer, primary_key=True), Column("line", String(200)))
TABLES = (*tables.metadata.sorted_tables, book)
GOES_ON = {"failed", "orphaned", "interrupted", "timeout", "replaced"}
BURIED = {"failed", "orphaned", "timeout"}
OPEN = {OccurrenceState.PENDING, OccurrenceState.QUEUED, OccurrenceState.RUNNING}
ROUNDS = 60
EFFECTS = "TM_TEST_EFFECTS"
FORGOTTEN = timedelta(days=1)  # what was recorded so long ago may be pruned, or not yet
OUTSIDER = "another"  # a job that a scenario only tells of
Rows = dict[str, list[dict[str, Any]]]


class CrashWorld:
    """One app on one database, with a file broker and an effects file."""

    def __init__(self, app: Celery, folder: Path) -> None:
        self.app, self.tm, self.folder, self.effects = app, TimeManagement(app), folder, folder / "effects.log"
        self.courier = Courier(self.tm, hostname="survivor@test")
        self.doomed = Courier(self.tm, hostname="doomed@test")
        self.broker, self.results = folder / "messages", folder / "results"
        self.start = datetime.now(UTC)
        self.effects.touch()
        self.state: Any = None  # what a scenario's set-up wants its act to know
        metadata.create_all(self.database.engine)
        self.database.throttle.every = 0.0  # so that the statements do not depend on how fast this machine is

    def close(self) -> None:
        """Leave nothing behind."""
        metadata.drop_all(self.database.engine)
        self.database.dispose()
        self.app.close()
        os.environ.pop(EFFECTS, None)
        shutil.rmtree(self.folder)

    @property
    def database(self) -> Database:
        return self.tm.installation.database

    @contextmanager
    def at(self, offset: timedelta) -> Iterator[None]:
        """Let all of this process live at a time so far from the scenario's beginning."""
        before = clock._standing
        clock.stand_still(self.start + offset)
        try:
            yield
        finally:
            clock.stand_still(before)

    # What there was

    def set_up(self, prepare: Callable[[CrashWorld], Any]) -> None:
        """Begin anew, and remember how it all was."""
        self._before: Rows = {}
        self._messages: dict[str, bytes] = {}
        self._effects = b""
        os.environ[EFFECTS] = str(self.effects)
        assert self.app.backend  # tries its folder out when it is made
        self.bring_back()
        self.start = datetime.now(UTC)
        self.state = prepare(self)
        contexts.leave()
        with self.database.transaction(write=False) as tx:
            found = {table.name: [dict(row._mapping) for row in tx.execute(select(table))] for table in TABLES}
        self._before = {name: rows for name, rows in found.items() if rows}
        self._effects = self.effects.read_bytes()
        self._messages = {path.name: path.read_bytes() for path in self.broker.iterdir()}

    def bring_back(self) -> None:
        """Make everything as it was after the set-up."""
        with self.database.transaction() as tx:
            for table in TABLES:
                tx.execute(delete(table))
                if rows := self._before.get(table.name):
                    tx.execute(table.insert(), rows)
        for path in (*self.broker.iterdir(), *self.results.iterdir()):
            path.unlink()
        for name, content in self._messages.items():
            (self.broker / name).write_bytes(content)
        self.effects.write_bytes(self._effects)

    # What goes on

    def go_on(self, *, late: bool, redelivered: bool = False) -> None:
        """Let a beat and a worker go on until nothing is owed, and then get every message once more.

        `late`: what is in the broker now comes after all else. `redelivered`: what the dead one had taken comes again.
        """
        beat = Survivor(self.app, max_interval=1)
        there, self._held = self.courier.collect(), list[Any]()
        if redelivered:
            there = self._taken() + there
        self._ahead = timedelta(0)
        self._settle(beat, [] if late else there)
        self._settle(beat, there if late else [])
        before = self.found()
        with self.at(self._ahead):
            for message in self._held:
                self.courier.deliver(message)
            beat.work()
            assert not self.courier.collect(), "a message that came once more led to another one"
        assert self.found() == before, "a message that came once more changed something"

    def _taken(self) -> list[Any]:
        """Return the messages that were there after the set-up."""
        for name, content in self._messages.items():
            (self.broker / name).write_bytes(content)
        return self.courier.collect()

    def _settle(self, beat: Scheduler, waiting: list[Any]) -> None:
        for number in range(ROUNDS):
            with self.at(self._ahead):
                beat.work()
                waiting += self.courier.collect()
                for message in waiting:
                    self.courier.deliver(message)
                self._held += waiting
                waiting = self.courier.collect()
                left = self._until_next(number)
            if left is None and not waiting:
                return
            self._ahead += timedelta(0) if waiting else timedelta(seconds=min(max(left or 0.0, 0.1), 7200))
        raise AssertionError(f"after {ROUNDS} rounds there is still owed: {self._owed()}")

    def _until_next(self, number: int) -> float | None:
        """Return in how many seconds something is due; None if nothing is unfinished."""
        with self.database.transaction(write=False) as tx:
            if not tx.execute(select(tables.job.c.id).limit(1)).first() and not self._is_planning(tx):
                return None
            seconds = agenda.look(tx).seconds
        if not seconds:
            # A server may not yet have noticed that somebody died, and beat leaves what met a lock out for a second.
            time.sleep(0.002 if number < ROUNDS // 3 else 0.1)
        return 60.0 if seconds is None else seconds

    def _is_planning(self, tx: Any) -> bool:
        due = tables.definition.c.next_run_at
        return tx.execute(select(due).where(due <= tx.now).limit(1)).first() is not None

    def _owed(self) -> Any:
        with self.database.transaction(write=False) as tx:
            job = tables.job.c
            return tx.execute(
                select(job.task, job.state, job.attempt, job.run_at, job.ended, job.slot, job.last_error)
            ).all()

    # What there is

    def found(self) -> Found:
        """Return all that is written down of what has happened."""
        with self.database.transaction(write=False) as tx:
            runs = tables.execution.c
            young = runs.completed_at > self.start - FORGOTTEN
            executions = tx.execute(
                select(runs.job, runs.attempt, runs.outcome, runs.task, runs.occurrence).where(young)
            ).all()
            at = tables.occurrence.c
            occurrences = tx.execute(select(at.id, at.definition, at.scheduled_at, at.state)).all()
            steps = tx.execute(select(tables.step.c.workflow, tables.step.c.name, tables.step.c.state)).all()
            kept = tables.key.c
            keys = tx.execute(select(kept.task, kept.key, kept.job).where(kept.kept_until > self.start)).all()
            dead = tx.execute(select(tables.dead_letter.c.id)).scalars().all()
            lines = tx.execute(select(book.c.line)).scalars().all()
        effects = [tuple(line.split()) for line in self.effects.read_text().splitlines()]
        return Found(
            executions=sorted(map(tuple, executions), key=lambda row: row[:2]),
            occurrences=sorted(map(tuple, occurrences), key=str),
            steps=sorted(map(tuple, steps)),
            keys=sorted(map(tuple, keys)),
            dead=sorted(dead),
            book=sorted(lines),
            effects=sorted(effects),
            owed=self._owed(),
        )


class Survivor(Scheduler):
    """A beat that has been there for a while: it is known, and has seeded what there is."""

    def setup_schedule(self) -> None:
        """Get ready."""
        super().setup_schedule()
        self._seen_at = time.monotonic()
        self.seeder._done = True


@dataclass(frozen=True)
class Found:
    """What tables, the book and the effects file hold."""

    executions: Sequence[Any]  # job, attempt, outcome, task, occurrence
    occurrences: Sequence[Any]  # id, definition, instant, state
    steps: Sequence[Any]  # run, name, state
    keys: Sequence[Any]  # task, key, job
    dead: Sequence[str]
    book: Sequence[str]
    effects: Sequence[Any]  # task, job, attempt
    owed: Sequence[Any]

    @property
    def ends(self) -> Mapping[str, int]:
        """Return how often each task ended in each way."""
        last = {job: f"{task} {outcome}" for job, _, outcome, task, _ in self.executions}
        return dict(sorted(Counter(last.values()).items()))

    @property
    def runs(self) -> set[str]:
        """Return the jobs that stand for a run: a run that fails is no dead letter, its step is."""
        return {job for job, _, _, task, _ in self.executions if task == WHOLE_RUN}

    def wrong(self) -> list[str]:
        """Return which promises do not hold, whatever the scenario."""
        return [
            *self._wrong_attempts(),
            *self._wrong_effects(),
            *(f"{row} is still owed" for row in self.owed),
            *(f"{row} has not ended" for row in self.occurrences if row[3] in OPEN),
            *(f"step {row} has not ended" for row in self.steps if row[2] in ("waiting", "owed")),
            *self._wrong_keys(),
        ]

    def _wrong_attempts(self) -> Iterator[str]:
        """Each attempt is recorded once and none is left out; the last is an end, and what is buried is a dead letter."""
        attempts: dict[str, list[Any]] = defaultdict(list)
        for job, attempt, outcome, *_ in self.executions:
            attempts[job].append((attempt, outcome))
        for job, known in attempts.items():
            if [attempt for attempt, _ in known] != list(range(1, len(known) + 1)):
                yield f"{job}: its attempts are {known}"
            if any(outcome not in GOES_ON for _, outcome in known[:-1]):
                yield f"{job}: it went on after its end: {known}"
            if job not in self.runs and (known[-1][1] in BURIED) != (job in self.dead):
                where = "is" if job in self.dead else "is not"
                yield f"{job}: it ended as {known[-1][1]}, and {where} among the dead letters"

    def _wrong_effects(self) -> Iterator[str]:
        """Each attempt ran at most once; one that succeeded ran; what commits with a success is there once."""
        ran = Counter((job, int(attempt)) for _, job, attempt in self.effects)
        yield from (f"{one} ran {count} times" for one, count in ran.items() if count > 1)
        outcomes = {(job, attempt): outcome for job, attempt, outcome, *_ in self.executions}
        yield from (f"{one} ran and is not recorded" for one in ran if one not in outcomes)
        for job, attempt, outcome, task, _ in self.executions:
            if outcome == "succeeded" and task.startswith("crash.") and not ran[job, attempt]:
                yield f"{task} {job}: attempt {attempt} succeeded and never ran"
        done = [job for job, _, outcome, task, _ in self.executions if outcome == "succeeded" and task == "crash.writes"]
        written = [line for line in self.book if not line.startswith("order ")]
        if sorted(done) != written:
            yield f"the transactional jobs {sorted(done)} succeeded, and what they wrote is {written}"

    def _wrong_keys(self) -> Iterator[str]:
        """A key is kept by the job that succeeded with it."""
        succeeded = {job for job, _, outcome, *_ in self.executions if outcome == "succeeded"}
        yield from (
            f"{row} is kept, and its job did not succeed" for row in self.keys if row[2] not in {*succeeded, OUTSIDER}
        )


def opened(url: str) -> CrashWorld:
    """Open a world on an upgraded database."""
    from .crash_tasks import crash_app  # it writes into the book, too

    memory = Path("/dev/shm")  # where there is one, nobody waits for the disk
    folder = Path(mkdtemp(prefix="tm-crash-", dir=memory if memory.is_dir() else None))
    conf = embedded_broker(folder) | {"task_default_queue": "crash", "tm_app": "crash", "tm_database_url": unhurried(url)}
    return CrashWorld(crash_app(conf), folder)


def unhurried(url: str) -> str:
    """Return the URL such that PostgreSQL does not wait for the disk: it is not the server that dies here."""
    made = make_url(url)
    if made.get_backend_name() != "postgresql":
        return url
    return made.update_query_dict({"options": "-csynchronous_commit=off"}).render_as_string(hide_password=False)
