"""Real workers and beats as processes of their own, on one database and broker, to be watched, stopped and killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import func, select

from celery_tm import TimeManagement, clock
from celery_tm.store import tables
from celery_tm.store.database import Database

from . import warm, workflow_tasks
from .app import make_app

T = TypeVar("T")
TESTS = Path(__file__).parent.parent


class Process:
    """A child process in a group of its own, so that it can be stopped or killed with all its pool processes."""

    def __init__(self, name: str, argv: list[str], log: Path, env: dict[str, str], cwd: Path | None = None) -> None:
        self.name, self.log = name, log
        self._file = log.open("w")
        self._popen: subprocess.Popen[bytes] | warm.Forked
        if cwd is None and warm.can_start(argv, env):
            self._popen = warm.Warm.here().start(argv[1:], log=log, env=env)
        else:
            self._popen = subprocess.Popen(
                argv, stdout=self._file, stderr=subprocess.STDOUT, env=env, cwd=cwd, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def signal_all(self, number: int) -> None:
        """Send a signal to the process and all its children."""
        os.killpg(self._popen.pid, number)

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self._popen.send_signal(signal.SIGTERM)
        self._popen.wait(20)

    def wait(self, seconds: float) -> int:
        """Wait until it has ended, and return how."""
        return self._popen.wait(seconds)

    def kill(self) -> None:
        """Kill it with all its children, without a chance to clean up."""
        with suppress(ProcessLookupError):  # the group outlives its leader as long as a pool process is there
            self.signal_all(signal.SIGKILL)
        self._popen.wait(10)

    def close(self) -> None:
        """End it, and leave nothing of it behind."""
        self.kill()
        self._file.close()


class Stand:
    """One database, one broker, and the processes of a test."""

    def __init__(self, conf: dict[str, Any], folder: Path, effects: Path, *, pair: str = "") -> None:
        self.conf = {"tm_lease": 3, "tm_dispatch_lease": 20, "tm_poll_interval": 0.5} | conf
        self.folder, self.effects_file, self.pair = folder, effects, pair
        self.processes: list[Process] = []
        self.paths: list[str] = [str(TESTS)]  # where processes import from
        self.cwd: Path | None = None  # where they are started, from nothing; None: here
        self.ahead = timedelta(0)
        self.app = make_app(self.conf)
        self.tm = TimeManagement(self.app)
        workflow_tasks.add_hooks(self.tm)

    @property
    def database(self) -> Database:
        return self.tm.installation.database

    def move_by(self, duration: timedelta) -> None:
        """Let this process, and all that are started from now on, live so much later."""
        self.ahead += duration
        clock.move_by(self.ahead)

    def worker(self, *options: str, concurrency: int = 2, wait: bool = True) -> Process:
        """Start a worker and wait until it takes tasks."""
        name = f"worker{len(self.processes)}"
        argv = ["worker", "-l", "INFO", "-c", str(concurrency), "-n", f"{name}@test", "--without-gossip", "--without-mingle"]
        process = self._start(name, [*argv, *options])
        if wait:
            self.wait_for_text(process, "ready.")
        return process

    def beat(self, *options: str) -> Process:
        """Start a beat. It is there soon; what was due before that it does late."""
        name = f"beat{len(self.processes)}"
        place = ["--pidfile", str(self.folder / f"{name}.pid")]
        return self._start(name, ["beat", "-S", "celery_tm.Scheduler", "-l", "INFO", *place, *options])

    def _start(self, name: str, arguments: list[str]) -> Process:
        return self.python(name, "-m", "celery", "-A", "tmtest.main", *arguments)

    def python(self, name: str, *arguments: str) -> Process:
        """Start a Python program with what it needs to make the test's app."""
        paths = os.pathsep.join([*self.paths, os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"TM_TEST_CONF": json.dumps(self.conf), "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"}
        env["TM_TEST_AHEAD"] = str(self.ahead.total_seconds())
        process = Process(name, [sys.executable, *arguments], self.folder / f"{name}.log", env, self.cwd)
        self.processes.append(process)
        return process

    def wait_for_text(self, process: Process, text: str, *, seconds: float = 40) -> None:
        def look() -> bool:
            assert process.is_running, f"{process.name} has ended:\n{process.text()[-3000:]}"
            return text in process.text()

        self.wait(look, seconds=seconds, what=f"{text!r} of {process.name}")

    def wait(self, look: Callable[[], T], *, seconds: float = 30, what: str = "it") -> T:
        """Look again and again until there is something to see, or the time is over."""
        deadline = time.monotonic() + seconds
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"{what} did not happen in {seconds} s\n{self.tails()}")
            time.sleep(0.05)

    def wait_until_settled(self, *, seconds: float = 60) -> None:
        """Wait until no job is owed any more."""
        self.wait(lambda: self.count(tables.job) == 0, seconds=seconds, what="the end of all jobs")

    def tails(self) -> str:
        return "\n".join(f"--- {process.name}\n{process.text()[-1500:]}" for process in self.processes)

    def effects(self, first: str = "") -> list[list[str]]:
        """Return the lines that bodies wrote, as words, of those that start with `first`."""
        lines = [line.split() for line in self.effects_file.read_text().splitlines()]
        return [line for line in lines if not first or line[0] == first]

    def count(self, table: Any, *where: Any) -> int:
        with self.database.transaction(write=False) as tx:
            return int(tx.execute(select(func.count()).select_from(table).where(*where)).scalar_one())

    def outcomes(self, **where: Any) -> Counter[str]:
        """Count executions by outcome."""
        execution = tables.execution
        query = select(execution.c.outcome, func.count()).group_by(execution.c.outcome)
        for name, value in where.items():
            query = query.where(execution.c[name] == value)
        with self.database.transaction(write=False) as tx:
            return Counter({row[0]: row[1] for row in tx.execute(query)})

    def close(self) -> None:
        """End all processes and close all connections."""
        clock.move_by(timedelta(0))
        for process in self.processes:
            process.close()
        self.database.dispose()
        self.app.close()
