"""One definition a month behind holds nobody up: those on time are dispatched as if it were not there, in bounded memory.

A real `Scheduler` works in a process of its own, once with fifty definitions that fire every second and once with a
minute job besides that has 43,200 missed instants to decide.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from celery import Celery
from sqlalchemy import text

from celery_tm import Scheduler, events

from . import population
from .figures import Figure, Size
from .harness import Say, Watch, in_child, interleave, memory
from .services import own_app, own_broker, own_database

ON_TIME = 50
BEHIND = timedelta(days=30)
ALONE_FOR = 5.0  # seconds
LONGEST = 120.0  # seconds after which a catch-up counts as stuck
PROGRESS = "SELECT planned_until < now() - interval '2 minutes' FROM tm_definition WHERE name = 'behind-1'"
CAUGHT_UP = """
    SELECT max(decided_at), count(*) FROM tm_occurrence
    WHERE is_recovery AND definition = (SELECT id FROM tm_definition WHERE name = 'behind-1')
"""
DELAYS = """
    SELECT EXTRACT(EPOCH FROM claimed_at - scheduled_at) FROM tm_job
    WHERE claimed_at <= :until AND occurrence IN
        (SELECT o.id FROM tm_occurrence o JOIN tm_definition d ON d.id = o.definition WHERE d.name LIKE 'on-time%')
"""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one run saw."""

    rounds: int
    instants: int
    seconds: float
    worst: float  # of the delays between an instant and its dispatch, of those on time
    usual: float
    grown: float  # MB at the peak, above what a beat holds that has ticked a while


def run(*, size: Size, say: Say) -> list[Figure]:
    """Measure both runs by turns."""
    say(f"tick: a minute job {BEHIND.days} days behind among {ON_TIME} that are on time")
    with ExitStack() as stack:
        broker = stack.enter_context(own_broker())
        url = stack.enter_context(own_database())
        variants = [partial(_note, name, broker, url) for name in ("alone", "behind")]
        watch = interleave(variants, rounds=size.pick(full=3, quick=1, tiny=1), seconds=120)
    mb: dict[str, Any] = {"unit": "MB", "scale": 1}
    plain: dict[str, Any] = {"unit": "", "scale": 1}
    seconds: dict[str, Any] = {"unit": "s", "scale": 1}
    alone = "without it"
    return [
        watch.figure("backlog of a month: instants decided", "behind instants", **plain),
        watch.figure("  rounds of planning", "behind rounds", **plain),
        watch.figure("  time to catch up", "behind seconds", **seconds),
        watch.figure("  usual delay of those on time", "behind usual", against="alone usual", told=alone),
        watch.figure("  worst delay of those on time", "behind worst", against="alone worst", told=alone),
        watch.figure("  beat's memory at the peak, above idle", "behind grown", against="alone grown", told=alone, **mb),
    ]


def _note(name: str, broker: dict[str, Any], url: str, watch: Watch) -> None:
    seen: Seen = in_child(catch_up, broker, url, name == "behind", seconds=LONGEST + 60)
    for what in ("rounds", "instants", "seconds", "worst", "usual", "grown"):
        watch.note(f"{name} {what}", getattr(seen, what))


def catch_up(broker: dict[str, Any], url: str, behind: bool) -> Seen:
    """Let beat work until the backlog is decided, or for a while where there is none."""
    with own_app(broker, url) as app:
        population.empty(app)
        beat, rounds = Scheduler(app), _Rounds()
        for _ in range(20):
            beat.work()
        populate(app, behind)
        events.instants_planned.connect(rounds)
        before, started = memory(), datetime.now(UTC)
        _work(app, beat, behind)
        return _seen(app, rounds.count, started, memory(peak=True) - before)


class _Rounds:
    """Counts the rounds that planning took."""

    count = 0

    def __call__(self, **_: Any) -> None:
        self.count += 1


def populate(app: Celery, behind: bool) -> None:
    """Add definitions that are due every second from now on, and one that is far behind where wanted."""
    now = datetime.now(UTC).replace(microsecond=0)
    second = now + timedelta(seconds=1)
    population.add_many(
        app, ON_TIME, name="on-time", schedule="* * * * * *", overlap="allow", planned_until=now, next_run_at=second
    )
    if behind:
        since = now.replace(second=0) - BEHIND
        population.add_many(
            app, 1, name="behind", schedule="* * * * *", recovery="last", planned_until=since, next_run_at=since
        )


def _work(app: Celery, beat: Scheduler, behind: bool) -> None:
    """Tick as beat does, waiting as long as it says."""
    until = time.monotonic() + (LONGEST if behind else ALONE_FOR)
    while time.monotonic() < until:
        time.sleep(min(beat.work(), 1.0))
        if behind:
            with population.engine_of(app).connect() as connection:
                if not connection.execute(text(PROGRESS)).scalar_one():
                    return
    if behind:
        raise TimeoutError(f"the backlog was not decided in {LONGEST} s")


def _seen(app: Celery, rounds: int, started: datetime, grown: float) -> Seen:
    with population.engine_of(app).connect() as connection:
        ended, instants = connection.execute(text(CAUGHT_UP)).one()
        ended = ended or datetime.now(UTC)
        delays = sorted(float(delay) for delay in connection.execute(text(DELAYS), {"until": ended}).scalars())
    return Seen(
        rounds=rounds,
        instants=instants,
        seconds=(ended - started).total_seconds(),
        worst=delays[-1],
        usual=delays[len(delays) // 2],
        grown=grown,
    )
