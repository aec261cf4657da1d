"""Counts what happens: each event adds to the figures that are about it. What is counted twice or not at all shows here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from celery.utils.dispatch import Signal

from .. import events
from . import names
from .tally import Tally

Values = Mapping[str, Any]


def count_events(app: Any, tally: Tally) -> None:
    """Add to the tally whatever happens to an app in this process from now on, and in processes that it forks."""
    for signal, count in RECEIVERS.items():
        receiver = partial(_receive, tally, count)
        signal.connect(receiver, sender=app, weak=False, dispatch_uid=("celery_tm.metrics", id(app), signal.name))


def stop_counting(app: Any) -> None:
    """Count no more."""
    for signal in RECEIVERS:
        signal.disconnect(sender=app, dispatch_uid=("celery_tm.metrics", id(app), signal.name))


def _receive(tally: Tally, count: Callable[[Tally, Values], None], /, **values: Any) -> None:
    count(tally, values)


def _word(value: Any) -> str:
    """Return a label's value: what has no definition, or no step, has an empty one."""
    return "" if value is None else str(value)


def _whose(values: Values) -> tuple[str, str]:
    return _word(values["definition"]), _word(values["task"])


def _started(tally: Tally, values: Values) -> None:
    tally.count(names.ATTEMPTS, *_whose(values))
    if values["waited"] is not None:
        tally.observe(names.START_DELAY, *_whose(values), seconds=values["waited"])


def _ended(tally: Tally, values: Values) -> None:
    tally.count(names.EXECUTIONS, *_whose(values), _word(values.get("outcome", "succeeded")))
    if values.get("duration") is not None:
        tally.observe(names.EXECUTION_SECONDS, *_whose(values), _word(values["step"]), seconds=values["duration"])


def _occurrence_ended(tally: Tally, values: Values) -> None:
    labels = _word(values["definition"]), _word(values["state"])
    tally.count(names.OCCURRENCES, *labels, by=values["count"])
    if values["is_recovery"]:
        tally.count(names.RECOVERY_RUNS, *labels, by=values["count"])


def _run_ended(tally: Tally, values: Values) -> None:
    tally.count(names.RUNS, _word(values["definition"]), _word(values["state"]))
    if values["duration"] is not None:
        tally.observe(names.RUN_SECONDS, _word(values["definition"]), seconds=values["duration"])


def _deferred(tally: Tally, values: Values) -> None:
    tally.count(names.DEFERRED, _word(values["task"]), by=values["count"])


def _buried(tally: Tally, values: Values) -> None:
    tally.count(names.BURIED, *_whose(values))


def _revived(tally: Tally, _: Values) -> None:
    tally.count(names.REVIVED)


def _purged(tally: Tally, values: Values) -> None:
    tally.count(names.PURGED, by=values["count"])


def _refused(tally: Tally, values: Values) -> None:
    tally.count(names.REFUSALS, _word(values["kind"]))


def _lease_lost(tally: Tally, values: Values) -> None:
    tally.count(names.LEASE_LOSSES, _word(values["task"]))


def _dispatched(tally: Tally, values: Values) -> None:
    tally.count(names.DISPATCHED, by=values["count"])
    tally.count(names.PUBLISH_REFUSED, by=values["refused"])
    tally.observe(names.CLAIM_SECONDS, seconds=values["claim_seconds"])
    tally.observe(names.PUBLISH_SECONDS, seconds=values["seconds"])


def _ticked(tally: Tally, values: Values) -> None:
    tally.observe(names.TICK_SECONDS, seconds=values["seconds"])
    tally.count(names.PLANNED, by=values["planned"])


def _planned(tally: Tally, values: Values) -> None:
    for recovery, count in values["by_recovery"].items():
        tally.count(names.PLANNED_RUNS, recovery, by=count)


def _swept(tally: Tally, values: Values) -> None:
    for kind in ("redispatched", "orphaned", "stale"):
        tally.count(names.SWEPT, kind, by=values[kind])


def _outage(tally: Tally, values: Values) -> None:
    tally.count(names.OUTAGES, _word(values["what"]))


def _set_aside(tally: Tally, values: Values) -> None:
    tally.count(names.SET_ASIDE, _word(values["table"]))


def _blocked(tally: Tally, values: Values) -> None:
    tally.count(names.QUEUES_BLOCKED, _word(values["queue"]))


RECEIVERS: Mapping[Signal, Callable[[Tally, Values], None]] = {
    events.execution_started: _started,
    events.execution_completed: _ended,
    events.execution_failed: _ended,
    events.execution_given_back: _ended,
    events.job_cancelled: _ended,
    events.job_buried: _buried,
    events.letter_revived: _revived,
    events.letters_purged: _purged,
    events.occurrence_ended: _occurrence_ended,
    events.run_ended: _run_ended,
    events.jobs_deferred: _deferred,
    events.delivery_refused: _refused,
    events.lease_lost: _lease_lost,
    events.jobs_dispatched: _dispatched,
    events.tick_done: _ticked,
    events.instants_planned: _planned,
    events.jobs_swept: _swept,
    events.outage_began: _outage,
    events.queue_blocked: _blocked,
    events.row_set_aside: _set_aside,
}
