"""Runs one of Celery's suites, in a process of its own, with or without our base class, and tells what differs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tmtest.servers import OwnRedis
from tmtest.stand import Process

from celery_suites.plugin import count_executions
from celery_tm.settings import read_settings
from celery_tm.store import schema
from celery_tm.store.database import Database

TESTS = Path(__file__).parent.parent
OURS, PLAIN = "celery_tm:Task", ""
KEPT = ("outcomes", "reasons", "seconds")
CORE = ("t/unit/tasks/test_tasks.py", "t/unit/tasks/test_trace.py", "t/unit/worker/test_request.py")
UNIT = ("t/unit/tasks", "t/unit/worker/test_request.py")
INTEGRATION = ("t/integration/test_tasks.py",)
CANVAS = ("t/integration/test_canvas.py",)
# As in plain Celery a failure is final unless the body asks for a retry. Older releases have no such setting.
# What we do differently on purpose, and can be told not to: failures are left to the body, the caller hears of a broker that
# is away, and (one test looks for such a message in its queue) a call for tomorrow goes to the broker.
SETTINGS = {"tm_poll_interval": 0.2, "tm_retry": "never", "tm_keep_unsent": False, "tm_capture_eta_after": "30d"}

# These contradict a promise of ours, or look into the inside of a wrapper; each must fail, or leave this list.
TWICE = "delivers one task id twice and wants two runs: the gate lets it in once"
INTENDED = {
    "t/unit/worker/test_request.py::test_Request::test_on_hard_timeout_clears_synthetic_traceback": TWICE,
    "t/unit/worker/test_request.py::test_Request::test_fast_trace_task": TWICE,  # its name before Celery 5.7
}

_upgrading = threading.Lock()  # Alembic keeps what it is at in globals, and shards run at once


@dataclass(frozen=True)
class Report:
    """How the tests of one run ended, and whose tasks they had."""

    outcomes: Mapping[str, str]
    reasons: Mapping[str, str] = field(default_factory=dict)
    seen: Mapping[str, int] = field(default_factory=dict)
    foreign: Sequence[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def failed(self) -> frozenset[str]:
        return frozenset(id for id, outcome in self.outcomes.items() if outcome == "failed")

    @property
    def passed(self) -> frozenset[str]:
        return frozenset(id for id, outcome in self.outcomes.items() if outcome == "passed")

    def __str__(self) -> str:
        counts = Counter(self.outcomes.values())
        return ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped", "xfailed") if counts[kind])


def merge(reports: Sequence[Report]) -> Report:
    """Return what several runs found together; of a test that ran twice, the later run counts."""
    outcomes, reasons, seconds = ({k: v for one in reports for k, v in getattr(one, name).items()} for name in KEPT)
    return Report(
        outcomes,
        reasons,
        dict(sum((Counter(one.seen) for one in reports), Counter())),
        sorted({name for one in reports for name in one.foreign}),
        seconds,
    )


def check_injected(report: Report) -> None:
    """Make sure that the run was about our class: no test's app had a task of another, and bodies were recorded."""
    assert not report.foreign, f"not of our base class: {', '.join(report.foreign)}"
    assert report.seen.get("ours", 0) > 0, "no test had a task of our base class"
    assert report.seen.get("recorded", 0) > 0, "no body was recorded: the gate was never passed"


@dataclass(frozen=True)
class Comparison:
    """What our base class changes."""

    broken: Mapping[str, str]  # fails with ours and passes in plain Celery, with the reason
    healed: frozenset[str]  # listed as an intended difference, but passes
    intended: frozenset[str]
    by_itself: frozenset[str]  # fails in plain Celery as well

    def __str__(self) -> str:
        lines = [f"broken: {id}\n    {reason[:300]}" for id, reason in sorted(self.broken.items())]
        lines += [f"passes, so it is no intended difference any more: {id}" for id in sorted(self.healed)]
        lines += [f"intended: {id}: {INTENDED[id]}" for id in sorted(self.intended)]
        return "\n".join(lines + [f"fails in plain Celery too: {id}" for id in sorted(self.by_itself)])


def compare(ours: Report, plain: Report) -> Comparison:
    """Tell what passes in plain Celery and not with ours. A test that did not run at all counts as failed."""
    lost = plain.passed - ours.passed
    return Comparison(
        broken={id: ours.reasons.get(id, "it did not run") for id in lost - INTENDED.keys()},
        healed=ours.passed & INTENDED.keys(),
        intended=lost & INTENDED.keys(),
        by_itself=plain.failed & ours.failed,
    )


def run_unit(source: Path, base: str, tests: Iterable[str], folder: Path, *, shard: str = "") -> Report:
    """Run unit tests; with our class, each test has a SQLite database of its own."""
    folder.mkdir(exist_ok=True)
    template = folder / "template.db"
    if not template.exists():
        _upgrade(f"sqlite:///{template}")
    return _pytest(source, tests, folder, {"SUITES_BASE": base, "SUITES_DATABASE": str(template), "SUITES_SHARD": shard})


def run_integration(
    source: Path,
    base: str,
    tests: Iterable[str],
    folder: Path,
    *,
    shard: str = "",
    timeout: float = 60,
    options: Sequence[str] = (),
) -> Report:
    """Run integration tests on a Redis of their own; with our class, a beat runs beside."""
    folder.mkdir(exist_ok=True)
    database = f"sqlite:///{folder / 'jobs.db'}"
    with _own_redis(folder) as redis:
        port = str(redis.port)
        environment = {"TEST_BROKER": redis.url, "TEST_BACKEND": redis.url, "REDIS_HOST": "127.0.0.1", "REDIS_PORT": port}
        environment |= {"SUITES_SHARD": shard, "SUITES_BASE": base, "TM_DATABASE_URL": database, "WORKER_LOGLEVEL": "INFO"}
        # A test that fails would be repeated five times: a second run of what failed tells as much, sooner.
        more = ["-p", "no:rerunfailures", "--timeout", str(timeout), *options]
        if not base:
            return _pytest(source, tests, folder, environment, *more)
        _upgrade(database)
        with _beat(source, folder, environment):
            report = _pytest(source, tests, folder, environment, *more)
    return replace(report, seen={**report.seen, "recorded": count_executions(folder / "jobs.db")})


def _pytest(source: Path, tests: Iterable[str], folder: Path, environment: Mapping[str, str], *options: str) -> Report:
    """Run Celery's tests with Celery's configuration and our plugin, and return its report."""
    report, log = folder / "report.json", folder / "pytest.log"
    report.unlink(missing_ok=True)
    plugins = ["-p", "celery_suites.plugin", "-p", "no:celery_tm", "-p", "no:cacheprovider", "-p", "no:xdist"]
    base = folder / f"tmp-{'ours' if environment['SUITES_BASE'] else 'plain'}"
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "ignore",
        "--tb=short",
        "--show-capture=no",
        f"--basetemp={base}",
        *plugins,
        *options,
    ]
    with log.open("a") as out:
        subprocess.run(
            [*argv, *tests],
            cwd=source,
            env=_environment(environment | {"SUITES_REPORT": str(report)}),
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    shutil.rmtree(base, ignore_errors=True)
    if not report.exists():
        raise RuntimeError(f"Celery's tests could not be run:\n{log.read_text()[-3000:]}")
    found = Report(**json.loads(report.read_text()))
    if not found.outcomes:
        raise RuntimeError(f"no test of Celery's was run:\n{log.read_text()[-3000:]}")
    return found


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for Celery's suites, free of what pytest told this process."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    return inherited | {"PYTHONPATH": paths, "SUITES_SETTINGS": json.dumps(SETTINGS)} | more


def _upgrade(url: str) -> None:
    with _upgrading:
        database = Database(read_settings({"tm_database_url": url}, {}))
        schema.upgrade(database)
        database.dispose()


@contextmanager
def _own_redis(folder: Path) -> Iterator[OwnRedis]:
    redis = OwnRedis(folder)
    redis.start()
    try:
        yield redis
    finally:
        redis.stop()


@contextmanager
def _beat(source: Path, folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a beat as long as the tests run: our retries go through the job table."""
    env = _environment(environment)
    env["PYTHONPATH"] = os.pathsep.join([str(source), env["PYTHONPATH"]])
    place = ["--pidfile", str(folder / "beat.pid")]
    argv = [sys.executable, "-m", "celery", "-A", "celery_suites.beat_app", "beat", "-S", "celery_tm.Scheduler", *place]
    beat = Process("beat", argv, folder / "beat.log", env)
    try:
        yield
        assert beat.is_running, f"beat has ended:\n{beat.text()[-3000:]}"
    finally:
        beat.close()
