"""The checker reads real tables and files: a short run in this process is clean, and each tampering with it is caught."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, MetaData, create_engine, func, insert, select, text

from celery_tm import TimeManagement
from celery_tm.store import tables
from faults import app as chaos
from faults import load, record
from faults.checker import check, judge, report
from faults.history import History
from faults.load import Ask, Driver

SCHEDULE = "* * * * * *"


@dataclass(frozen=True)
class Kept:
    """A run that is over: its files, and its database."""

    folder: Path

    def history(self, folder: Path | None = None) -> History:
        """Read it, or a copy of it."""
        place = folder or self.folder
        return History.read(place, f"sqlite:///{place}/jobs.db")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(chaos.FOLDER, str(folder))
        patch.setenv(load.LEASE, "3")
        conf = {"tm_database_url": f"sqlite:///{folder}/jobs.db", "broker_url": "memory://", "tm_lease": 3}
        app = chaos.make_app(conf)
        tm = TimeManagement(app)
        tm.upgrade()
        with tm.installation.database.transaction() as tx:
            tx.execute(text("CREATE TABLE chaos_effect (label VARCHAR(80), job VARCHAR(40), attempt INTEGER)"))
            tx.execute(text("CREATE TABLE chaos_order (ask VARCHAR(80), job VARCHAR(40))"))
        live(tm, Driver(app, "load", "1"), folder)
        tm.installation.database.dispose()
        yield Kept(folder)
        app.close()


def live(tm: TimeManagement, driver: Driver, folder: Path) -> None:
    """Ask for a bit of everything, run it here, and write what the run was."""
    ticking = tm.definitions.add(name="tick", task="recurring", kwargs={"label": "tick"}, schedule=SCHEDULE, overlap="allow")
    for ask in (Ask("plain"), Ask("transactional"), Ask("doomed"), Ask("flaky", arguments=(1,)), Ask("keyed", key="k")):
        driver.one(Ask(ask.kind, ask.key, 0.01, arguments=ask.arguments))
    driver.one(Ask("keyed", key="k", delay=0.01))
    for _ in range(6):
        driver.in_transaction()
    until = time.monotonic() + 2.1
    while time.monotonic() < until:
        run(tm)
    tm.disable("tick")
    stopped = datetime.now(UTC)
    while run(tm):
        assert time.monotonic() < until + 20, "it does not come to its end"
    definition = {"name": "tick", "schedule": SCHEDULE, "added_at": ticking.created_at.isoformat()}
    about = {"lease": 3, "definitions": [definition | {"stopped_at": stopped.isoformat()}]}
    about["clock"] = {"at": time.monotonic_ns(), "now": datetime.now(UTC).isoformat()}
    (folder / "run.json").write_text(json.dumps(about))


def run(tm: TimeManagement) -> int:
    """Run what is due, and return how many jobs are owed; those published at once wait too, for nobody hears the broker."""
    job = tables.job
    with tm.installation.database.transaction() as tx:
        waiting = {"state": "pending", "lease_until": None, "claimed_by": None, "claimed_at": None}
        tx.execute(job.update().where(job.c.state == "dispatched").values(waiting))
    tm.run_due_jobs()
    time.sleep(0.05)
    with tm.installation.database.transaction(write=False) as tx:
        return int(tx.execute(select(func.count()).select_from(job)).scalar_one())


def test_a_real_run_is_clean(kept: Kept) -> None:
    history = kept.history()
    verdict = judge(history)
    assert [violation.story for violation in verdict.violations] == []
    counts = report(history, verdict)
    assert counts["attempts"]["succeeded"] >= 8
    assert counts["dead letters"] == 1
    assert counts["bodies"]["began"] >= counts["bodies"]["ended"] > 8
    assert sum(counts["occurrences"].values()) >= 1


Tampering = Callable[[Connection, MetaData, Path], Any]


def _sql(*statements: str) -> Tampering:
    def tamper(connection: Connection, _: MetaData, __: Path) -> None:
        for statement in statements:
            assert connection.execute(text(statement)).rowcount > 0, statement

    return tamper


def _twin(table: str, where: str, **changes: Any) -> Tampering:
    """Copy a row with some of it changed."""

    def tamper(connection: Connection, there: MetaData, _: Path) -> None:
        row = connection.execute(select(there.tables[table]).where(text(where)).limit(1)).mappings().one()
        connection.execute(insert(there.tables[table]).values({**row, **changes}))

    return tamper


def _say_again(what: str, task: str) -> Tampering:
    """Let a body's line be there twice."""

    def tamper(_: Connection, __: MetaData, folder: Path) -> None:
        lines = (folder / record.EFFECTS).read_text().splitlines()
        line = next(one for one in map(json.loads, lines) if (one["what"], one["task"]) == (what, task))
        record.write(folder, record.EFFECTS, line | {"at": line["at"] + 1})

    return tamper


def _unsay(what: str, task: str) -> Tampering:
    def tamper(_: Connection, __: MetaData, folder: Path) -> None:
        lines = (folder / record.EFFECTS).read_text().splitlines()
        left = [one for one in lines if (json.loads(one)["what"], json.loads(one)["task"]) != (what, task)]
        (folder / record.EFFECTS).write_text("\n".join(left) + "\n")

    return tamper


PLAIN = "task = 'plain'"
TAMPERINGS: dict[str, tuple[int, Tampering]] = {
    "the record of a success is deleted": (1, _sql("DELETE FROM tm_execution WHERE task = 'plain'")),
    "a dead letter is deleted": (1, _sql("DELETE FROM tm_dead_letter")),
    "what was ordered is deleted": (1, _sql("DELETE FROM chaos_order")),
    "no body ended": (1, _unsay("ended", "plain")),
    "a body began twice": (2, _say_again("began", "plain")),
    "a key is deleted": (2, _sql("DELETE FROM tm_key")),
    "an attempt is recorded twice": (2, _twin("tm_execution", PLAIN, id="twin")),
    "another worker wrote the end": (3, _sql("UPDATE tm_execution SET worker = 'other:1' WHERE task = 'plain'")),
    "an attempt is skipped": (3, _sql("UPDATE tm_execution SET attempt = 3 WHERE task = 'flaky' AND attempt = 2")),
    "an end after the end": (3, _twin("tm_execution", PLAIN, id="twin", attempt=2, outcome="cancelled", started_at=None)),
    "an effect is doubled": (4, _sql("INSERT INTO chaos_effect SELECT * FROM chaos_effect")),
    "an effect is deleted": (4, _sql("DELETE FROM chaos_effect")),
    "an effect is another attempt's": (4, _sql("UPDATE chaos_effect SET attempt = 9")),
    "an instant is deleted": (
        5, _sql("DELETE FROM tm_occurrence WHERE scheduled_at = (SELECT min(scheduled_at) FROM tm_occurrence)"),
    ),
    "an instant is left undecided": (5, _sql("UPDATE tm_occurrence SET state = 'running'")),
    "an instant is planned twice": (6, _twin("tm_occurrence", "state = 'completed'", id="twin")),
    "an occurrence has two jobs": (6, _twin("tm_execution", "task = 'recurring'", id="twin", job="twin")),
    "a job started early": (7, _sql(f"UPDATE tm_execution SET started_at = '2020-01-01 00:00:00.000000' WHERE {PLAIN}")),
    "a worker lost its job for nothing": (7, _sql(f"UPDATE tm_execution SET outcome = 'orphaned' WHERE {PLAIN}")),
}  # fmt: skip


@pytest.mark.parametrize("name", TAMPERINGS)
def test_a_tampering_with_tables_or_files_is_caught(kept: Kept, tmp_path: Path, name: str) -> None:
    promise, tamper = TAMPERINGS[name]
    folder = tmp_path / "copy"
    shutil.copytree(kept.folder, folder)
    engine: Engine = create_engine(f"sqlite:///{folder}/jobs.db")
    there = MetaData()
    there.reflect(engine)
    with engine.begin() as connection:
        tamper(connection, there, folder)
    engine.dispose()
    found = [violation for violation in check(kept.history(folder)) if violation.promise == promise]
    assert found, f"{name}: nobody noticed"
    assert found[0].job or found[0].key or found[0].occurrence
    assert "\n  " in found[0].story, "a story has lines"


def test_a_line_that_a_kill_cut_off_is_counted_and_the_next_one_read(kept: Kept, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(kept.folder, folder)
    file = folder / record.EFFECTS
    whole = file.read_text()
    file.write_text('{"at": 12, "what": "beg' + whole)
    history = kept.history(folder)
    assert (history.torn, len(history.effects)) == (1, len(kept.history().effects))
    file.write_text(whole + '{"at": 12, "wh')
    assert kept.history(folder).torn == 1
