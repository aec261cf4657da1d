"""Everything that is known about a job, a key or an occurrence, sorted by time, for somebody who is woken at night."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from faults.case import Case, Dossier, Finding
from faults.history import SECOND, Fault

NEAR = 1 * SECOND  # faults are told from so long before the first line to so long after the last one
MOST_FAULTS, MOST_JOBS, NEIGHBOURS = 60, 12, 6
Line = tuple[int, str, str]  # when, in the files' time; where it is from; what


def tell(case: Case, finding: Finding) -> str:
    """Return the story of what a finding is about, under a line that says what is wrong."""
    jobs, about = _about(case, finding)
    lines = [line for job in jobs[:MOST_JOBS] for line in of_job(case, case.jobs[job])] + about
    lines += _faults(case, lines)
    head = f"promise {finding.promise} was not kept: {finding.what}"
    if len(jobs) > MOST_JOBS:
        head += f"\n(of {len(jobs)} jobs the first {MOST_JOBS} are told)"
    seed = case.history.run.get("seed")
    head += "" if seed is None else f"\n(seed {seed})"
    return "\n".join([head, *(_shown(case, line) for line in sorted(set(lines)))])


def _about(case: Case, finding: Finding) -> tuple[list[str], list[Line]]:
    """Return the jobs that a finding is about, and what is known besides them."""
    jobs = [finding.job] if finding.job in case.jobs else []
    about: list[Line] = []
    if finding.key is not None:
        jobs += [job.id for job in case.jobs.values() if job.key == finding.key and job.id not in jobs]
        for key in case.history.keys:
            if key.key == finding.key:
                told = f"key {key.key!r} of {key.task} is kept for job {key.job} until {key.kept_until:%H:%M:%S}"
                about.append((case.in_files_time(key.done_at), "tm_key", told))
    if finding.occurrence is not None:
        about += list(_of_occurrence(case, finding.occurrence) or _neighbours(case, finding))
        jobs += [job for job in sorted(case.of_occurrence.get(finding.occurrence, ())) if job not in jobs]
    return [job for job in jobs if job is not None], about


def of_job(case: Case, job: Dossier) -> Iterator[Line]:
    """Return all lines about one job."""
    name = job.id
    for ask, answer in job.asked:
        if ask is not None:
            told = f"asks {ask.ask}: {ask.kind} {ask.label!r}, key {ask.key}, delay {ask.delay:g} s"
            yield ask.at, "asked", told
        yield (
            answer.at,
            "asked",
            f"{answer.ask} {answer.what}: job {name}, created {answer.created}, due {_time(answer.run_at)}",
        )
    for effect in job.effects:
        told = f"job {name} attempt {effect.attempt} {effect.what} on {effect.worker}, process {effect.pid} ({effect.label})"
        yield effect.at, "effects", told
    for one in job.executions:
        at = case.in_files_time
        told = f"job {name} attempt {one.attempt} on {one.worker}"
        if one.started_at is not None:
            yield at(one.started_at), "tm_execution", f"{told} was let in ({one.task}, {one.source})"
        why = one.error or one.message
        yield at(one.completed_at), "tm_execution", f"{told} {one.outcome}" + (f": {why}" if why else "")
        for line in case.logs.get(one.id, ()):
            yield at(line.at), "tm_log", f"job {name} attempt {one.attempt} {line.level}: {line.message}"
    for letter in job.letters:
        told = f"job {name} buried at attempt {letter.attempt}: {letter.reason}"
        yield case.in_files_time(letter.buried_at), "tm_dead_letter", told
    yield from _of_tables(case, job)


def _of_tables(case: Case, job: Dossier) -> Iterator[Line]:
    name = job.id
    for row in job.rows:
        told = f"job {name} is {row.state}, attempt {row.attempt}, due {_time(row.run_at)}, last error {row.last_error}"
        held = f"claimed by {row.claimed_by}, lease until {_time(row.lease_until)}"
        yield case.in_files_time(row.created_at), "tm_job", f"{told}, {held}"
    for key in job.keys:
        told = f"key {key.key!r} of {key.task} succeeded in job {name}, kept until {key.kept_until:%H:%M:%S}"
        yield case.in_files_time(key.done_at), "tm_key", told
    last = max((one.at for one in job.effects), default=0)
    for mark in job.marks:
        yield last, "chaos_effect", f"{mark.label!r} written by job {name}, attempt {mark.attempt}"
    for order in job.orders:
        yield last, "chaos_order", f"ask {order.ask} ordered job {name}"
    if job.occurrence is not None:
        yield from _of_occurrence(case, job.occurrence)


def _of_occurrence(case: Case, id: str) -> list[Line]:
    one = case.occurrences.get(id)
    if one is None:
        return []
    at, name = case.in_files_time(one.scheduled_at), case.names.get(one.definition, one.definition)
    told = f"occurrence {id} of {name}: {one.state}" + (f", because {one.reason}" if one.reason else "")
    lines = [(at, "tm_occurrence", f"{told}, ended {_time(one.ended_at)}")]
    for step in case.steps.get(id, ()):
        told = f"step {step.name} of run {id} is {step.state}, job {step.job}, {step.attempts} attempts, {step.outcome}"
        lines.append((at, "tm_step", told))
    return lines


def _neighbours(case: Case, finding: Finding) -> list[Line]:
    """Return the occurrences of a definition before and after an instant that has none."""
    name = (finding.occurrence or "").split(" ")[0]
    mine = [one for one in case.history.occurrences if case.names.get(one.definition) == name]
    mine.sort(key=lambda one: abs(case.in_files_time(one.scheduled_at) - finding.at))
    lines = [line for one in mine[:NEIGHBOURS] for line in _of_occurrence(case, one.id)]
    return [*lines, (finding.at, "schedule", f"{finding.occurrence}: no occurrence")]


def _faults(case: Case, lines: list[Line]) -> Iterator[Line]:
    """Return the faults that were made while this went on; the nearest to its lines where there are many."""
    if not lines:
        return
    since, until = min(line[0] for line in lines) - NEAR, max(line[0] for line in lines) + NEAR
    near = [one for one in case.history.faults if since <= one.at <= until]
    ended = [one for one in case.history.processes if since <= one.at <= until]
    if len(near) > MOST_FAULTS:
        times = [line[0] for line in lines]
        near.sort(key=lambda one: min(abs(one.at - at) for at in times))
        yield until, "faults", f"… and {len(near) - MOST_FAULTS} more, further from these lines"
    for one in near[:MOST_FAULTS]:
        yield one.at, "faults", _fault(one)
    for line in ended[:MOST_FAULTS]:
        yield line.at, "processes", f"{line.kind} {line.name}, process {line.pid}, {line.what}"


def _fault(one: Fault) -> str:
    pids = f", processes {' '.join(map(str, one.pids))}" if one.pids else ""
    return f"{one.what} {one.fault}: {one.kind} {one.target}{pids} {one.detail}".rstrip()


def _shown(case: Case, line: Line) -> str:
    at, source, told = line
    moment = datetime.fromtimestamp(at / SECOND + case.ahead, UTC)
    return f"  {moment:%H:%M:%S.%f}"[:-3] + f"  {source:<14} {told}"


def _time(moment: datetime | None) -> str:
    return "-" if moment is None else f"{moment:%H:%M:%S.%f}"[:-3]
