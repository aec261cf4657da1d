"""The processes of a run: workers, beats and load, in groups of their own, started again when they have ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tmtest.stand import TESTS

from faults import clocks, record
from faults.app import CONF, FOLDER

PAUSE = 0.6  # seconds until what has ended is started again
ROOM = 2_000_000  # bytes that a log may have; what comes before its end is cut
TAIL = 200_000


@dataclass
class Member:
    """One process of the fleet, through all its lives."""

    name: str
    kind: str  # worker, beat or load
    argv: Sequence[str]
    conf: dict[str, Any]
    folder: Path
    environ: Mapping[str, str]
    clock: clocks.Shifted | None = None
    popen: subprocess.Popen[bytes] | None = None
    lives: int = 0
    ended_at: float = 0.0
    stopped: bool = False  # by a fault: it is there, and does nothing
    started_at: float = field(default=0.0)

    @property
    def pid(self) -> int:
        return self.popen.pid if self.popen is not None else 0

    @property
    def is_running(self) -> bool:
        return self.popen is not None and self.popen.poll() is None

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """Start it, with its own configuration, and its own clock if it has one."""
        paths = os.pathsep.join([str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")])
        env = os.environ | {
            "PYTHONPATH": paths,
            "PYTHONUNBUFFERED": "1",
            CONF: json.dumps(self.conf),
            FOLDER: str(self.folder),
            **self.environ,
        }
        if self.clock is not None:
            env |= self.clock.environment(paths)
        with suppress(OSError):
            (self.folder / f"{self.name}.pid").unlink()
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(self.argv, stdout=log, stderr=log, env=env, start_new_session=True)
        self.lives, self.stopped, self.started_at = self.lives + 1, False, time.monotonic()
        self._note("started")

    def children(self) -> list[int]:
        """Return its pool processes; none if it is gone."""
        try:
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        except OSError:
            return []

    def signal_all(self, number: int) -> list[int]:
        """Send a signal to all its processes, and return which these were."""
        pids = [self.pid, *self.children()]
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)
        return pids

    def is_over(self) -> bool:
        """Say whether it has ended since it was started, and note that once."""
        if self.popen is None or self.popen.poll() is None:
            return False
        if not self.ended_at:
            self.ended_at = time.monotonic()
            with suppress(ProcessLookupError):  # pool processes outlive their parent
                os.killpg(self.pid, signal.SIGKILL)
            self._note("ended")
        return True

    def end(self, *, seconds: float = 15) -> None:
        """Ask it to end, and make it."""
        if self.popen is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGCONT)
            self.popen.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(seconds)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait(10)
        self.is_over()

    def cut_log(self) -> None:
        """Keep only the end of a log that has grown too long."""
        if self.log.exists() and self.log.stat().st_size > ROOM:
            kept = self.log.read_bytes()[-TAIL:]
            os.truncate(self.log, 0)
            with self.log.open("ab") as log:
                log.write(b"...\n" + kept)

    def _note(self, what: str) -> None:
        record.write(self.folder, record.PROCESSES, {"what": what, "name": self.name, "pid": self.pid, "kind": self.kind})


class Fleet:
    """All processes of a run, and the one who looks after them."""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self.folder, self.environ = folder, environ
        self.members: list[Member] = []
        self._closing = threading.Event()
        self._watch = threading.Thread(target=self._keep_alive, name="fleet", daemon=True)

    def add(self, name: str, kind: str, arguments: Sequence[str], conf: dict[str, Any], clock: Any = None) -> None:
        """Add a process that is started with Python."""
        self.members.append(Member(name, kind, [sys.executable, *arguments], conf, self.folder, self.environ, clock))

    def add_worker(
        self, name: str, conf: dict[str, Any], *, concurrency: int, pool: str = "prefork", clock: Any = None
    ) -> None:
        """Add a worker."""
        options = [
            "-l",
            "INFO",
            "-P",
            pool,
            "-c",
            str(concurrency),
            "-n",
            f"{name}@chaos",
            "--without-gossip",
            "--without-mingle",
        ]
        self.add(name, "worker", ["-m", "celery", "-A", "faults.app", "worker", *options], conf, clock)

    def add_beat(self, name: str, conf: dict[str, Any], *, clock: Any = None) -> None:
        """Add a beat."""
        options = ["-S", "celery_tm.Scheduler", "-l", "INFO", "--pidfile", str(self.folder / f"{name}.pid")]
        self.add(name, "beat", ["-m", "celery", "-A", "faults.app", "beat", *options], conf, clock)

    def of(self, *kinds: str) -> list[Member]:
        """Return the members of some kinds."""
        return [member for member in self.members if member.kind in kinds]

    def start(self) -> None:
        """Start all, and whoever ends from now on again."""
        for member in self.members:
            member.start()
        self._watch.start()

    def _keep_alive(self) -> None:
        while not self._closing.wait(0.1):
            for member in self.members:
                member.cut_log()
                if member.is_over() and time.monotonic() > member.ended_at + PAUSE:
                    member.ended_at = 0.0
                    member.start()

    def stop(self, *kinds: str, seconds: float = 15) -> None:
        """End the members of some kinds for good."""
        gone = self.of(*kinds)
        self.members = [member for member in self.members if member not in gone]
        threads = [threading.Thread(target=member.end, kwargs={"seconds": seconds}) for member in gone]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def close(self) -> None:
        """End everything."""
        self._closing.set()
        if self._watch.is_alive():
            self._watch.join(5)
        self.stop("load", "worker", "beat", seconds=4)
