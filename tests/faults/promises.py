"""Promises 1 to 4, job by job: nothing lost, nothing started twice, no stale end, effects once."""

from __future__ import annotations

from datetime import datetime, timedelta

from faults.case import ENDS, Case, Dossier, Findings
from faults.history import SECOND, Answer, Ask, Execution

DIRECT, TRANSACTIONAL = "direct", "transactional"
IN_TRANSACTION = ("in caller's transaction", "ordered")
NOT_STARTED = ("cancelled", "expired", "deduplicated")
LOSES_CALLS = ("worker", "pool", "child", "redis", "rabbit", "broker", "flush", "proxy", "database", "postgres", "mariadb")
SOON = 2.0  # seconds by which the two clocks of a record may disagree


def check_jobs(case: Case, found: Findings) -> None:
    """Hold every job against the promises about single jobs."""
    for job in case.jobs.values():
        nothing_lost(case, job, found)
        no_double_start(case, job, found)
        no_stale_end(case, job, found)
        effects_once(case, job, found)
    asks_without_answer(case, found)
    keys_succeed_once(case, found)


def when(case: Case, job: Dossier) -> int:
    """Return the last that is known of a job, in the files' time."""
    times = [one.at for one in job.effects] + [answer.at for _, answer in job.asked]
    times += [case.in_files_time(one.completed_at) for one in job.executions[-1:]]
    return max(times, default=0)


# 1. No lost work


def nothing_lost(case: Case, job: Dossier, found: Findings) -> None:
    """A job ends; what the tables call a success, a body says too."""
    at = when(case, job)
    if job.rows:
        row = job.rows[0]
        told = f"job {job.id} is still owed: {row.state}, attempt {row.attempt}, due {row.run_at:%H:%M:%S.%f}"
        found.broken(1, told, at=at, job=job.id)
    elif not job.ends() and not _is_accounted_for(case, job, found):
        found.broken(1, _lost(job), at=at, job=job.id)
    for one in job.executions:
        if one.outcome == "succeeded" and not job.lines("ended", one.attempt):
            if job.is_run:
                found.allow("run")
            elif case.is_plain(job.task):
                found.allow("published")
            else:
                told = f"attempt {one.attempt} of job {job.id} is recorded as a success, and no body says that it ended"
                found.broken(1, told, at=at, job=job.id)
    _asked(case, job, found)


def _lost(job: Dossier) -> str:
    if not job.has_left_traces:
        return f"job {job.id} was answered, and has left no trace"
    if job.executions:
        last = job.executions[-1]
        return f"job {job.id} is gone: attempt {last.attempt} ended as {last.outcome}, and nothing followed"
    return f"job {job.id} is gone: it began, and no attempt of it is recorded"


def _is_accounted_for(case: Case, job: Dossier, found: Findings) -> bool:
    """Say whether a job without an end may have none."""
    if job.id in case.occurrences and not job.has_left_traces:
        return True  # asked for by hand, and told by the name of its occurrence: that is held against promise 5
    calls = [ask for ask, _ in job.asked if ask is not None and ask.kind == DIRECT]
    if calls and not job.has_left_traces and _may_be_lost(case, calls[0]):
        found.allow("direct call")
        return True
    return False


def _may_be_lost(case: Case, ask: Ask) -> bool:
    """Say whether a fault after a direct call may have lost its message."""
    return any(span.until >= ask.at and any(word in span.fault.kind.lower() for word in LOSES_CALLS) for span in case.spans)


def _asked(case: Case, job: Dossier, found: Findings) -> None:
    """What was answered in a caller's transaction is there with its other writes; what was cancelled does not start."""
    for ask, answer in job.asked:
        if answer.what == "cancelled" and answer.answer:
            _cancelled(case, job, answer, found)
        elif answer.what == "answered" and answer.created is False:
            found.allow("known before")
        if ask is None or answer.what != "answered" or ask.kind not in IN_TRANSACTION:
            continue
        orders = case.orders.get(ask.ask, [])
        if [order.job for order in orders] != [job.id]:
            told = f"ask {ask.ask} was committed with job {job.id}, and its order is written {len(orders)} times"
            found.broken(1, told, at=answer.at, job=job.id)


def _cancelled(case: Case, job: Dossier, answer: Answer, found: Findings) -> None:
    for one in job.executions:
        if one.started_at is not None and case.in_files_time(one.started_at) > answer.at + int(SOON * SECOND):
            told = f"attempt {one.attempt} of job {job.id} started after the job was cancelled"
            found.broken(1, told, at=answer.at, job=job.id)
        elif one.started_at is not None and one.outcome == "succeeded":
            found.allow("ran though cancelled")


def asks_without_answer(case: Case, found: Findings) -> None:
    """What was rolled back left nothing; what is unknown is whole or absent."""
    for answer in case.unresolved.values():
        ask = case.asks.get(answer.ask)
        label = ask.label if ask is not None else ""
        jobs = set(case.by_label.get(label, ())) if label else set()
        orders = case.orders.get(answer.ask, [])
        jobs |= {order.job for order in orders}
        if answer.job is not None and answer.job in case.jobs and not case.jobs[answer.job].asked:
            jobs |= {answer.job} if case.jobs[answer.job].has_left_traces else set()
        if answer.what == "rolled back" and (jobs or orders):
            job = min(jobs, default=None)
            found.broken(1, f"ask {answer.ask} was rolled back, and has left {_what(jobs, orders)}", at=answer.at, job=job)
        elif answer.what == "unknown":
            _unknown(case, answer, ask, jobs, found)


def _what(jobs: set[str], orders: object) -> str:
    told = [f"job {job}" for job in sorted(jobs)]
    return " and ".join(told + (["an order"] if orders else []))


def _unknown(case: Case, answer: Answer, ask: Ask | None, jobs: set[str], found: Findings) -> None:
    """A commit whose answer was lost: all of it is there, or nothing."""
    if jobs and ask is not None and not ask.commits:
        told = f"ask {ask.ask} was to be rolled back, and has left {_what(jobs, case.orders.get(ask.ask))}"
        found.broken(1, told, at=answer.at, job=min(jobs))
        return
    found.allow("unknown and whole" if jobs else "unknown and absent")
    if ask is None or ask.kind not in IN_TRANSACTION or not jobs:
        return
    ordered = [order.job for order in case.orders.get(ask.ask, [])]
    traced = [job for job in jobs if case.jobs[job].has_left_traces]
    if len(ordered) != 1 or traced != ordered:
        told = f"ask {ask.ask} is half there: its order is written {len(ordered)} times, its jobs are {sorted(traced)}"
        found.broken(1, told, at=answer.at, job=min(jobs))


# 2. No double start


def no_double_start(case: Case, job: Dossier, found: Findings) -> None:
    """Of each attempt one delivery is let in at most."""
    seen: dict[int, int] = {}
    for line in job.lines("began"):
        seen[line.attempt] = seen.get(line.attempt, 0) + 1
        if seen[line.attempt] == 2:
            told = f"attempt {line.attempt} of job {job.id} was let in twice"
            found.broken(2, told, at=line.at, job=job.id)
    recorded = [one.attempt for one in job.executions]
    for attempt in sorted({one for one in recorded if recorded.count(one) > 1}) if len(recorded) > 1 else ():
        found.broken(2, f"attempt {attempt} of job {job.id} is recorded twice", at=when(case, job), job=job.id)


def keys_succeed_once(case: Case, found: Findings) -> None:
    """While a key is kept, it succeeds once, and no delivery with it is let in afterwards."""
    by_key: dict[tuple[str, str], list[Dossier]] = {}
    for job in case.jobs.values():
        if job.key is not None:
            by_key.setdefault((job.task, job.key), []).append(job)
    for (task, key), jobs in by_key.items():
        kept_for = _kept_for(case, jobs)
        successes = sorted((one.completed_at, one) for job in jobs for one in job.executions if one.outcome == "succeeded")
        for done_at, success in successes:
            _is_kept(case, task, key, success, kept_for, found)
            for job in jobs:
                _started_later(case, job, key, success, done_at + kept_for, found)


def _kept_for(case: Case, jobs: list[Dossier]) -> timedelta:
    kept = [key.kept_until - key.done_at for job in jobs for key in job.keys]
    if kept:
        return kept[0]
    settings = case.history.run.get("settings") or {}
    stated = settings.get("tm_keep_keys")
    return timedelta(seconds=float(stated)) if isinstance(stated, (int, float)) else timedelta(hours=1)


def _is_kept(case: Case, task: str, key: str, success: Execution, kept_for: timedelta, found: Findings) -> None:
    """A success keeps its key, until the retention has ended."""
    last = case.last_written
    keepers = case.kept.get((task, key), set())
    if success.job not in keepers and success.completed_at + kept_for > last:
        told = f"key {key!r} succeeded in job {success.job}, and is not kept for it"
        found.broken(2, told, at=case.in_files_time(success.completed_at), job=success.job, key=key)


def _started_later(case: Case, job: Dossier, key: str, success: Execution, until: datetime, found: Findings) -> None:
    done_at = success.completed_at
    for one in job.executions:
        if one.started_at is None or one is success:
            continue
        if done_at < one.started_at < until:
            told = f"attempt {one.attempt} of job {job.id} was let in after key {key!r} had succeeded in job {success.job}"
            found.broken(2, told, at=case.in_files_time(one.started_at), job=job.id, key=key)
        elif one.started_at <= done_at and one.outcome == "succeeded" and done_at < one.completed_at < until:
            told = f"key {key!r} succeeded twice: in job {success.job}, and in job {job.id}"
            found.broken(2, told, at=case.in_files_time(one.completed_at), job=job.id, key=key)
        elif any(line.at > case.in_files_time(done_at) for line in job.lines("began", one.attempt)):
            found.allow("let in before")


# 3. Stale workers cannot finish


def no_stale_end(case: Case, job: Dossier, found: Findings) -> None:
    """A job ends once, by the worker that was let in, and its attempts follow each other."""
    at = when(case, job)
    ends = job.ends()
    if len(ends) > 1:
        found.broken(3, f"job {job.id} ended more than once: {', '.join(ends)}", at=at, job=job.id)
    attempts = [one.attempt for one in job.executions]
    if attempts and sorted(set(attempts)) != list(range(1, max(attempts) + 1)):
        found.broken(3, f"attempts of job {job.id} are missing: there are {attempts}", at=at, job=job.id)
    for place, one in enumerate(job.executions):
        if one.outcome in ENDS and place + 1 < len(job.executions):
            later = job.executions[place + 1]
            told = f"job {job.id} ended with attempt {one.attempt}, {one.outcome}, and attempt {later.attempt} came after"
            found.broken(3, told, at=at, job=job.id)
        _was_let_in(case, job, one, found)
    for letter in job.letters:
        if letter.attempt not in (attempts[-1:] or [letter.attempt]):
            told = f"job {job.id} was buried at attempt {letter.attempt}, and its last attempt is {attempts[-1]}"
            found.broken(3, told, at=at, job=job.id)
    recorded = set(attempts)
    for line in job.lines("began"):
        if line.attempt not in recorded and not job.rows:
            told = f"attempt {line.attempt} of job {job.id} began, and is not recorded"
            found.broken(3, told, at=line.at, job=job.id)


def _was_let_in(case: Case, job: Dossier, one: Execution, found: Findings) -> None:
    """A record is that of the worker whose body ran."""
    at = case.in_files_time(one.completed_at)
    began = job.lines("began", one.attempt)
    if one.started_at is None:
        if began or (one.outcome not in NOT_STARTED and not case.is_plain(one.task)):
            told = f"attempt {one.attempt} of job {job.id} is recorded as {one.outcome} without a start"
            found.broken(3, told, at=at, job=job.id)
        else:
            found.allow("never started")
        return
    if job.is_run:
        return
    for line in began:
        if line.worker != one.worker or (one.worker or "").rpartition(":")[2] != str(line.pid):
            told = (
                f"attempt {one.attempt} of job {job.id} ran on {line.worker}, process {line.pid}; its end is {one.worker}'s"
            )
            found.broken(3, told, at=at, job=job.id)
    if not began and one.outcome == "failed":
        found.broken(3, f"attempt {one.attempt} of job {job.id} failed, and no body began", at=at, job=job.id)
    _note_allowed(job, one, bool(began), found)


def _note_allowed(job: Dossier, one: Execution, began: bool, found: Findings) -> None:
    ended = bool(job.lines("ended", one.attempt))
    if one.outcome in ("orphaned", "interrupted", "timeout") and not began:
        found.allow("died before its body")
    elif one.outcome == "orphaned" and ended:
        found.allow("late body")
    elif one.outcome == "orphaned":
        found.allow("ran again")
    elif one.outcome == "interrupted":
        found.allow("handed back")
    elif one.outcome == "failed" and ended:
        found.allow("failed at its commit")


# 4. Exactly-once effects


def effects_once(case: Case, job: Dossier, found: Findings) -> None:
    """What a transactional body wrote is there once if its job succeeded, by that attempt, and else not at all."""
    kinds = {ask.kind for ask, _ in job.asked if ask is not None}
    if not job.marks and job.task != TRANSACTIONAL and TRANSACTIONAL not in kinds:
        return
    at = when(case, job)
    done = [one.attempt for one in job.executions if one.outcome == "succeeded"]
    written = sorted(mark.attempt for mark in job.marks)
    if written == done[:1]:
        return
    if not done:
        told = f"job {job.id} has not succeeded, and the writes of its attempt {written[0]} are there"
    elif not written:
        told = f"job {job.id} succeeded, and what it wrote is not there"
    elif len(written) > 1:
        told = f"what job {job.id} wrote is there {len(written)} times, of attempts {written}"
    else:
        told = f"attempt {done[0]} of job {job.id} succeeded, and the writes are those of attempt {written[0]}"
    found.broken(4, told, at=at, job=job.id)
