"""Workflows on real beats and workers that are killed at random: what the report says is what the bodies wrote.

A body whose success is recorded never begins again; what stops a run, and what ran out of time, is told by name.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from tmtest.servers import OwnRedis
from tmtest.stand import Process, Stand
from tmtest.workflow_tasks import Facts, facts

from celery_tm import defer, workflow
from celery_tm.domain.job import Status
from celery_tm.store import tables

Report = Mapping[str, Any]


def told(stand: Stand, kind: str, run: str | None = None, name: str | None = None) -> Facts:
    """Return what bodies wrote of this kind."""
    return facts(stand.effects_file, kind, run, name)


def by_name(report: Report) -> dict[str, Any]:
    return {step["name"]: step for step in report["steps"]}


def states(report: Report) -> dict[str, str]:
    return {step["name"]: step["state"] for step in report["steps"]}


def tries(step: Mapping[str, Any]) -> list[str]:
    return [one["outcome"] for one in step["tries"]]


def add(stand: Stand, steps: list[Any], **values: Any) -> None:
    stand.tm.definitions.add(**{"name": "flow", "schedule": "0 3 * * *", "steps": steps} | values)


def wait_for_report(stand: Stand, run: str, *, seconds: float = 60) -> Report:
    """Return the report of a run that has ended."""
    occurrence = tables.occurrence
    ended = (occurrence.c.id == run, occurrence.c.ended_at.is_not(None))
    stand.wait(lambda: stand.count(occurrence, *ended), seconds=seconds, what=f"the end of run {run}")
    return stand.tm.report(run)


def assert_nothing_ran_after_its_success(stand: Stand, report: Report) -> None:
    """Compare what the bodies wrote with the report: no attempt has two bodies, and none begins after a success."""
    for step in report["steps"]:
        begun = told(stand, "begin", report["run"], step["name"])
        assert max(Counter(fact["attempt"] for fact in begun).values(), default=1) == 1, f"{step}: an attempt ran twice"
        assert tries(step).count("succeeded") == (step["state"] == "succeeded")
        if step["state"] == "succeeded":
            done = step["tries"][-1]["attempt"]
            assert max(fact["attempt"] for fact in begun) == done == step["attempts"]
            assert done in [fact["attempt"] for fact in told(stand, "end", report["run"], step["name"])]
            recorded_at = datetime.fromisoformat(step["ended_at"]).timestamp()
            assert max(fact["at"] for fact in begun) <= recorded_at


# Killed at random


class Crew:
    """Two beats and two workers that are killed at random, by a seed, and replaced."""

    def __init__(self, stand: Stand, seed: int) -> None:
        self.stand, self.chance = stand, random.Random(seed)
        # A killed worker has messages that it has not begun with. Two runs have four bodies that wait for others: with four
        # processes one worker might hold a retry of "step 3" that its own bodies wait for.
        stand.conf |= {"tm_dispatch_lease": 3, "worker_prefetch_multiplier": 1}
        self.beats = [stand.beat(), stand.beat()]
        self.workers = [stand.worker(concurrency=6, wait=False) for _ in range(2)]
        for worker in self.workers:
            stand.wait_for_text(worker, "ready.")
        self.killed: Counter[str] = Counter()

    def kill(self, number: int, is_over: Callable[[], bool]) -> None:
        """Kill so many, as long as there is work; the third is a beat, and the other one goes on alone."""
        for n in range(number):
            time.sleep(self.chance.uniform(0.2, 1.0))
            if is_over():
                return
            if n == 2:
                self.beats[0].kill()
                self.killed["beat"] += 1
            elif self.chance.random() < 0.3 or self.stand.pair == "sqlite+files":
                # There one killed process may hang the pool, a known gap.
                self._kill_worker()
            else:
                self._kill_body()

    @property
    def has_hit(self) -> bool:
        """Say whether a body was hit; if it had been asked to stop, its attempt is recorded as cancelled."""
        return self.killed["body"] > 0

    def _kill_worker(self) -> None:
        place = self.chance.randrange(len(self.workers))
        self.workers[place].kill()
        self.workers[place] = self.stand.worker(concurrency=6, wait=False)
        self.killed["worker"] += 1

    def _kill_body(self) -> None:
        """Kill a pool process, one that is at work if there is one."""
        ended = {(fact["pid"], fact["run"], fact["name"], fact["attempt"]) for fact in self._ends()}
        begun = [(fact["pid"], fact["run"], fact["name"], fact["attempt"]) for fact in told(self.stand, "begin")]
        alive = {pid for worker in self.workers for pid in pool_pids(worker)}
        busy = {one[0] for one in begun if one not in ended}
        # One that never had a body may belong to a worker that is starting, and would end that too.
        found = sorted(busy & alive) or sorted({one[0] for one in begun} & alive)
        if found:
            victim = self.chance.choice(found)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                self.killed["body" if victim in busy else "idle process"] += 1

    def _ends(self) -> Facts:
        return [fact for kind in ("end", "fell", "stopped") for fact in told(self.stand, kind)]


def pool_pids(worker: Process) -> list[int]:
    """Return a worker's pool processes."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return [int(pid) for pid in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()]
    return []


def ten_steps(**seventh: Any) -> list[Any]:
    """Return ten steps: the third fails nine times, the seventh for good, the tenth cleans up."""
    work = [{"name": f"step {n}", "task": "steps.work", "args": [0.3 * n]} for n in range(1, 11)]
    work[2] = {"name": "step 3", "task": "steps.unstable", "args": [9], "max_retries": 90}
    work[2]["retry"] = {"kind": "fixed", "delay": 0.1}
    work[6] = {"name": "step 7", "task": "steps.broken", **seventh}
    work[9] = {"name": "step 10", "task": "steps.work", "args": [0.5], "cleanup": True}
    return work


def run_both_ways(stand: Stand, steps: list[Any], **values: Any) -> list[str]:
    """Start the same steps as a definition, and as a deferred workflow; return the two runs."""
    add(stand, steps, mode="parallel", **values)
    deferred = defer(workflow(steps, mode="parallel", **values), delay=0.1, app=stand.app)
    return [stand.tm.trigger("flow").id, deferred.id]


SEEDS = [7, pytest.param(8, marks=pytest.mark.thorough), pytest.param(9, marks=pytest.mark.thorough)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_ten_steps_at_once_end_as_told_whoever_is_killed(stand: Stand, seed: int, thorough: bool) -> None:
    print(f"seed {seed}")
    crew = Crew(stand, seed)
    runs = run_both_ways(stand, ten_steps(args=[1.0]), failure_strategy="continue")
    stand.wait(lambda: told(stand, "begin"), what="the first body")
    crew.kill(30 if thorough else 7, lambda: stand.count(tables.job) == 0)
    reports = [wait_for_report(stand, run, seconds=120) for run in runs]
    print(f"killed {dict(crew.killed)}; runs took {[report['seconds'] for report in reports]}")

    for report in reports:
        steps = by_name(report)
        assert states(report) == {f"step {n}": "failed" if n == 7 else "succeeded" for n in range(1, 11)}
        assert (report["state"], report["reason"]) == ("failed", "step 'step 7' failed: ValueError: step 7 is broken")
        assert steps["step 7"]["error"] == "ValueError: step 7 is broken"
        assert tries(steps["step 7"]).count("failed") == 1, "a failure that is final was tried again"
        assert tries(steps["step 3"]).count("failed") <= 9
        assert steps["step 3"]["attempts"] >= 10
        [cleaned, *_] = told(stand, "begin", report["run"], "step 10")
        later = [
            fact["name"]
            for kind in ("begin", "end", "fell")
            for fact in told(stand, kind, report["run"])
            if fact["at"] > cleaned["at"]
        ]
        assert set(later) == {"step 10"}, "it cleaned up before the others had ended"
        assert_nothing_ran_after_its_success(stand, report)
    letters = stand.tm.dead_letters.list(task="steps.broken")
    assert sorted(letter.job.occurrence or "" for letter in letters) == sorted(runs)
    assert stand.outcomes()["orphaned"] or crew.has_hit, "no kill hit a body: then this shows nothing"
    assert crew.killed["beat"] == 1


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_failure_stops_ten_steps_at_once_whoever_is_killed(stand: Stand, seed: int, thorough: bool) -> None:
    print(f"seed {seed}")
    steps = ten_steps(kwargs={"after": ["step 3"]})
    steps[5]["args"] = [100]
    for n in (8, 9):
        steps[n - 1]["after"] = ["step 6"]
    crew = Crew(stand, seed)
    runs = run_both_ways(stand, steps, failure_strategy="fail_fast")
    stand.wait(lambda: told(stand, "begin"), what="the first body")
    crew.kill(30 if thorough else 6, lambda: stand.count(tables.job) == 0)
    reports = [wait_for_report(stand, run, seconds=120) for run in runs]
    print(f"killed {dict(crew.killed)}; runs took {[report['seconds'] for report in reports]}")

    why = "step 'step 7' failed: ValueError: step 7 is broken"
    for report in reports:
        steps_told, run = by_name(report), report["run"]
        assert (report["state"], report["reason"], report["stopped_by"]) == ("failed", why, why)
        assert [steps_told[f"step {n}"]["state"] for n in (3, 7, 10)] == ["succeeded", "failed", "succeeded"]
        assert steps_told["step 3"]["attempts"] >= 10
        cancelled = {name: step for name, step in steps_told.items() if step["state"] == "cancelled"}
        assert {"step 6", "step 8", "step 9"} <= set(cancelled)
        assert {step["cancelled_by"] for step in cancelled.values()} == {why}
        # What had not begun never did, and what ran did not end its work.
        assert [told(stand, "begin", run, f"step {n}") for n in (8, 9)] == [[], []]
        assert told(stand, "end", run, "step 6") == []
        assert_nothing_ran_after_its_success(stand, report)
    assert stand.outcomes()["orphaned"] or crew.has_hit, "no kill hit a body: then this shows nothing"


# Time


def test_the_time_of_a_step_and_of_a_run_are_told_apart(stand: Stand) -> None:
    stand.beat()
    worker = stand.worker(concurrency=6)
    limited = [
        {"name": "slow once", "task": "steps.slow_once", "args": [60], "task_timeout": "1s", "max_retries": 3},
        {"name": "too slow", "task": "steps.stubborn", "args": [60], "task_timeout": "1s", "max_retries": 1},
    ]
    add(stand, limited, name="by step", mode="parallel", failure_strategy="continue", execution_timeout="100s")
    as_a_whole = [
        {"name": "first", "task": "steps.work", "args": [0.8]},
        [
            {"name": "deaf", "task": "steps.stubborn", "args": [60]},
            # Its own limit is far away, so that it is the lost lease that ends it however busy the machine is.
            {"name": "polite", "task": "steps.work", "args": [60], "task_timeout": "50s"},
        ],
        {"name": "last", "task": "steps.work"},
        {"name": "clean", "task": "steps.work", "cleanup": True},
    ]
    add(stand, as_a_whole, name="by run", execution_timeout="3s")
    by_step, by_run = (stand.tm.trigger(name).id for name in ("by step", "by run"))

    report = wait_for_report(stand, by_step)
    steps = by_name(report)
    assert tries(steps["slow once"]) == ["timeout", "succeeded"]
    assert tries(steps["too slow"]) == ["timeout", "timeout"]
    assert (steps["too slow"]["state"], steps["too slow"]["outcome"]) == ("failed", "timeout")
    assert steps["too slow"]["error"] == "TaskTimeout: it did not end within 1s"
    assert report["state"] == "failed"
    assert report["stopped_by"] is None

    report = wait_for_report(stand, by_run)
    steps, why = by_name(report), "it did not end within 3s"
    assert (report["state"], report["reason"], report["stopped_by"]) == ("stale", f"stale: {why}", f"stale: {why}")
    ends = {name: (step["state"], step["outcome"]) for name, step in steps.items()}
    late = ("failed", "timeout")
    done = ("succeeded", "succeeded")
    assert ends == {"first": done, "deaf": late, "polite": late, "last": ("cancelled", "cancelled"), "clean": done}
    assert {steps[name]["error"] for name in ("deaf", "polite")} == {f"ExecutionTimeout: {why}"}
    assert steps["last"]["cancelled_by"] == f"stale: {why}"
    assert told(stand, "begin", by_run, "last") == []

    # The bodies lost their lease: one saw it, the other was cut off, and neither is recorded once more.
    stand.wait(lambda: told(stand, "stopped", by_run, "polite"), what="the end of the body that listens")
    stand.wait_for_text(worker, "LeaseWasLost")
    assert [told(stand, "end", by_run, name) for name in ("deaf", "polite")] == [[], []]
    assert stand.outcomes(job=steps["deaf"]["job"]) == stand.outcomes(job=steps["polite"]["job"]) == Counter(timeout=1)


# Asked to stop


def test_a_failure_ends_what_runs_beside_it_by_force_or_by_asking(stand: Stand) -> None:
    if stand.pair == "sqlite+files":
        pytest.skip("there a killed process may hang the pool, a known gap")
    stand.beat()
    stand.worker(concurrency=6)

    def beside(*names: str) -> list[Any]:
        breaks = {"name": "breaks", "task": "steps.broken", "kwargs": {"after": names, "sign": "begin"}}
        clean = {"name": "clean", "task": "steps.work", "cleanup": True}
        return [breaks, *({"name": name, **BODIES[name]} for name in names), clean]

    common = {"mode": "parallel", "failure_strategy": "fail_fast"}
    add(stand, beside("deaf"), name="by force", terminate=True, **common)
    add(stand, beside("polite", "deaf for a while"), name="by asking", **common)
    by_force, by_asking = (stand.tm.trigger(name).id for name in ("by force", "by asking"))
    why = "step 'breaks' failed: ValueError: breaks is broken"

    report = wait_for_report(stand, by_force, seconds=30)
    deaf = by_name(report)["deaf"]
    assert states(report) == {"breaks": "failed", "deaf": "cancelled", "clean": "succeeded"}
    assert (deaf["cancelled_by"], tries(deaf), report["stopped_by"]) == (why, ["cancelled"], why)
    assert seconds_between(by_name(report)["breaks"], deaf) < 10
    [body] = told(stand, "begin", by_force, "deaf")
    stand.wait(lambda: not Path(f"/proc/{body['pid']}").exists(), what="the end of the process that ran it")
    assert told(stand, "end", by_force, "deaf") == []

    report = wait_for_report(stand, by_asking, seconds=30)
    steps = by_name(report)
    # Who does not look, and is not ended by force, ends its work: that is done then.
    assert states(report) == {
        "breaks": "failed",
        "polite": "cancelled",
        "deaf for a while": "succeeded",
        "clean": "succeeded",
    }
    assert (steps["polite"]["cancelled_by"], tries(steps["polite"])) == (why, ["cancelled"])
    assert seconds_between(steps["breaks"], steps["polite"]) < 10
    assert len(told(stand, "stopped", by_asking, "polite")) == 1
    assert (report["state"], report["reason"]) == ("failed", why)


BODIES: Mapping[str, Mapping[str, Any]] = {
    "deaf": {"task": "steps.stubborn", "args": [60]},
    "polite": {"task": "steps.work", "args": [60]},
    "deaf for a while": {"task": "steps.stubborn", "args": [3]},
}


def seconds_between(first: Mapping[str, Any], second: Mapping[str, Any]) -> float:
    ends = [datetime.fromisoformat(step["ended_at"]) for step in (first, second)]
    return (ends[1] - ends[0]).total_seconds()


# Hooks


@pytest.mark.timeout(180)
def test_hooks_are_called_once_for_a_run_whoever_is_killed(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TM_TEST_HOOK_SECONDS", "0.7")
    stand.conf |= {"tm_dispatch_lease": 2, "tm_lease": 2, "tm_backoff_floor": 0.2}
    steps = [{"name": "first", "task": "steps.work", "args": [1.5]}, {"name": "last", "task": "steps.work", "args": [0.5]}]
    add(stand, steps, on_start="steps.told", on_complete="hook:told")
    stand.beat()
    workers = [stand.worker(concurrency=2), stand.worker(concurrency=2)]
    run = stand.tm.trigger("flow").id

    def kill_worker_of(kind: str, name: str) -> None:
        """Kill the worker that did this, with all its processes, and start another."""
        [done, *_] = stand.wait(lambda: told(stand, kind, run, name), what=f"{kind} of {name}")
        place = 0 if done["pid"] in pool_pids(workers[0]) else 1
        workers[place].kill()
        workers[place] = stand.worker(concurrency=2, wait=False)

    kill_worker_of("begin", "on_start")  # in the middle of it
    kill_worker_of("end", "last")  # around the moment in which its run is over
    kill_worker_of("begin", "on_complete")
    stand.wait_until_settled(seconds=60)
    time.sleep(2)  # as long as any lease; whoever would do it once more has done so

    report = stand.tm.report(run)
    assert (report["state"], states(report)) == ("completed", {"first": "succeeded", "last": "succeeded"})
    assert_nothing_ran_after_its_success(stand, report)
    for hook, state in (("on_start", "running"), ("on_complete", "completed")):
        begun, [once] = told(stand, "begin", run, hook), told(stand, f"told {state}", run, hook)
        attempts = [fact["attempt"] for fact in begun]  # of the first hook the second may have been hit by the next kill
        assert attempts == list(range(1, len(begun) + 1))
        assert len(begun) > 1, "the kill missed it: then this shows nothing"
        assert once["attempt"] == attempts[-1]
    outcomes = stand.outcomes(task="steps.told") + stand.outcomes(task="celery_tm.hook")
    assert (set(outcomes), outcomes["succeeded"]) == ({"orphaned", "succeeded"}, 2)
    assert stand.count(tables.dead_letter) == 0


# A broker that forgets


@pytest.fixture
def forgetful(broker: OwnRedis, fresh_url: Callable[[str], str], tmp_path: Path, effects: Path) -> Iterator[Stand]:
    conf = {"broker_url": broker.url, "tm_database_url": fresh_url("postgresql"), "tm_dispatch_lease": 3}
    stand = Stand(conf, tmp_path, effects)
    yield stand
    stand.close()


@pytest.mark.timeout(120)
def test_a_run_completes_though_the_broker_lost_its_messages(forgetful: Stand, broker: OwnRedis) -> None:
    stand = forgetful
    stand.beat()
    stand.worker(concurrency=2)
    group = [{"name": f"part {n}", "task": "steps.work", "args": [0.1]} for n in range(40)]
    steps = [group, {"name": "join", "task": "steps.work"}, {"name": "clean", "task": "steps.work", "cleanup": True}]
    handle = defer(workflow(steps, on_complete="hook:told"), app=stand.app)
    client = redis.Redis.from_url(broker.url)
    for ended in (5, 20):
        stand.wait(lambda ended=ended: len(told(stand, "end")) >= ended, what=f"the end of {ended} steps")
        assert client.llen("celery") or ended > 5, "nothing is lost: then this shows nothing"
        client.flushall()
    client.close()

    report = wait_for_report(stand, handle.id)
    stand.wait_until_settled()
    assert (handle.state, report["counts"]) == (Status.SUCCEEDED, {"succeeded": 42})
    assert {tuple(tries(step)) for step in report["steps"]} == {("succeeded",)}, "a lost message uses up no try"
    assert_nothing_ran_after_its_success(stand, report)
    assert len(told(stand, "told completed", handle.id)) == 1
