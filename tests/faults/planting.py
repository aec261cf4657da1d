"""Violations that are planted into a clean history: each must be caught, by its promise, with the story of what it is about.

A planting takes a history and returns a broken one with the name of what was broken, or None where nothing fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from faults.history import (
    SECOND,
    Answer,
    DeadLetter,
    Effect,
    Execution,
    History,
    JobRow,
    Mark,
    Occurrence,
    Order,
)

Planted = tuple[History, str] | None
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Planting:
    """A way to break one promise."""

    promise: int
    name: str
    plant: Callable[[History], Planted]


PLANTINGS: list[Planting] = []


def breaks(promise: int) -> Callable[[Callable[[History], Planted]], Callable[[History], Planted]]:
    """Add a way to break a promise."""

    def add(plant: Callable[[History], Planted]) -> Callable[[History], Planted]:
        PLANTINGS.append(Planting(promise, plant.__name__.replace("_", " "), plant))
        return plant

    return add


def _first(rows: Sequence[Any], fits: Callable[[Any], bool]) -> Any:
    return next((row for row in rows if fits(row)), None)


def _without(rows: Sequence[Any], gone: Any) -> list[Any]:
    return [row for row in rows if row is not gone]


def _changed(rows: Sequence[Any], old: Any, **changes: Any) -> list[Any]:
    return [replace(row, **changes) if row is old else row for row in rows]


def _success(history: History, **about: Any) -> Execution | None:
    """Return a success of a job that has a body."""
    bodies = {(one.job, one.attempt) for one in history.effects if one.what == "ended"}
    found: Execution | None = _first(
        history.executions,
        lambda one: (
            one.outcome == "succeeded"
            and (one.job, one.attempt) in bodies
            and all(getattr(one, name) == value for name, value in about.items())
        ),
    )
    return found


def _forget(history: History, job: str) -> History:
    """Let no trace of a job be left but that it was answered."""
    return replace(
        history,
        effects=[one for one in history.effects if one.job != job],
        executions=[one for one in history.executions if one.job != job],
        dead_letters=[one for one in history.dead_letters if one.id != job],
        keys=[one for one in history.keys if one.job != job],
        marks=[one for one in history.marks if one.job != job],
    )


# 1. No lost work


@breaks(1)
def an_answered_job_has_vanished(history: History) -> Planted:
    ask = _first(history.asks, lambda one: one.kind == "plain")
    answer = ask and _first(history.answers, lambda one: one.ask == ask.ask and one.job)
    return answer and (_forget(history, answer.job), answer.job)


@breaks(1)
def the_last_attempt_is_not_there(history: History) -> Planted:
    last = _first(history.executions, lambda one: one.outcome == "succeeded" and one.attempt > 1)
    if last is None:
        return None
    effects = [one for one in history.effects if (one.job, one.attempt) != (last.job, last.attempt)]
    return replace(history, executions=_without(history.executions, last), effects=effects), last.job


@breaks(1)
def a_row_is_left(history: History) -> Planted:
    done = _success(history)
    row = done and JobRow(done.job, done.task, "dispatched", 1, done.completed_at, done.completed_at)
    return done and (replace(history, jobs=[*history.jobs, row]), done.job)


@breaks(1)
def a_success_that_no_body_had(history: History) -> Planted:
    done = _success(history)
    if done is None:
        return None
    same = lambda one: (one.job, one.attempt, one.what) == (done.job, done.attempt, "ended")  # noqa: E731
    return replace(history, effects=[one for one in history.effects if not same(one)]), done.job


@breaks(1)
def what_was_rolled_back_ran(history: History) -> Planted:
    answer = _first(history.answers, lambda one: one.what == "rolled back")
    ask = answer and _first(history.asks, lambda one: one.ask == answer.ask)
    done = _success(history)
    if ask is None or done is None:
        return None
    began = Effect(answer.at + 1, "began", "ghost", 1, "x", "plain", ask.label, None, 5, "w:5")
    ended = replace(began, what="ended")
    ran = replace(done, id="x", job="ghost", attempt=1, worker="w:5", occurrence=None)
    return replace(history, effects=[*history.effects, began, ended], executions=[*history.executions, ran]), "ghost"


@breaks(1)
def what_was_rolled_back_left_an_order(history: History) -> Planted:
    answer = _first(history.answers, lambda one: one.what == "rolled back")
    return answer and (replace(history, orders=[*history.orders, Order(answer.ask, "ghost")]), "ghost")


@breaks(1)
def an_order_without_its_job(history: History) -> Planted:
    known = {one.ask for one in history.orders}
    answer = _first(history.answers, lambda one: one.what == "unknown" and one.ask not in known)
    return answer and (replace(history, orders=[*history.orders, Order(answer.ask, "ghost")]), "ghost")


@breaks(1)
def a_job_without_its_order(history: History) -> Planted:
    unknown = {one.ask for one in history.answers if one.what == "unknown"}
    order = _first(history.orders, lambda one: one.ask in unknown)
    return order and (replace(history, orders=_without(history.orders, order)), order.job)


@breaks(1)
def what_nobody_answered_left_half(history: History) -> Planted:
    began = {one.job for one in history.effects}  # without an answer a job is linked to its ask by what its body wrote
    order = _first(history.orders, lambda one: one.job in began)
    if order is None:
        return None
    answers = [one for one in history.answers if one.ask != order.ask]
    return replace(history, orders=_without(history.orders, order), answers=answers), order.job


@breaks(1)
def a_committed_order_is_not_there(history: History) -> Planted:
    answered = {one.ask for one in history.answers if one.what == "answered"}
    order = _first(history.orders, lambda one: one.ask in answered)
    return order and (replace(history, orders=_without(history.orders, order)), order.job)


@breaks(1)
def a_dead_letter_is_not_there(history: History) -> Planted:
    letter = _first(history.dead_letters, lambda one: one.task != "step")
    return letter and (replace(history, dead_letters=_without(history.dead_letters, letter)), letter.id)


@breaks(1)
def a_direct_call_was_lost_without_a_fault(history: History) -> Planted:
    ask = _first(history.asks, lambda one: one.kind == "direct")
    answer = ask and _first(history.answers, lambda one: one.ask == ask.ask)
    if answer is None or any(one.job == answer.job for one in history.executions):
        return None
    return replace(history, faults=[one for one in history.faults if one.at < ask.at], processes=()), answer.job


@breaks(1)
def a_cancelled_job_started_again(history: History) -> Planted:
    done = _success(history)
    if done is None:
        return None
    began = _first(history.effects, lambda one: one.job == done.job and one.what == "began")
    answer = Answer(began.at - 10 * SECOND, "cancelled", "c-x", done.job, answer=1)
    return replace(history, answers=[*history.answers, answer]), done.job


# 2. No double start


@breaks(2)
def an_attempt_began_twice(history: History) -> Planted:
    began = _first(history.effects, lambda one: one.what == "began")
    if began is None:
        return None
    twin = replace(began, at=began.at + SECOND, pid=7, worker="worker2@chaos:7")
    return replace(history, effects=[*history.effects, twin]), began.job


@breaks(2)
def an_attempt_is_recorded_twice(history: History) -> Planted:
    done = _success(history)
    return done and (replace(history, executions=[*history.executions, replace(done, id="twin")]), done.job)


@breaks(2)
def a_key_succeeded_twice(history: History) -> Planted:
    key = _first(history.keys, lambda _: True)
    done = key and _success(history, job=key.job)
    if done is None:
        return None
    return _run_once_more(history, done, key.key, "succeeded"), key.key


@breaks(2)
def a_key_was_let_in_after_its_success(history: History) -> Planted:
    key = _first(history.keys, lambda _: True)
    done = key and _success(history, job=key.job)
    if done is None:
        return None
    return _run_once_more(history, done, key.key, "cancelled"), key.key


def _run_once_more(history: History, done: Execution, key: str, outcome: str) -> History:
    """Let another job with the same key run a second later."""
    assert done.started_at is not None
    later = timedelta(seconds=1)
    at = max(one.at for one in history.effects if one.job == done.job and one.attempt == done.attempt) + SECOND
    began = Effect(at, "began", "another", 1, "x", done.task, "again", key, 9, "w:9")
    run = replace(
        done, id="x", job="another", attempt=1, worker="w:9", outcome=outcome,
        started_at=done.completed_at + later, completed_at=done.completed_at + 2 * later,
    )  # fmt: skip
    ended = replace(began, what="ended", at=at + SECOND)
    return replace(history, effects=[*history.effects, began, ended], executions=[*history.executions, run])


@breaks(2)
def a_key_is_not_kept(history: History) -> Planted:
    key = _first(history.keys, lambda _: True)
    return key and (replace(history, keys=_without(history.keys, key)), key.key)


# 3. Stale workers cannot finish


@breaks(3)
def a_job_ended_twice(history: History) -> Planted:
    done = _success(history)
    letter = done and DeadLetter(done.job, done.task, done.attempt, done.completed_at, "no tries are left")
    return done and (replace(history, dead_letters=[*history.dead_letters, letter]), done.job)


@breaks(3)
def an_attempt_is_missing(history: History) -> Planted:
    one = _first(history.executions, lambda one: one.outcome == "orphaned")
    if one is None:
        return None
    effects = [line for line in history.effects if (line.job, line.attempt) != (one.job, one.attempt)]
    return replace(history, executions=_without(history.executions, one), effects=effects), one.job


@breaks(3)
def somebody_else_wrote_the_end(history: History) -> Planted:
    done = _success(history)
    return done and (replace(history, executions=_changed(history.executions, done, worker="worker2@chaos:1")), done.job)


@breaks(3)
def an_attempt_after_the_end(history: History) -> Planted:
    done = _success(history)
    if done is None:
        return None
    later = replace(
        done, id="later", attempt=done.attempt + 1, outcome="cancelled", started_at=None, worker=None,
        completed_at=done.completed_at + timedelta(seconds=1),
    )  # fmt: skip
    return replace(history, executions=[*history.executions, later]), done.job


@breaks(3)
def an_attempt_that_is_not_recorded(history: History) -> Planted:
    began = _first(history.effects, lambda one: one.what == "began")
    more = began and replace(began, attempt=began.attempt + 50, at=began.at + SECOND)
    return began and (replace(history, effects=[*history.effects, more]), began.job)


@breaks(3)
def a_failure_that_no_body_had(history: History) -> Planted:
    failed = _first(history.executions, lambda one: one.outcome == "failed" and one.task != "celery_tm.workflow")
    if failed is None:
        return None
    effects = [one for one in history.effects if (one.job, one.attempt) != (failed.job, failed.attempt)]
    return replace(history, effects=effects), failed.job


@breaks(3)
def a_success_without_a_start(history: History) -> Planted:
    done = _success(history)
    return done and (replace(history, executions=_changed(history.executions, done, started_at=None)), done.job)


@breaks(3)
def buried_at_another_attempt(history: History) -> Planted:
    letter = _first(history.dead_letters, lambda _: True)
    letters = letter and _changed(history.dead_letters, letter, attempt=letter.attempt + 1)
    return letter and (replace(history, dead_letters=letters), letter.id)


# 4. Exactly-once effects


@breaks(4)
def an_effect_is_there_twice(history: History) -> Planted:
    mark = _first(history.marks, lambda _: True)
    return mark and (replace(history, marks=[*history.marks, mark]), mark.job)


@breaks(4)
def an_effect_is_not_there(history: History) -> Planted:
    mark = _first(history.marks, lambda _: True)
    return mark and (replace(history, marks=_without(history.marks, mark)), mark.job)


@breaks(4)
def an_effect_of_an_attempt_that_failed(history: History) -> Planted:
    mark = _first(history.marks, lambda one: one.attempt > 1)
    return mark and (replace(history, marks=_changed(history.marks, mark, attempt=mark.attempt - 1)), mark.job)


@breaks(4)
def an_effect_of_a_job_that_was_buried(history: History) -> Planted:
    letter = _first(history.dead_letters, lambda _: True)
    mark = letter and Mark("label", letter.id, letter.attempt)
    return letter and (replace(history, marks=[*history.marks, mark]), letter.id)


# 5. Every instant is accounted for


@breaks(5)
def an_instant_is_not_there(history: History) -> Planted:
    one = _planned(history)
    gone = one and replace(history, occurrences=_without(history.occurrences, one))
    return one and (gone, one.scheduled_at.isoformat())


def _planned(history: History, *states: str) -> Occurrence | None:
    """Return an occurrence of a definition that is not run by hand."""
    plain = {one["name"] for one in history.run.get("definitions", ()) if not one["schedule"].startswith("0 0")}
    ids = {one.id for one in history.definitions if one.name in plain}
    found: Occurrence | None = _first(
        history.occurrences, lambda one: one.definition in ids and (not states or one.state in states)
    )
    return found


@breaks(5)
def an_instant_is_not_decided(history: History) -> Planted:
    one = _planned(history)
    return one and (replace(history, occurrences=_changed(history.occurrences, one, state="pending")), one.id)


@breaks(5)
def nobody_says_why(history: History) -> Planted:
    one = _planned(history, "skipped", "missed", "coalesced")
    return one and (replace(history, occurrences=_changed(history.occurrences, one, reason=None)), one.id)


@breaks(5)
def an_instant_that_is_none(history: History) -> Planted:
    one = _planned(history)
    more = one and replace(
        one, id="between", scheduled_at=one.scheduled_at + timedelta(milliseconds=700), state="skipped", reason="x"
    )
    return one and (replace(history, occurrences=[*history.occurrences, more]), "between")


@breaks(5)
def completed_and_nothing_succeeded(history: History) -> Planted:
    one = _planned(history, "skipped", "missed", "coalesced")
    return one and (replace(history, occurrences=_changed(history.occurrences, one, state="completed")), one.id)


# 6. Any number of beats


@breaks(6)
def an_instant_was_planned_twice(history: History) -> Planted:
    one = _planned(history)
    return one and (replace(history, occurrences=[*history.occurrences, replace(one, id="twin")]), "twin")


@breaks(6)
def two_jobs_for_one_occurrence(history: History) -> Planted:
    runs = {one.id for one in history.runs}
    done = _first(history.executions, lambda one: one.occurrence and one.occurrence not in runs)
    twin = done and replace(done, id="twin", job="job-twin", attempt=1)
    return done and (replace(history, executions=[*history.executions, twin]), done.occurrence)


@breaks(6)
def a_step_has_two_jobs(history: History) -> Planted:
    step = _first(history.steps, lambda _: True)
    done = step and _first(history.executions, lambda one: one.job == step.job)
    twin = done and replace(done, id="twin", job="job-twin", attempt=1)
    return done and (replace(history, executions=[*history.executions, twin]), done.occurrence)


@breaks(6)
def two_bodies_for_one_instant(history: History) -> Planted:
    done = _first(history.executions, lambda one: one.source == "scheduled" and one.outcome == "succeeded")
    if done is None:
        return None
    lines = [replace(one, job="job-twin") for one in history.effects if (one.job, one.attempt) == (done.job, done.attempt)]
    lines = [replace(one, attempt=1) for one in lines]
    run = replace(done, id="twin", job="job-twin", attempt=1, occurrence=None)
    return replace(history, effects=[*history.effects, *lines], executions=[*history.executions, run]), "job-twin"


# 7. Database time


@breaks(7)
def a_job_started_before_it_was_due(history: History) -> Planted:
    answer = _first(history.answers, lambda one: one.run_at is not None and _success(history, job=one.job))
    return answer and (
        replace(history, answers=_changed(history.answers, answer, run_at=answer.run_at + HOUR)), answer.job
    )  # fmt: skip


@breaks(7)
def an_occurrence_started_before_its_instant(history: History) -> Planted:
    done = _first(history.executions, lambda one: one.source == "scheduled" and one.started_at is not None)
    if done is None:
        return None
    early = {"started_at": done.started_at - HOUR}
    return replace(history, executions=_changed(history.executions, done, **early)), done.job


@breaks(7)
def a_lease_was_taken_without_a_fault(history: History) -> Planted:
    lost = _first(history.executions, lambda one: one.outcome == "orphaned" and one.worker)
    if lost is None:
        return None
    pid = int(lost.worker.rpartition(":")[2])
    clocks = [
        replace(one, kind="clock shifted", pids=()) if pid in one.pids or not one.pids else one for one in history.faults
    ]
    return replace(history, faults=clocks, processes=()), lost.job


@breaks(7)
def a_lease_was_taken_too_early(history: History) -> Planted:
    stopped = {pid for one in history.faults if one.kind == "sigstop worker" for pid in one.pids}
    lost = _first(
        history.executions,
        lambda one: one.outcome == "orphaned" and int((one.worker or "0").rpartition(":")[2]) in stopped,
    )
    if lost is None:
        return None
    soon = lost.started_at + timedelta(seconds=1)
    return replace(history, executions=_changed(history.executions, lost, completed_at=soon)), lost.job


@breaks(7)
def an_attempt_started_before_the_one_before_it_ended(history: History) -> Planted:
    later = _first(history.executions, lambda one: one.attempt > 1 and one.started_at is not None)
    if later is None:
        return None
    early = {"started_at": later.started_at - timedelta(seconds=1)}
    return replace(history, executions=_changed(history.executions, later, **early)), later.job
