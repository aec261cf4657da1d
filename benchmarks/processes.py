"""Real workers and beats: started, waited for, and ended however a benchmark ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

ROOT = Path(__file__).parent.parent
CONF = "TM_BENCH_CONF"
PATIENCE = 120.0
TIME_TO_STOP = 20.0
QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")


@contextmanager
def python(*arguments: str, environ: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python …` from the project's folder until the block ends; say what it wrote if it died before."""
    env = os.environ | {"PYTHONPATH": str(ROOT)} | dict(environ or {})
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([sys.executable, *arguments], env=env, cwd=ROOT, stdout=log, stderr=log)
        try:
            yield process
            if process.poll() is not None:
                log.seek(0)
                raise RuntimeError(f"python {' '.join(arguments)} died: {log.read().decode()[-2000:]}")
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGCONT)
        process.terminate()
    try:
        process.wait(TIME_TO_STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def celery(conf: Mapping[str, Any], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `celery -A benchmarks.worker_app …` with this configuration until the block ends."""
    command = ("-m", "celery", "-A", "benchmarks.worker_app", *arguments)
    with python(*command, environ={CONF: json.dumps(conf)}) as process:
        yield process


@contextmanager
def worker(app: Celery, conf: Mapping[str, Any], *, name: str, queue: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a prefork worker with two processes, once it answers."""
    arguments = ("worker", "-l", "WARNING", "-c", "2", "-Q", queue, "-n", name, *QUIET)
    with celery(conf, *arguments) as process:
        wait_until(lambda: bool(app.control.inspect(destination=[name], timeout=1).ping()), process, every=0.1)
        yield process


def wait_until(look: Callable[[], bool], *processes: subprocess.Popen[bytes], every: float) -> None:
    """Look again and again; give up when it takes too long, or when one of the processes has died."""
    until = time.monotonic() + PATIENCE
    while not look():
        if time.monotonic() > until or any(process.poll() is not None for process in processes):
            raise TimeoutError(f"what was waited for did not come in {PATIENCE} s, or a process has died")
        time.sleep(every)
