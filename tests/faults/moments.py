"""Promises 5 to 7, about time: every instant is accounted for, planned once, and by the database's clock."""

from __future__ import annotations

from datetime import datetime, timedelta

from faults.case import Case, Dossier, Findings
from faults.history import Definition, Execution, Occurrence, instant
from faults.instants import instants, is_instant

OVER = ("completed", "failed", "cancelled", "stale", "skipped", "missed", "coalesced")
NEEDS_REASON = ("cancelled", "stale", "skipped", "missed", "coalesced")
BY_HAND = ("manual", "replay")
PLANNED = ("scheduled", "recovery")
MOMENT = timedelta(milliseconds=5)  # what a database's clock may be put back by


def check_moments(case: Case, found: Findings) -> None:
    """Hold every definition, occurrence and attempt against the promises about time."""
    names = {one.name: one for one in case.history.definitions}
    for stated in case.history.run.get("definitions") or ():
        if stated["name"] in names:
            every_instant(case, stated, names[stated["name"]], found)
        else:
            told = f"definition {stated['name']!r} is not there any more"
            found.broken(5, told, at=0, occurrence=stated["name"])
    for occurrence in case.history.occurrences:
        is_decided(case, occurrence, found)
    planned_once(case, found)
    for job in case.jobs.values():
        by_the_database_s_clock(case, job, found)


# 5. Every instant is accounted for


def every_instant(case: Case, stated: dict[str, str], definition: Definition, found: Findings) -> None:
    """Each instant of a definition has an occurrence, and none has one that it does not yield."""
    there = {one.scheduled_at: one for one in case.history.occurrences if one.definition == definition.id}
    since = max(instant(stated.get("added_at")) or definition.created_at, definition.created_at)
    stopped = instant(stated.get("stopped_at"))
    until = stopped or definition.planned_until
    for moment in instants(stated["schedule"], since, until):
        if moment not in there:
            told = f"the instant {moment.isoformat()} of {definition.name!r} has no occurrence"
            name = f"{definition.name} {moment.isoformat()}"
            found.broken(5, told, at=case.in_files_time(moment), occurrence=name)
    for moment, one in there.items():
        if moment > definition.created_at and is_instant(stated["schedule"], moment):
            if stopped is not None and moment > stopped and one.state == "skipped":
                found.allow("still counted")
        elif _was_asked_for(case, one):
            found.allow("triggered")
        else:
            told = f"{definition.name!r} has an occurrence at {moment.isoformat()}, which is none of its instants"
            found.broken(5, told, at=case.in_files_time(moment), occurrence=one.id)


def _was_asked_for(case: Case, one: Occurrence) -> bool:
    """Say whether somebody asked for an occurrence by hand, or may have, as far as they were told."""
    if one.replay_of is not None or one.id in case.asked_for:
        return True
    jobs = case.of_occurrence.get(one.id, ())
    return any(run.source in BY_HAND for job in jobs for run in case.jobs[job].executions)


def is_decided(case: Case, one: Occurrence, found: Findings) -> None:
    """An occurrence is over, says why it did not run if it did not, and ended as its job did."""
    at = case.in_files_time(one.scheduled_at)
    if one.state not in OVER:
        found.broken(5, f"occurrence {one.id} is still {one.state}", at=at, occurrence=one.id)
    elif one.state in NEEDS_REASON and not one.reason:
        found.broken(5, f"occurrence {one.id} is {one.state}, and nobody says why", at=at, occurrence=one.id)
    elif one.state in ("completed", "failed"):
        jobs = [case.jobs[job] for job in case.of_occurrence.get(one.id, ())]
        roots = [job for job in jobs if job.is_run] or [job for job in jobs if not job.steps]
        ended = {run.outcome for job in roots for run in job.executions}
        if one.state == "completed" and not ended & {"succeeded", "replaced"}:
            told = f"occurrence {one.id} is completed, and no job of it succeeded"
            found.broken(5, told, at=at, occurrence=one.id)
        if one.state == "failed" and not ({"failed", "timeout"} & ended or any(job.letters for job in roots)):
            told = f"occurrence {one.id} is failed, and no job of it is"
            found.broken(5, told, at=at, occurrence=one.id)


# 6. Any number of beats


def planned_once(case: Case, found: Findings) -> None:
    """However many beats there are, an instant is planned once, and an occurrence or a step has one job."""
    seen: dict[tuple[str, datetime], str] = {}
    for one in case.history.occurrences:
        other = seen.setdefault((one.definition, one.scheduled_at), one.id)
        if other != one.id:
            told = f"the instant {one.scheduled_at.isoformat()} was planned twice, as {other} and {one.id}"
            found.broken(6, told, at=case.in_files_time(one.scheduled_at), occurrence=one.id)
    steps_of: dict[str, set[str]] = {}
    for step in case.history.steps:
        steps_of.setdefault(step.workflow, set()).add(step.job)
    roots = {run.id: run.job for run in case.history.runs}
    for id, jobs in case.of_occurrence.items():
        known = steps_of.get(id, set()) | ({roots[id]} if id in roots else set())
        extra = sorted(jobs - known) if id in roots else sorted(jobs)[1:]
        if extra:
            at = case.in_files_time(case.occurrences[id].scheduled_at) if id in case.occurrences else 0
            told = f"occurrence {id} is carried out by job {extra[0]} besides {', '.join(sorted(jobs - set(extra)))}"
            found.broken(6, told, at=at, occurrence=id, job=extra[0])
    _steps_once(case, found)
    _bodies_once(case, found)


def _steps_once(case: Case, found: Findings) -> None:
    owner: dict[str, str] = {}
    for step in case.history.steps:
        name = f"{step.workflow}/{step.name}"
        if owner.setdefault(step.job, name) != name:
            told = f"job {step.job} is step {name} and step {owner[step.job]}"
            found.broken(6, told, at=0, occurrence=step.workflow, job=step.job)


def _bodies_once(case: Case, found: Findings) -> None:
    """As the bodies tell it: of one instant of a definition only one job ran."""
    ran: dict[tuple[str | None, datetime], str] = {}
    for job in case.jobs.values():
        if not job.executions or job.executions[0].source not in PLANNED or job.steps:
            continue
        for line in job.lines("began"):
            if line.scheduled_at is None:
                continue
            other = ran.setdefault((line.label, line.scheduled_at), job.id)
            if other != job.id:
                told = (
                    f"the instant {line.scheduled_at.isoformat()} of {line.label!r} was carried out by {other} and {job.id}"
                )
                found.broken(6, told, at=line.at, job=job.id, occurrence=job.occurrence)


# 7. Database time


def by_the_database_s_clock(case: Case, job: Dossier, found: Findings) -> None:
    """Nothing starts before its time, attempts follow each other, and a lease is taken away only when it has ended."""
    due = _due(case, job, found)
    before: Execution | None = None
    for one in job.executions:
        if one.started_at is None:
            continue
        at = case.in_files_time(one.started_at)
        if due is not None and one.started_at < due - MOMENT:
            early = (due - one.started_at).total_seconds()
            told = f"attempt {one.attempt} of job {job.id} started {early:.3f} s before it was due"
            found.broken(7, told, at=at, job=job.id)
        if before is not None and one.started_at < before.completed_at - MOMENT:
            told = f"attempt {one.attempt} of job {job.id} started before attempt {before.attempt} had ended"
            found.broken(7, told, at=at, job=job.id)
        before = one
        if one.outcome in ("orphaned", "interrupted") and not job.is_run:
            _was_taken_away(case, job, one, found)


def _due(case: Case, job: Dossier, found: Findings) -> datetime | None:
    """Return the earliest time at which a job may start, as its caller was told, or as its occurrence says."""
    answers = [answer for _, answer in job.asked if answer.what == "answered" and answer.run_at is not None]
    told = [answer.run_at for answer in answers if answer.run_at is not None]
    if len(set(told)) > 1:
        found.allow("replaced pending")
    # Who made the job knows when it was due first, unless somebody replaced it and was not told.
    is_known = any(answer.created for answer in answers) and job.key not in case.unsure_keys
    times = [min(told)] if told and is_known else []
    occurrence = case.occurrences.get(job.occurrence or "")
    if occurrence is not None:
        times.append(occurrence.scheduled_at)
    return max(times, default=None)


def _was_taken_away(case: Case, job: Dossier, one: Execution, found: Findings) -> None:
    """An attempt was taken from its worker because of a fault; before its lease had ended, because that was dead."""
    assert one.started_at is not None
    at = case.in_files_time(one.completed_at)
    held = one.completed_at - one.started_at
    in_time = one.outcome == "orphaned" and held >= case.lease - MOMENT
    if next(case.explaining(one, deadly=not in_time), None) is not None:
        found.allow("taken away")
    elif in_time:
        told = f"attempt {one.attempt} of job {job.id} was taken from {one.worker}, and no fault explains it"
        found.broken(7, told, at=at, job=job.id)
    else:
        told = (
            f"attempt {one.attempt} of job {job.id} was taken from {one.worker} after {held.total_seconds():.3f} s, before "
            f"its lease of {case.lease.total_seconds():g} s had ended, and its process was not killed"
        )
        found.broken(7, told, at=at, job=job.id)
