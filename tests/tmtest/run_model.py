"""What a run of a workflow must look like after each thing that happens: a simple model, without tables, joins or counters.

It knows of each step which others it waits for, and looks at all of them again after every change. It has nothing from the
package that is tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

SECOND = timedelta(seconds=1)
LEASE, DISPATCH_LEASE, STUCK_AFTER = 30 * SECOND, 60 * SECOND, timedelta(hours=24)
TASK_RETRIES = 3  # what the task of every step says
ENDED = ("succeeded", "failed", "cancelled")


@dataclass
class Step:
    """One step; while it is owed, `job` says where its job stands."""

    name: str
    number: int
    needs: frozenset[str]
    regardless: bool
    stops: bool  # the run, if it does not succeed
    final: bool  # its first failure is
    limit: int  # of retries
    key: str | None
    lane: tuple[str, int] | None
    state: str = "waiting"
    outcome: str | None = None
    job: str | None = None
    attempt: int = 1
    tries_from: int = 1
    attempts: int = 0  # that have started, as the report tells it
    due: datetime | None = None
    lease: datetime | None = None
    dispatches: int = 0
    asked: bool = False  # to stop
    ended_at: datetime | None = None
    is_buried: bool = False
    records: dict[int, str] = field(default_factory=dict)

    @property
    def has_slot(self) -> bool:
        """Say whether it counts among those of its lane that are in process."""
        return self.job in ("dispatched", "running") or (self.job == "pending" and self.attempt > self.tries_from)


def needs_of(stated: Sequence[Any], mode: str) -> dict[str, frozenset[str]]:
    """Return which steps each step waits for."""
    stages = [item if isinstance(item, list) else [item] for item in stated]
    steps = [step for stage in stages for step in stage]
    found = {}
    for place, stage in enumerate(stages):
        for step in stage:
            if "after" in step:
                found[step["name"]] = frozenset(step["after"])
            elif mode == "sequential":
                found[step["name"]] = frozenset(one["name"] for one in stages[place - 1]) if place else frozenset()
            elif step.get("cleanup"):
                found[step["name"]] = frozenset(one["name"] for one in steps if not one.get("cleanup"))
            else:
                found[step["name"]] = frozenset()
    return found


def can_end(needs: Mapping[str, frozenset[str]]) -> bool:
    """Say whether steps that wait so can all have their turn: none waits for itself, however far about."""
    done: set[str] = set()
    while ready := {name for name in needs if name not in done and needs[name] <= done}:
        done |= ready
    return len(done) == len(needs)


class RunModel:
    """One run, from the job that stands for it to its end."""

    def __init__(self, stated: Sequence[Any], common: Mapping[str, Any], *, now: datetime, backoff: timedelta) -> None:
        needs = needs_of(stated, common.get("mode", "sequential"))
        flat = [step for item in stated for step in (item if isinstance(item, list) else [item])]
        self.steps = {step["name"]: _step(number, step, common, needs) for number, step in enumerate(flat, start=1)}
        self.common, self.backoff = common, backoff
        self.root: str | None = "pending"
        self.root_lease: datetime | None = None
        self.root_dispatches = 0
        self.root_outcome: str | None = None
        self.created_at = now
        self.started_at: datetime | None = None
        self.deadline: datetime | None = None
        self.stopped: str | None = None
        self.ended: str | None = None
        self.hooks: set[str] = set()  # that are owed
        self.told: list[str] = []  # hooks that were ever called
        self.done_keys: set[str] = set()

    # What happens. Each says whether it happened.

    def claim(self, taken: set[str], now: datetime) -> None:
        """A beat has claimed these: all that was due, save what finds no slot."""
        if self.root == "pending":
            assert "root" in taken, "the run is due and was left"
            self.root, self.root_lease = "dispatched", now + DISPATCH_LEASE * 2 ** min(self.root_dispatches, 6)
            self.root_dispatches += 1
        else:
            assert "root" not in taken, "a run that is not pending was claimed"
        due = [step for step in self.steps.values() if step.job == "pending" and step.due and step.due <= now]
        for step in (self.steps[name] for name in taken - {"root"}):
            assert step in due, f"{step.name} was claimed and is {step.state}, {step.job}"
            step.job, step.lease = "dispatched", now + DISPATCH_LEASE * 2 ** min(step.dispatches, 6)
            step.dispatches += 1
        for step in due:
            if step.name not in taken:
                assert step.lane is not None, f"{step.name} is due and was left"
                assert self.in_lane(step.lane[0]) >= step.lane[1], f"{step.name} is due, a slot is free, and it was left"
        for key, limit in {step.lane for step in self.steps.values() if step.lane}:
            assert self.in_lane(key) <= limit, f"more than {limit} at a time of {key}"

    def in_lane(self, key: str) -> int:
        """Return how many slots of a lane are taken."""
        return sum(step.has_slot for step in self.steps.values() if step.lane and step.lane[0] == key)

    def expand(self, now: datetime) -> bool:
        """A beat starts the run that it had claimed."""
        if self.root != "dispatched":
            return False
        self.root, self.started_at = "running", now
        self.deadline = now + (self.execution_timeout or STUCK_AFTER)
        self._call("on_start")
        self._settle(now)
        return True

    @property
    def execution_timeout(self) -> timedelta | None:
        """Return how long the run may take."""
        minutes = self.common.get("execution_timeout")
        return None if minutes is None else timedelta(minutes=int(minutes.removesuffix("m")))

    def deliver(self, name: str, attempt: int, now: datetime) -> bool:
        """A message arrives at a worker. True: its body runs."""
        step = self.steps[name]
        if step.state != "owed" or step.attempt != attempt or step.job == "running":
            return False
        if step.key in self.done_keys:
            self._end(step, "deduplicated", now)
            return False
        waits = step.job == "pending" and (step.lane is not None or step.due is None or step.due > now)
        if waits:
            return False
        assert all(self.steps[need].state in ENDED for need in self.before(step)), f"{name} runs before what it waits for"
        step.job, step.lease = "running", now + LEASE
        return True

    def before(self, step: Step) -> set[str]:
        """Return all that a step waits for, however far about."""
        return set(step.needs).union(*(self.before(self.steps[need]) for need in step.needs))

    def holds(self, name: str, attempt: int) -> bool:
        """Say whether this attempt of a step may still write how it ended."""
        step = self.steps[name]
        return step.job == "running" and step.attempt == attempt

    def succeed(self, name: str, now: datetime) -> None:
        """The body returned."""
        step = self.steps[name]
        if step.key is not None:
            self.done_keys.add(step.key)
        self._end(step, "succeeded", now)

    def fail(self, name: str, now: datetime, *, outcome: str = "failed") -> None:
        """The body raised, or its worker died."""
        step, vanished = self.steps[name], outcome == "orphaned"
        retries = step.attempt - step.tries_from
        if step.asked:
            self._end(step, "cancelled", now)
        elif retries >= step.limit or (step.final and not vanished):
            self._bury(step, outcome, now)
        else:
            step.records[step.attempt] = outcome
            wait = SECOND if step.final else self.backoff * (retries + 1)
            self._wait_again(step, due=now + wait)
            step.attempt += 1
            step.dispatches = 0

    def hand_back(self, name: str, now: datetime) -> None:
        """The worker stops in the middle, and gives back what it has."""
        step = self.steps[name]
        if step.asked:
            self._end(step, "cancelled", now)
            return
        step.records[step.attempt] = "interrupted"
        self._wait_again(step, due=step.due)
        step.attempt += 1
        step.tries_from += 1
        step.dispatches = 0

    def notice(self, name: str, now: datetime) -> None:
        """The body sees that it is to stop, and does."""
        self._end(self.steps[name], "cancelled", now)

    def sweep(self, now: datetime) -> None:
        """A beat looks for leases that have ended."""
        if self.root == "dispatched" and self.root_lease and self.root_lease <= now:
            self.root = "pending"
        late = [step for step in self.steps.values() if step.lease and step.lease <= now]
        for step in late:
            if step.job == "dispatched":
                self._wait_again(step, due=step.due)
        for step in sorted(late, key=lambda step: step.lease or now):
            if step.job == "running":
                self.fail(step.name, now, outcome="orphaned")

    def reap(self, now: datetime) -> None:
        """A beat looks for runs that take too long."""
        if self.root != "running" or self.deadline is None or self.started_at is None or now < self.deadline:
            return
        again = self.stopped == "stale"
        self._stop("stale", now, all_of_it=again)
        for step in self.steps.values():
            if step.job == "running" and (again or step.asked):
                self._bury(step, "timeout", now)
        self.deadline = now + (self.deadline - self.started_at)

    def cancel_run(self, now: datetime) -> bool:
        """Somebody cancels the run."""
        if self.root is None:
            return False
        if self.root != "running":
            self.root, self.ended, self.root_outcome = None, "cancelled", "cancelled"
        elif self.stopped is None:
            self._stop("cancelled", now)
        return True

    def cancel_step(self, name: str, now: datetime) -> bool:
        """Somebody cancels one step."""
        step = self.steps[name]
        if step.job is None:
            return False
        if step.job == "running":
            step.asked = True
        else:
            self._end(step, "cancelled", now)
        return True

    def cancel_entity(self, now: datetime) -> bool:
        """Somebody cancels all that belongs to the run's entity: the run as a whole. Its hooks are told all the same."""
        return self.cancel_run(now)

    # What follows

    def _call(self, hook: str) -> None:
        if self.common.get(hook):
            self.hooks.add(hook)
            self.told.append(hook)

    def _wait_again(self, step: Step, *, due: datetime | None) -> None:
        step.job, step.lease, step.due = "pending", None, due

    def _bury(self, step: Step, outcome: str, now: datetime) -> None:
        step.is_buried = True
        self._end(step, outcome, now)

    def _end(self, step: Step, outcome: str, now: datetime) -> None:
        step.records[step.attempt] = outcome
        step.attempts = step.attempt if step.job == "running" else step.attempt - 1
        step.job, step.lease, step.outcome, step.ended_at = None, None, outcome, now
        succeeded = outcome in ("succeeded", "deduplicated")
        step.state = "succeeded" if succeeded else "cancelled" if outcome == "cancelled" else "failed"
        if not succeeded and step.stops and self.stopped is None:
            self._stop(step.state, now)
        self._settle(now)

    def _stop(self, state: str, now: datetime, *, all_of_it: bool = False) -> None:
        self.stopped = state
        for step in self.steps.values():
            if step.regardless and not all_of_it:
                continue
            if step.job == "running":
                step.asked = True
            elif step.state == "owed" or (step.state == "waiting" and all_of_it):
                self._take_back(step, now)
        self._settle(now)

    def _take_back(self, step: Step, now: datetime) -> None:
        if step.state == "owed":
            step.records[step.attempt] = "cancelled"
            step.attempts = step.attempt - 1
        step.state, step.outcome, step.job, step.lease, step.ended_at = "cancelled", "cancelled", None, None, now

    def _settle(self, now: datetime) -> None:
        """Start what may start, until nothing may."""
        while ready := [step for step in self.steps.values() if step.state == "waiting" and self._is_ready(step)]:
            for step in ready:
                self._start(step, now)
        if all(step.state in ENDED for step in self.steps.values()) and self.ended is None:
            self._close()

    def _is_ready(self, step: Step) -> bool:
        return all(self.steps[need].state in ENDED for need in step.needs)

    def _start(self, step: Step, now: datetime) -> None:
        if self.stopped is not None and not step.regardless:
            self._take_back(step, now)
            return
        taken = self.done_keys | {one.key for one in self.steps.values() if one.state == "owed"}
        if step.key is not None and step.key in taken:
            step.state, step.outcome, step.records[1], step.ended_at = "succeeded", "deduplicated", "deduplicated", now
            return
        step.state, step.job, step.due = "owed", "pending", now

    def _close(self) -> None:
        failed = any(step.state == "failed" for step in self.steps.values())
        ends = {"stale": "timeout", "cancelled": "cancelled", "failed": "failed", "completed": "succeeded"}
        self.ended = self.stopped if self.stopped in ("stale", "cancelled") else "failed" if failed else "completed"
        self.root, self.root_outcome = None, ends[self.ended]
        self._call("on_complete")

    def first_failure(self) -> str:
        """Return the step that failed first."""
        failed = [step for step in self.steps.values() if step.state == "failed"]
        return min(failed, key=lambda step: (step.ended_at or self.created_at, step.number)).name


def _step(number: int, stated: Mapping[str, Any], common: Mapping[str, Any], needs: Mapping[str, frozenset[str]]) -> Step:
    said = lambda name: stated.get(name, common.get(name))  # noqa: E731
    strategy = said("failure_strategy") or "retry_on_failure"
    retries = said("max_retries")
    lane = ("run", common["max_parallel"]) if "max_parallel" in common else None
    if "concurrency_key" in stated:
        lane = (stated["concurrency_key"], stated["concurrency"])
    return Step(
        name=stated["name"],
        number=number,
        needs=needs[stated["name"]],
        regardless=bool(stated.get("cleanup")) or stated.get("failure_strategy") == "continue",
        stops=strategy != "continue",
        final=strategy != "retry_on_failure" and retries is None,
        limit=TASK_RETRIES if retries is None else retries,
        key=stated.get("key"),
        lane=lane,
    )


def names(stated: Sequence[Any]) -> Iterator[str]:
    """Return the names of stated steps in order."""
    for item in stated:
        for step in item if isinstance(item, list) else [item]:
            yield step["name"]
