"""What the model is made of: rows, messages, bodies and beats, how big it is, and the rules by which they move.

Moves of a row are looked up in `celery_tm.domain.job.NEXT`, and what follows a failed try is asked of
`celery_tm.domain.retry.after_failure`, so that the model and the code cannot drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import NamedTuple, TypeVar

from celery_tm.domain.job import NEXT, Job, JobState
from celery_tm.domain.retry import Bury, Fixed, after_failure

T = TypeVar("T")
PENDING, DISPATCHED, RUNNING = JobState.PENDING, JobState.DISPATCHED, JobState.RUNNING


class Row(NamedTuple):
    """A job as the database has it. Times are what is left of them: 0 is due, or ended."""

    state: JobState = PENDING
    attempt: int = 1
    tries_from: int = 1
    wait: int = 0  # until it is due
    lease: int = 0
    stop: bool = False  # somebody asked it to stop
    ended: bool = False  # only what follows is left
    who: int = 0  # was let in: only after a lost start, or a revival, may two have been let in for one attempt


class Body(NamedTuple):
    """What a worker is at: an attempt, and how far it has come with it."""

    job: int
    attempt: int
    phase: str = "runs"
    who: int = 0
    healthy: bool = True  # it renews its lease in time
    renew: int = 0  # until it does


class Beat(NamedTuple):
    """What a beat has in mind: to send a message, or to put back what it saw overdue; or somebody else, to revoke a call."""

    what: str
    job: int
    attempt: int


class Past(NamedTuple):
    """What has become of a job so far."""

    endings: tuple[str, ...] = ()
    let_in: int = 0  # the attempts whose body was begun, as bits
    effects: int = 0  # what its body wrote for good
    sent: int = 0  # the attempts that were sent, as bits, where nothing goes wrong
    is_asked: bool = False  # it was deferred, or called
    letter: int = 0  # the attempt it was buried at, while a person may revive it
    revived: bool = False
    lost: bool = False  # the database has lost a start


class World(NamedTuple):
    """Everything there is. Workers, like beats, are all alike, so they are kept in order and have no names."""

    rows: tuple[Row | None, ...]
    past: tuple[Past, ...]
    messages: tuple[tuple[int, int], ...] = ()
    bodies: tuple[Body, ...] = ()
    beats: tuple[Beat, ...] = ()
    key: int = 0  # how often the key was kept
    broken: str | None = None

    def with_row(self, job: int, row: Row | None) -> World:
        """Return the world with another row; the state machine must allow the move."""
        before = self.rows[job]
        after = None if row is None else row.state
        if before is not None and after is not before.state:
            assert after in NEXT[before.state], f"{before.state} → {after} is not in NEXT"
        return self._replace(rows=_with(self.rows, job, row))

    def with_past(self, job: int, **changes: object) -> World:
        """Return the world with something else in a job's past."""
        return self._replace(past=_with(self.past, job, self.past[job]._replace(**changes)))  # type: ignore[arg-type]

    def ended(self, job: int, how: str) -> World:
        """Return the world after a job's end: its row is gone, and that is recorded."""
        return self.with_row(job, None).recorded(job, how)

    def recorded(self, job: int, how: str) -> World:
        """Return the world with one more ending in the books."""
        return self.with_past(job, endings=(*self.past[job].endings, how))

    def with_message(self, job: int, attempt: int) -> World:
        """Return the world with one more message under way."""
        return self._replace(messages=tuple(sorted((*self.messages, (job, attempt)))))

    def without_message(self, message: tuple[int, int]) -> World:
        """Return the world with one message less."""
        rest = list(self.messages)
        rest.remove(message)
        return self._replace(messages=tuple(rest))

    def with_body(self, before: Body | None, after: Body | None) -> World:
        """Return the world in which a worker is at something else."""
        return self._replace(bodies=_swapped(self.bodies, before, after))

    def with_beat(self, before: Beat | None, after: Beat | None) -> World:
        """Return the world in which a beat has something else in mind."""
        return self._replace(beats=_swapped(self.beats, before, after))

    def but(self, broken: str) -> World:
        """Return the world with a promise broken on the way to it."""
        return self if self.broken else self._replace(broken=broken)


def _with(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])


def _swapped(values: tuple[T, ...], before: T | None, after: T | None) -> tuple[T, ...]:
    left = list(values)
    if before is not None:
        left.remove(before)
    if after is not None:
        left.append(after)
        left.sort()  # type: ignore[type-var]
    return tuple(left)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How big a world is, and what there is in it."""

    jobs: int = 1
    workers: int = 2
    beats: int = 1
    tries: int = 3
    in_broker: int = 2
    calm: bool = False  # nothing goes wrong and nobody is slow; else anything may, and anybody
    timed: bool = False  # else a lease may end, and a backoff be over, at any moment
    lease: int = 2
    renew_every: int = 1
    dispatch_lease: int = 2
    cancels: bool = False  # people cancel, and replace what waits by something later
    hand_backs: int = 0  # how often a worker that stops gives back what it has
    shares_key: bool = False  # the jobs have one key; the others are deferred, or called, sooner or later
    revives: bool = False  # people revive what was buried, once
    direct: frozenset[int] = frozenset()  # jobs that are calls without a row
    follows: bool = False  # the second job is a call that follows the first one's success, or its failure
    next_step: bool = False  # the second job is the step after the first, or what its body calls
    crashes: bool = False  # the database crashes, and what is not on its disk is lost
    fails_over: bool = False  # to a database that was a moment behind: a start may be lost

    @property
    def last_attempt(self) -> int:
        """Return an attempt that no job goes beyond."""
        lives = 1 + self.revives + self.cancels  # who replaces what waits for its next try gives it all of them again
        return self.tries * lives + self.hand_backs + (2 if self.follows else 0)

    @property
    def start(self) -> World:
        """Return where it all begins: the first job is owed, or its call is under way."""
        past, rows = [Past()] * self.jobs, [None] * self.jobs
        past[0] = Past(is_asked=True)
        world = World(tuple(rows), tuple(past))
        return world.with_message(0, 1) if 0 in self.direct else world.with_row(0, Row())


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The guards of the protocol; each can be taken away."""

    fencing: bool = True  # what ends an attempt names the attempt
    fenced_by_worker: bool = True  # and who was let in for it
    attempt_in_gate: bool = True  # a message gets in only for the present attempt
    gate_refuses_running: bool = True
    gate_asks_the_time: bool = True
    gate_asks_the_key: bool = True
    gate_asks_the_record: bool = True  # a call that has no row gets in only if none of its attempts is recorded
    call_asks_last: bool = True  # for key and record when its row is inserted, not before
    gate_waits_for_the_disk: bool = True
    finish_needs_row: bool = True  # no row found: nothing is written
    finish_needs_owed: bool = True  # a row of which only what follows is left is not ended again
    sweeper: bool = True
    sweep_asks_again: bool = True  # what was seen overdue is put back only if it is still the same attempt, and overdue
    sweep_asks_the_lease: bool = True
    dispatch_lease: bool = True  # what was claimed is sent again if it does not arrive
    state_before_send: bool = True  # a beat sends what it has claimed, and not what it means to claim
    commit_before_send: bool = True  # what a body calls is sent when its transaction has committed
    database_clock: bool = True  # leases go by the database's clock, not by the worker's
    retry_counts: bool = True  # the next try has another attempt number
    retry_asks_for_a_cancel: bool = True
    cancel_spares_what_runs: bool = True
    revoke_holds_the_id: bool = True  # who revokes a call that was not seen keeps its row from being inserted meanwhile
    key_with_success: bool = True  # in one transaction
    effect_with_success: bool = True
    step_with_success: bool = True
    record_before_hand_on: bool = True
    row_waits_for_hand_on: bool = True
    hand_back_fenced: bool = True


@cache
def is_last_try(attempt: int, tries_from: int, tries: int) -> bool:
    """Ask the product whether a job whose try failed becomes a dead letter."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    job = Job(
        id="j", task="t", args="[]", kwargs="{}", run_at=now, created_at=now, original_delay=timedelta(0),
        attempt=attempt, tries_from=tries_from, max_retries=tries - 1,
    )  # fmt: skip
    return isinstance(after_failure(job, default=Fixed()), Bury)
