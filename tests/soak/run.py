"""Runs beats, workers and a low load for minutes or hours, samples what could grow, and gives a verdict for each series.

    make soak HOURS=4
    PYTHONPATH=tests python -m soak.run --minutes 60 --pair mysql+rabbitmq

Servers are the run's own. One of the two workers is killed and started again every few minutes. In the folder of the run are
`samples.csv`, `verdict.txt`, `plot.svg` and the logs. The exit code is 1 if something grows that nothing explains.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tmtest import servers
from tmtest.stand import Process, Stand

from celery_tm.management.easy import embedded_broker
from celery_tm.store import schema

from . import load
from .plot import draw
from .sampling import Sample, Watch
from .verdict import Series, Verdict, judge

OWN = {"postgresql": "OwnPostgreSQL", "redis": "OwnRedis", "mysql": "OwnMariaDB", "rabbitmq": "OwnRabbitMQ"}
# A rise over a run that is nobody's leak: pages of a table are given back late, arenas of an allocator never.
ALLOWED = {
    "memory": ("MB", 0.05, 3.0), "handles": ("", 0.05, 2.0), "threads": ("", 0.0, 0.9), "rows": ("rows", 0.25, 100.0),
    "dead rows": ("rows", 1.0, 2000.0), "table": ("MB", 0.25, 1.0), "indexes": ("MB", 0.25, 1.0), "data": ("MB", 0.1, 0.5),
    "keys": ("", 0.1, 50.0), "connections": ("", 0.1, 2.0), "folders": ("", 0.0, 2.9), "others": ("", 0.0, 0.9),
}  # fmt: skip

EXPLAINED = {
    "temporary: others": "billiard leaves an empty pymp-… folder for each worker that is killed, as in plain Celery"
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long, how much, and on what."""

    minutes: float
    pair: str = "postgresql+redis"
    rate: float = 4.0  # things asked for in a second
    every: float = 10.0  # seconds between samples
    kill_every: float = 180.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the options, run, and say what came of it."""
    parser = argparse.ArgumentParser(prog="soak.run", description=__doc__.split("\n\n")[0])
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--minutes", type=float)
    length.add_argument("--hours", type=float)
    parser.add_argument("--pair", default=Plan.pair, help="postgresql+redis, mysql+rabbitmq or sqlite+files")
    parser.add_argument("--rate", type=float, default=Plan.rate, help="things asked for in a second")
    parser.add_argument("--every", type=float, help="seconds between samples; as many as make 120 in a run")
    parser.add_argument("--kill-every", type=float, default=Plan.kill_every, help="seconds between deaths of one worker")
    parser.add_argument("--folder", type=Path, help="where results go; a new one in /tmp")
    given = parser.parse_args(arguments)
    minutes = given.hours * 60 if given.minutes is None else given.minutes
    every = given.every or max(2.0, minutes * 60 / 120)
    plan = Plan(minutes=minutes, pair=given.pair, rate=given.rate, every=every, kill_every=given.kill_every)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="celery_tm-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    verdicts = soak(plan, folder, tell=lambda line: print(line, flush=True))
    return int(any(verdict.grows and not verdict.series.why for verdict in verdicts))


def soak(plan: Plan, folder: Path, *, tell: Callable[[str], None] = lambda _: None) -> list[Verdict]:
    """Run, and return a verdict for each series."""
    temporary = folder / "tmp"
    temporary.mkdir()
    with ExitStack() as stack:
        conf = {name: value for part in plan.pair.split("+") for name, value in stack.enter_context(_served(part, folder))}
        os.environ["TMPDIR"] = str(temporary)  # of the processes that are started
        if "redis" in plan.pair:
            conf["result_backend"] = conf["broker_url"]
        stand = Stand(conf | load.CONF | {"tm_metrics_port": {"worker": servers.free_port()}}, folder, folder / "none")
        stand.cwd = folder  # as anybody's would start, sharing no memory with a test's
        stack.callback(stand.close)
        schema.upgrade(stand.database)
        load.define(stand.tm)
        tell(f"{plan.minutes:g} minutes on {plan.pair}; results in {folder}")
        samples = list(_samples(plan, stand, folder, tell))
    _write_csv(folder / "samples.csv", samples)
    verdicts = [judge(series) for series in series_of(samples)]
    told = table_of(verdicts)
    (folder / "verdict.txt").write_text(told)
    (folder / "plot.svg").write_text(draw(verdicts, title=f"{plan.minutes:g} minutes on {plan.pair}"))
    tell(told)
    return verdicts


@contextmanager
def _served(part: str, folder: Path) -> Iterator[list[tuple[str, Any]]]:
    """Start a server of our own, and yield what the app has to know of it."""
    if part == "sqlite":
        yield [("tm_database_url", f"sqlite:///{folder}/jobs.db")]
    elif part == "files":
        yield list(embedded_broker(folder / "broker").items())
    else:
        kind = getattr(servers, OWN[part], None)
        if kind is None:
            raise SystemExit(f"no {part} of one's own can be started: tests/tmtest/servers.py has no {OWN[part]}")
        place = Path(tempfile.mkdtemp(prefix=f"tm-soak-{part}-", dir="/tmp"))
        server = kind(place)
        server.start()
        try:
            yield [("broker_url" if part in ("redis", "rabbitmq") else "tm_database_url", server.url)]
        finally:
            server.stop()


def _samples(plan: Plan, stand: Stand, folder: Path, tell: Callable[[str], None]) -> Iterator[tuple[float, Sample]]:
    """Yield samples while work goes on."""
    watch = Watch(stand.conf["tm_database_url"], stand.conf["broker_url"], folder / "tmp")
    work = load.Load(stand.tm)
    running = _start(stand)
    began = time.monotonic()
    due = {"ask": began, "sample": began + plan.every, "tidy": began + 30, "kill": began + plan.kill_every}
    while (now := time.monotonic()) < began + plan.minutes * 60:
        if now >= due["ask"]:
            work.ask()
            due["ask"] += 1 / plan.rate
        if now >= due["sample"]:
            pids = {name: process.pid for name, process in running.items() if process.is_running} | {"caller": os.getpid()}
            yield now - began, watch.look(pids)
            due["sample"] += plan.every
        if now >= due["tidy"]:
            work.tidy()
            due["tidy"] += 30
        if now >= due["kill"]:
            running["killed worker"].close()  # and its log, else our own handles grow
            running["killed worker"] = _worker(stand, "killed")
            due["kill"] += plan.kill_every
        time.sleep(max(0.0, min(due.values()) - time.monotonic()))
    tell(f"asked for: {dict(work.asked)}; executions kept at the end: {dict(stand.outcomes())}")
    for name, process in running.items():
        assert process.is_running, f"the {name} has ended:\n{process.text()[-3000:]}"
        os.kill(process.pid, signal.SIGTERM)
    for process in running.values():
        process.wait(20)
    watch.close()


def _start(stand: Stand) -> dict[str, Process]:
    workers = {"worker": _worker(stand, "steady"), "killed worker": _worker(stand, "killed")}
    beats = {"beat": stand.beat(), "second beat": stand.beat()}
    for worker in workers.values():
        stand.wait_for_text(worker, "ready.")
    return beats | workers


def _worker(stand: Stand, name: str) -> Process:
    return stand.worker("-n", f"{name}@soak", wait=False)


def series_of(samples: Sequence[tuple[float, Sample]]) -> list[Series]:
    """Return what was sampled, by name, with what each may rise by."""
    names = sorted({name for _, sample in samples for name in sample})
    found = []
    for name in names:
        points = [(at, sample[name]) for at, sample in samples if name in sample]
        unit, share, least = ALLOWED[name.rpartition(": ")[2]]
        if len(points) > 4:
            found.append(Series(name=name, unit=unit, points=points, share=share, least=least, why=EXPLAINED.get(name, "")))
    return found


def table_of(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts as text, what grows first."""
    lines = [f"{'':40} {'usual':>10} {'last':>10} {'per hour':>12}  verdict"]
    for one in sorted(verdicts, key=lambda verdict: not verdict.grows):
        name = f"{one.series.name}{f' ({one.series.unit})' if one.series.unit not in ('', 'rows') else ''}"
        lines.append(f"{name:40} {one.usual:10.4g} {one.last:10.4g} {one.per_hour:+12.3g}  {one.words}")
    return "\n".join(lines) + "\n"


def _write_csv(path: Path, samples: Sequence[tuple[float, Mapping[str, float]]]) -> None:
    names = sorted({name for _, sample in samples for name in sample})
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["seconds", *names])
        for at, sample in samples:
            writer.writerow([f"{at:.1f}", *(f"{sample[name]:g}" if name in sample else "" for name in names)])


if __name__ == "__main__":
    sys.exit(main())
