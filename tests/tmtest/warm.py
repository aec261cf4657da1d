"""Starts Celery's processes and scripts by forking one that has imported everything already.

A worker or a beat spends its first second and a quarter on imports, and the tests start hundreds of them. Each is still a
process of its own, in a session of its own, which reads its settings and connects by itself. What has to be there before the
first import (gevent's and eventlet's patches, a preloaded library) is started the usual way instead: see `can_start`.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

KNOWN = (
    "celery.bin.celery", "celery.bin.worker", "celery.bin.beat", "celery.apps.worker", "celery.apps.beat",
    "celery.concurrency.prefork", "celery.concurrency.solo", "celery.worker.consumer", "celery.backends.redis",
    "kombu.transport.redis", "kombu.transport.pyamqp", "kombu.transport.filesystem", "kombu.transport.memory",
    "sqlalchemy.orm", "sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.mysql", "sqlalchemy.dialects.sqlite",
    "psycopg", "pymysql", "croniter", "rich.console", "celery_tm.management.tm", "celery_tm.scheduler.scheduler",
    "celery_tm.worker.task", "celery_tm.worker.chunk", "celery_tm.worker.control", "celery_tm.worker.attending",
    "celery_tm.store.schema", "alembic.config", "alembic.command", "tmtest.app", "tmtest.workflow_tasks",
)  # fmt: skip
NEEDS_A_COLD_START = ("gevent", "eventlet")


class Forked:
    """A process that the warm one has forked, with as much of `subprocess.Popen` as a stand uses."""

    def __init__(self, warm: Warm, pid: int) -> None:
        self._warm, self.pid = warm, pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return how it ended, or None while it runs."""
        if self._code is None:
            self._code = self._warm.ask({"poll": self.pid})
        return self._code

    def wait(self, seconds: float) -> int:
        """Wait until it has ended, and return how."""
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", seconds)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Warm:
    """The process that forks; one for each process of the tests, made when it is first needed."""

    _of_this_process: Warm | None = None

    def __init__(self) -> None:
        paths = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "tmtest.warm"]
        self._popen = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": paths}
        )
        self._pid = os.getpid()
        atexit.register(self.close)

    @classmethod
    def here(cls) -> Warm:
        """Return this process' own."""
        if cls._of_this_process is None or cls._of_this_process._pid != os.getpid():
            cls._of_this_process = cls()
        return cls._of_this_process

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Hand over one request and return its answer."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(json.dumps(request) + "\n")
        self._popen.stdin.flush()
        return json.loads(self._popen.stdout.readline())

    def start(self, arguments: Sequence[str], *, log: Path, env: Mapping[str, str], folder: Path | None = None) -> Forked:
        """Start what `python ARGUMENTS` would, in a session of its own; what it writes goes to the log."""
        request = {"start": list(arguments), "log": str(log), "env": dict(env), "folder": str(folder or Path.cwd())}
        return Forked(self, self.ask(request))

    def close(self) -> None:
        """End the process that forks; what it has started is its starter's to end."""
        if self._pid == os.getpid():
            self._popen.kill()
            self._popen.wait()


def can_start(argv: Sequence[str], env: Mapping[str, str]) -> bool:
    """Say whether a fork does: it is Celery, and nothing has to be there before the first import."""
    is_celery = list(argv[:3]) == [sys.executable, "-m", "celery"]
    return is_celery and "LD_PRELOAD" not in env and not any(word in one for one in argv for word in NEEDS_A_COLD_START)


def serve() -> Mapping[str, Any]:
    """Answer requests until the tests are over; in a child, return what it was forked for."""
    for name in KNOWN:
        import_module(name)
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                return request
            answer: int | None = pid
        else:
            ended, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if ended else None
        print(json.dumps(answer), flush=True)
    os._exit(0)


def become(request: Mapping[str, Any]) -> None:
    """Be the process that was asked for: its session, output, environment, path and arguments."""
    os.setsid()
    output = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, output), (2, output)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    given = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [request["folder"], *given, *(path for path in sys.path if path not in given)]
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGPIPE stays ignored, as Python has it
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def run(arguments: Sequence[str]) -> NoReturn:
    """Run a module (`-m name …`) or a script, with warnings as errors where `-W error` says so."""
    rest = list(arguments)
    if rest[:2] == ["-W", "error"]:
        warnings.simplefilter("error")
        del rest[:2]
    is_module = rest[0] == "-m"
    name, sys.argv = (rest[1], rest[1:]) if is_module else (rest[0], rest)
    (runpy.run_module if is_module else runpy.run_path)(
        name, run_name="__main__", **({"alter_sys": True} if is_module else {})
    )
    sys.exit(0)


if __name__ == "__main__":
    wanted = serve()
    become(wanted)
    run(wanted["start"])
