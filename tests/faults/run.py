"""One run: servers, processes, load and faults for some minutes, then peace until nothing is owed, then the verdict.

`python -m faults.run --minutes 30 --pair postgresql+redis --seed 7` (`make chaos`). The exit status is 1 if a promise was
broken, or if work is still owed when all is healed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, MetaData, create_engine, func, select, text
from sqlalchemy.engine import make_url
from storm import chaos
from storm import plan as combined

from celery_tm import TimeManagement
from celery_tm.store import tables
from celery_tm.store.dialects import with_driver
from faults import clocks, load, record, work
from faults.app import make_app
from faults.checker import judge
from faults.faults import EVERY, KINDS, Injector, Place, schedule
from faults.fleet import Fleet
from faults.history import History
from faults.proxy import Proxies
from faults.sites import PAIRS

LEASE, DISPATCH_LEASE = 4, 5
TABLES = "tables.db"
# Seconds in which everything must have ended once all is healed. A job whose messages were lost again and again waits for a
# lease that has doubled each time, up to 64 times the first one.
SETTLES = DISPATCH_LEASE * 64 + 60.0
CONF: dict[str, Any] = {
    "tm_lease": LEASE,
    "tm_dispatch_lease": DISPATCH_LEASE,
    "tm_poll_interval": 0.5,
    "tm_capture_eta_after": 2,
}
CROWDS = {"threads": 8, "gevent": 8}  # workers of other pools, and how many bodies they run at one time
PROXIED = ("worker-3", "beat-2", "load-2")
OWN_CLOCK = ("worker-2", "beat-2", "load-2")


@dataclass
class Plan:
    """What a run is to be."""

    seconds: float
    pair: str
    seed: int
    folder: Path
    rate: float = 90.0
    kinds: Sequence[str] = tuple(KINDS)
    every: tuple[float, float] = EVERY
    workers: int = 3
    concurrency: int = 2
    settles: float = SETTLES
    limit: int = 1200  # jobs that may be owed before the load pauses


@dataclass
class Result:
    """What came of a run."""

    violations: Sequence[Any] = ()
    settled: bool = True
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.settled and not self.violations


class Run:
    """One run, from its servers to its verdict."""

    def __init__(self, plan: Plan, say: Callable[[str], None] = print) -> None:
        self.plan, self.say = plan, say
        self.facts: dict[str, Any] = {}
        self._closing = ExitStack()

    def go(self) -> Result:
        """Do it all, and leave no process behind."""
        with self._closing:
            self._open()
            self._bear()
            settled = self._settle()
            return self._judge(settled)

    # Building

    def _open(self) -> None:
        plan = self.plan
        plan.folder.mkdir(parents=True, exist_ok=True)
        database, broker = (self._site(kind) for kind in PAIRS[plan.pair])
        proxies = Proxies()
        self._closing.callback(proxies.close)
        told = {
            load.SEED: plan.seed,
            load.LIMIT: plan.limit,
            load.LEASE: LEASE,
            load.RATE: plan.rate / 2,
        }  # of two processes
        fleet = Fleet(plan.folder, {name: str(value) for name, value in told.items()})
        self.place = Place(plan.folder, fleet, database, broker)
        for name in PROXIED:
            self.place.proxies |= {f"{name} to {part.name}": proxies.add(part.port) for part in (database, broker)}
        self.engine = create_engine(with_driver(make_url(database.url())), pool_pre_ping=True)
        self._closing.callback(self.engine.dispose)
        self._prepare()
        self._closing.callback(self.place.fleet.close)
        self._man()

    def _site(self, kind: Any) -> Any:
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{kind.name}-"))
        self._closing.callback(shutil.rmtree, folder, ignore_errors=True)
        site = kind(folder)
        self._closing.callback(site.close)
        site.open()
        return site

    def _conf(self, name: str = "") -> dict[str, Any]:
        """Return the configuration of a process: some reach the servers through proxies of their own."""
        database, broker, proxies = self.place.database, self.place.broker, self.place.proxies
        through = {part.name: proxies[f"{name} to {part.name}"].port for part in (database, broker) if name in PROXIED}
        where = {
            "tm_database_url": database.url(through.get(database.name)),
            "broker_url": broker.url(through.get(broker.name)),
        }
        return CONF | where | {"beat_max_loop_interval": 2}

    def _prepare(self) -> None:
        """Make the tables and the definitions, and write down which features are combined."""
        combined.write(self.plan.folder, chaos.make_cases())
        self.app = make_app(self._conf())
        self.tm = TimeManagement(self.app)
        self._closing.callback(self.app.close)
        self._closing.callback(self.tm.installation.database.dispose)
        self.tm.upgrade()
        self.place.database.make_tables()
        self.definitions = []
        for stated in work.definitions():
            added = self.tm.definitions.add(**stated)
            self.definitions.append(stated | {"id": added.id, "added_at": added.created_at.isoformat(), "stopped_at": None})
        self._write_facts()

    def _man(self) -> None:
        fleet, own = self.place.fleet, self._clock
        for number in range(1, self.plan.workers + 1):
            name = f"worker-{number}"
            fleet.add_worker(name, self._conf(name), concurrency=self.plan.concurrency, clock=own(name))
        for pool, concurrency in CROWDS.items():
            name = f"worker-{pool}"
            fleet.add_worker(name, self._conf(name), concurrency=concurrency, pool=pool)
        for name in ("beat-1", "beat-2"):
            fleet.add_beat(name, self._conf(name), clock=own(name))
        for name in ("load-1", "load-2"):
            fleet.add(name, "load", ["-m", "faults.load", name, "4"], self._conf(name), own(name))

    def _clock(self, name: str) -> clocks.Shifted | None:
        if name not in OWN_CLOCK or clocks.library() is None:
            return None
        return clocks.Shifted(self.plan.folder / f"{name}.clock")

    # Bearing

    def _bear(self) -> None:
        """Let load and faults come for as long as planned."""
        plan = self.plan
        kinds = [name for name in plan.kinds if KINDS[name].needs(self.place)]
        self.injector = Injector(self.place, schedule(plan.seed, plan.seconds, kinds, plan.every))
        self.place.fleet.start()
        time.sleep(3)  # the first workers take that long to start
        self.begun = time.monotonic()
        self.injector.start()
        try:
            while (left := self.begun + plan.seconds - time.monotonic()) > 0:
                time.sleep(min(left, 10))
                self._tell()
        finally:
            self.injector.stop()

    def _tell(self) -> None:
        minutes = (time.monotonic() - self.begun) / 60
        try:
            owed, done = self._count(tables.job), self._count(tables.execution)
        except Exception as error:
            self.say(f"{minutes:5.1f} min  the database is away: {type(error).__name__}")
            return
        faults = self.injector.counts.total()
        self.say(f"{minutes:5.1f} min  {done:7} attempts recorded, {owed:5} jobs owed, {faults:5} faults")

    def _count(self, table: Any, *where: Any) -> int:
        with self.engine.connect() as connection:
            return int(connection.execute(select(func.count()).select_from(table).where(*where)).scalar_one())

    # Settling

    def _settle(self) -> bool:
        """Stop load and schedules, and wait until nothing is owed."""
        begun = time.monotonic()
        self.place.fleet.stop("load", seconds=25)
        for stated in self.definitions:
            self.tm.disable(stated["name"])
            stated["stopped_at"] = datetime.now(UTC).isoformat()
        owed = 1
        while owed and time.monotonic() < begun + self.plan.settles:
            time.sleep(0.5)
            active = ("pending", "queued", "running")
            owed = self._count(tables.job) + self._count(tables.occurrence, tables.occurrence.c.state.in_(active))
        self.settling = time.monotonic() - begun
        self.say(f"settled in {self.settling:.0f} s" if not owed else f"{owed} are still owed after {self.settling:.0f} s")
        self.place.fleet.close()
        return not owed

    # Judging

    def _judge(self, settled: bool) -> Result:
        self.facts = {"settled": settled, "settling": round(self.settling, 1), "faults": dict(self.injector.counts)}
        self.facts |= {"passed_over": dict(self.injector.passed_over), "troubles": Counter(self.injector.troubles)}
        self.facts |= {"asked": self._asked(), "outcomes": self._outcomes(), "jobs_owed": self._owed()}
        self.facts |= {"dead_letters": self._count(tables.dead_letter)}
        self._write_facts()
        keep_tables(self.engine, self.plan.folder / TABLES)
        verdict = judge(History.read(self.plan.folder, self.engine))
        self.facts["allowed"] = dict(verdict.allowed)
        return Result(violations=verdict.violations, settled=settled, summary=self.facts)

    def _asked(self) -> dict[str, Any]:
        """Count what was asked, by kind, and the errors that it met."""
        kinds: Counter[str] = Counter()
        errors: Counter[str] = Counter()
        for line in read_lines(self.plan.folder / record.ASKED):
            if line["what"] == "asks":
                kinds[line["kind"]] += 1
            elif "error" in line:
                errors[line["error"].partition(":")[0]] += 1
        return {"kinds": dict(kinds), "errors": dict(errors)}

    def _outcomes(self) -> dict[str, int]:
        outcome = tables.execution.c.outcome
        with self.engine.connect() as connection:
            return {row[0]: row[1] for row in connection.execute(select(outcome, func.count()).group_by(outcome))}

    def _owed(self) -> list[dict[str, Any]]:
        with self.engine.connect() as connection:
            return [dict(row._mapping) for row in connection.execute(select(tables.job).limit(5))]

    def _write_facts(self) -> None:
        plan = self.plan
        facts = {"seed": plan.seed, "minutes": plan.seconds / 60, "pair": plan.pair, "lease": LEASE, "settings": CONF}
        facts["clock"] = {"at": time.monotonic_ns(), "now": datetime.now(UTC).isoformat()}  # both times of one moment
        facts |= {
            "plain_tasks": chaos.PLAIN,
            "definitions": self.definitions,
            "clocks_shifted": clocks.library() is not None,
        }
        facts |= {"versions": {name: version(name) for name in ("celery", "kombu", "SQLAlchemy")}, **self.facts}
        (plan.folder / "run.json").write_text(json.dumps(facts, default=str, indent=1))


def keep_tables(engine: Engine, file: Path) -> None:
    """Copy the tables of a run into a file, so that it can be looked at, and checked again, when its server is gone."""
    file.unlink(missing_ok=True)
    there = MetaData()
    there.reflect(engine)
    kept = create_engine(f"sqlite:///{file}")
    with engine.connect() as source, kept.begin() as target:
        for table in there.sorted_tables:
            names = ", ".join(f'"{column.name}"' for column in table.columns)
            target.execute(text(f"CREATE TABLE {table.name} ({names})"))
            rows = source.execution_options(yield_per=5000).execute(select(table))
            for part in rows.partitions():
                marks = ", ".join("?" * len(table.columns))
                target.exec_driver_sql(f"INSERT INTO {table.name} VALUES ({marks})", [tuple(map(_plain, r)) for r in part])
    kept.dispose()


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, type(None))) else str(value)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a record; none if there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(plan: Plan, result: Result) -> str:
    """Return what came of a run, as text."""
    facts = result.summary
    lines = [f"seed {plan.seed}, {plan.pair}, {plan.seconds / 60:.1f} minutes, records in {plan.folder}"]
    for name, counts in (
        ("jobs asked for", facts["asked"]["kinds"]),
        ("errors that callers got", facts["asked"]["errors"]),
        ("attempts by outcome", facts["outcomes"]),
        ("faults", facts["faults"]),
        ("faults passed over", facts["passed_over"]),
        ("troubles of the harness", facts["troubles"]),
        ("what looks wrong and is allowed", facts["allowed"]),
    ):
        lines += [f"{name}: {sum(counts.values())}", *(f"  {count:8} {what}" for what, count in sorted(counts.items()))]
    lines += [f"settling took {facts['settling']} s"]
    if not result.settled:
        lines += ["WORK IS STILL OWED, for example:", *(f"  {row}" for row in facts["jobs_owed"])]
    if result.violations:
        lines += [f"{len(result.violations)} VIOLATIONS; the first one:", str(result.violations[0])]
        lines += [getattr(result.violations[0], "story", "")]
    return "\n".join([*lines, "every promise was kept" if result.is_good else "NOT GOOD"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Do one run and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--pair", choices=sorted(PAIRS), default="postgresql+redis")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rate", type=float, default=90, help="jobs asked for in a second")
    parser.add_argument("--settles", type=float, default=SETTLES, help="seconds in which nothing may be owed any more")
    parser.add_argument("--only", nargs="*", default=list(KINDS), help="kinds of faults")
    said = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # and then nothing is left behind
    folder = said.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    plan = Plan(said.minutes * 60, said.pair, said.seed, folder, rate=said.rate, kinds=said.only, settles=said.settles)
    result = Run(plan, lambda line: print(line, flush=True)).go()
    print(report(plan, result))
    return 0 if result.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
