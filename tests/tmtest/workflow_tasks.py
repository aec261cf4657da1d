"""The steps and hooks of workflows that real workers run.

Each body writes when it begins and how it ends, with its step, its run and its attempt, so that what happened is known apart
from the tables.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery

from celery_tm import Task, TimeManagement, current_job

from . import canvas_tasks

Facts = list[dict[str, Any]]
GIVES_UP_AFTER = 120.0  # seconds: no body outlives its test by more


def note(kind: str) -> None:
    """Write what became of the present attempt."""
    context = current_job()
    run = context.job.occurrence or context.scope["run"]  # a hook is no part of its run
    canvas_tasks.write(kind, context.step or "", run=run, attempt=context.attempt)


def facts(path: Path, kind: str, run: str | None = None, name: str | None = None) -> Facts:
    """Return what bodies wrote of this kind, in order; of one run, and of one step, if these are given."""
    found = [fact for fact in canvas_tasks.read(path.read_text()) if fact["kind"] == kind]
    return [fact for fact in found if run in (None, fact["run"]) and name in (None, fact["name"])]


def _facts_here(kind: str, name: str) -> Facts:
    return facts(Path(os.environ["TM_TEST_EFFECTS"]), kind, current_job().job.occurrence, name)


def _pass_time(seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not enough():
        time.sleep(0.02)


def add_tasks(app: Celery) -> None:
    """Register the bodies of steps."""
    soon = {"kind": "fixed", "delay": 0.2}
    task = partial(app.task, base=Task, bind=True, shared=False, max_retries=50, retry=soon)

    @task(name="steps.work")
    def work(self: Task, seconds: float = 0) -> Any:
        """Work for a while, and stop if asked to."""
        note("begin")
        _pass_time(seconds, lambda: self.job.cancelled)
        note("stopped" if self.job.cancelled else "end")
        return self.job.step

    @task(name="steps.unstable")
    def unstable(self: Task, failures: int, seconds: float = 0) -> Any:
        """Fail so many times, by what was written and not by the number of the attempt, which counts killed bodies too."""
        note("begin")
        _pass_time(seconds)
        if len(_facts_here("fell", self.job.step)) < failures:
            note("fell")
            raise RuntimeError("not yet")
        note("end")
        return self.job.step

    @task(name="steps.broken")
    def broken(self: Task, seconds: float = 0, after: Sequence[str] = (), sign: str = "end") -> None:
        """Fail: after a while, and when other steps have ended, or have begun."""
        note("begin")
        _pass_time(seconds)
        _pass_time(GIVES_UP_AFTER, lambda: all(_facts_here(sign, step) for step in after))
        note("fell")
        raise ValueError(f"{self.job.step} is broken")

    @task(name="steps.stubborn")
    def stubborn(self: Task, seconds: float) -> None:
        """Work for a while, whatever is asked."""
        note("begin")
        _pass_time(seconds)
        note("end")

    @task(name="steps.slow_once")
    def slow_once(self: Task, seconds: float) -> None:
        """Take long in the first attempt only."""
        note("begin")
        _pass_time(seconds if self.job.attempt == 1 else 0)
        note("end")

    @task(name="steps.told")
    def told(self: Task, occurrence: dict[str, Any], report: dict[str, Any]) -> None:
        """Be the hook of a run."""
        _be_told(occurrence, report)


def _be_told(occurrence: dict[str, Any], report: dict[str, Any]) -> None:
    """Take some time, in which a worker can be killed."""
    note("begin")
    _pass_time(float(os.environ.get("TM_TEST_HOOK_SECONDS", "0")))
    assert occurrence["id"] == report["run"] == current_job().scope["run"]
    note(f"told {occurrence['state']}")


def add_hooks(tm: TimeManagement) -> None:
    """Register the callable that `hook:told` names."""
    tm.hook("told")(_be_told)
