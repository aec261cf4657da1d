"""Why a definition ran, ran late or did not run at an instant, in plain words. Facts go in, sentences come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from ..clock import format_duration
from .backfill import WORD
from .clock_explanation import clock_lines, given_by, no_such_time
from .definition import Definition
from .dst import Gap, Transition
from .execution import Execution
from .job import Job, JobState, Slot
from .occurrence import Occurrence, OccurrenceState
from .overrides import describe
from .queues import publish_error
from .run_explanation import Change, attempts_told, lines_of, stamp, standing_of, took_of
from .waiting_edits import coming
from .workflow import TASK

LATE = timedelta(seconds=5)
ARGUMENTS = ("args", "kwargs", "steps")  # named and not told: what may be shown of them is not decided here
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """All that the database knows about one instant of a definition."""

    name: str
    at: datetime
    now: datetime
    definition: Definition | None = None
    rule: Definition | None = None  # the same as it is for that instant, where a waiting edit changes it before
    removed: Change | None = None
    created_at: datetime | None = None
    version: Change | None = None  # the one in force at that instant
    switches: Sequence[Change] = ()  # what paused, disabled or retired it, the latest first
    started_by: Change | None = None  # who ran it by hand
    is_manual: bool = False
    wall: datetime | None = None  # the local time that was asked about, where clocks were changed then
    clock_change: Transition | None = None
    occurrence: Occurrence | None = None
    executions: Sequence[Execution] = field(default_factory=list)
    job: Job | None = None
    report: Mapping[str, Any] | None = None  # of a run of a workflow
    step_jobs: Mapping[str, Job] = field(default_factory=dict)  # those of its steps that are owed, by name
    letter_error: str | None = None
    ahead_in_line: int = 0
    slot_is_free: bool = False  # of the key for which its job waits
    before: datetime | None = None  # the schedule's neighbours of the instant
    after: datetime | None = None
    closed_by: str | None = None
    beat_seen_at: datetime | None = None
    beat_since: datetime | None = None  # when the first of the beats that are known was started


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The answer in one sentence, and what it rests on."""

    name: str
    at: datetime
    answer: str
    lines: Sequence[str] = field(default_factory=list)
    occurrence: Occurrence | None = None

    def __str__(self) -> str:
        return "\n".join([self.answer, *(f"  - {line}" for line in self.lines)])


def explained(facts: Facts) -> Explanation:
    """Return why things are as they are."""
    if facts.occurrence is not None:
        answer, lines = _of_occurrence(facts, facts.occurrence)
    elif facts.definition is None:
        answer, lines = _of_nothing(facts), []
    else:
        answer, lines = _of_silence(facts, facts.definition)
    return Explanation(
        name=facts.name,
        at=facts.at,
        answer=answer,
        lines=[*clock_lines(facts.wall, facts.clock_change, facts.at), *lines, *_context(facts)],
        occurrence=facts.occurrence,
    )


def of_broken(facts: Facts, definition: Definition, problem: str) -> Explanation:
    """Say that a definition cannot be planned, why, and what to do; its instants stay undecided until then."""
    name, since = facts.name, stamp(definition.planned_until)
    answer = f"{name!r} cannot be planned on this node: {problem}. Its times after {since} are not decided yet."
    lines = [
        "they are decided when a beat can read it: install what is missing, or correct it with "
        f"`celery -A app tm definitions edit {name} …`",
        f"`celery -A app tm definitions remove {name}` removes it",
    ]
    return Explanation(name=name, at=facts.at, answer=answer, lines=[*lines, *_context(facts)])


def _of_nothing(facts: Facts) -> str:
    if facts.removed is not None:
        return f"{facts.name!r} was {facts.removed.told()}."
    return f"There is no definition named {facts.name!r}, and no record of one."


def _of_silence(facts: Facts, definition: Definition) -> tuple[str, list[str]]:
    """Say why the ledger has nothing about the instant."""
    name, at = facts.name, stamp(facts.at)
    reason = next((why for applies, why in _silences(facts, definition) if applies), None)
    if reason is not None:
        did_not = "does not run" if facts.at > facts.now else "did not run"
        return f"{name!r} {did_not} at {at}: {reason}.", _neighbours(facts)
    if facts.at > facts.now:
        return f"{at} is still to come; {_coming(facts, definition)}.", _neighbours(facts)
    return f"{name!r} had nothing to run at {at}: its schedule yields no instant then.", _neighbours(facts)


def _silences(facts: Facts, definition: Definition) -> list[tuple[bool, str]]:
    at, created, rule = facts.at, facts.created_at or definition.created_at, facts.rule or definition
    before, decided = facts.before, definition.planned_until
    due = before is not None and decided < before <= facts.now
    unknown = before is not None and before <= decided and at - before < MINUTE
    ended = rule.ends_at is not None and at > rule.ends_at
    waits = rule.starts_at is not None and at < rule.starts_at
    retired = definition.retired_at is not None and at >= definition.retired_at
    spent = rule.is_spent and at > decided
    skipped = facts.clock_change is not None and facts.clock_change.is_gap and rule.gap is Gap.SKIP
    return [
        (at < created, f"it was added later, at {stamp(created)}"),
        (retired, _retired(facts, definition.retired_at)),
        (waits, f"it starts only at {_both(facts, rule.starts_at)}"),
        (ended, f"it ended at {_both(facts, rule.ends_at)}"),
        (spent, f"it has run {_times(rule.runs)}, and max_runs={rule.max_runs} allows no more"),
        (skipped, f"{no_such_time(facts.wall, facts.clock_change)}, and gap=skip leaves it out"),
        (facts.closed_by is not None, f"that time is excluded by {facts.closed_by}"),
        (due, f"its instant {_both(facts, before)} has come, but no beat has decided it yet; {_beat(facts)}"),
        (
            unknown,
            f"its present schedule yields {_both(facts, before)}, but nothing is recorded for it; "
            "another version was in force then, or its record was pruned",
        ),
    ]


def _coming(facts: Facts, definition: Definition) -> str:
    following = next(coming(definition, since=facts.now), None)
    if following is None:
        return f"no run of {facts.name!r} is planned any more"
    return f"the next run of {facts.name!r} is at {_both(facts, following)}"


def _retired(facts: Facts, at: datetime | None) -> str:
    return f"it was {_switch(facts, 'retired') or f'retired at {stamp(at or facts.at)}'}"


def _switch(facts: Facts, how: str | None, *, until: datetime | None = None) -> str | None:
    """Say who paused, disabled or retired it last, or last until a time."""
    found = (one for one in facts.switches if one.action == how and (until is None or one.at <= until))
    return next((one.told() for one in found), None)


def _beat(facts: Facts) -> str:
    if facts.beat_seen_at is None:
        return "no beat was ever seen, start one with `celery -A app beat -S celery_tm.Scheduler`"
    return f"the last beat was seen at {stamp(facts.beat_seen_at)}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _neighbours(facts: Facts) -> list[str]:
    lines = []
    if facts.before is not None:
        lines.append(f"the instant before was {_both(facts, facts.before)}")
    if facts.after is not None:
        lines.append(f"the next instant is {_both(facts, facts.after)}")
    return lines


def _both(facts: Facts, instant: datetime | None) -> str:
    """Return an instant in UTC and, where that differs, in the definition's own time."""
    if instant is None:
        return "never"
    zone = facts.definition.timezone if facts.definition else "UTC"
    if zone == "UTC":
        return stamp(instant)
    try:
        local = instant.astimezone(ZoneInfo(zone))
    except (LookupError, ValueError, OSError):  # a zone that this node lacks
        return stamp(instant)
    return f"{stamp(instant)} ({local:%H:%M:%S} in {zone})"


def _of_occurrence(facts: Facts, occurrence: Occurrence) -> tuple[str, list[str]]:
    answer = f"{facts.name!r} {_by_hand(facts, occurrence) or _VERBS[occurrence.state](facts, occurrence)}"
    steps = lines_of(facts.report, facts.step_jobs) if facts.report is not None else attempts_told(facts.executions)
    own = [f"values of this run only: {describe(occurrence.overrides)}"] if occurrence.overrides else []
    return answer, [*_timing(facts, occurrence), *given_by(facts.definition, occurrence), *own, *steps]


def _by_hand(facts: Facts, occurrence: Occurrence) -> str | None:
    """Say of a run outside the schedule who started it and why, and what became of it."""
    by = facts.started_by
    if by is None and not facts.is_manual:
        return None
    who = f" by {by.actor}" if by else next((f" by {one.actor}" for one in facts.executions if one.actor), "")
    why = f" ({by.reason!r})" if by and by.reason else ""
    how = "replayed" if occurrence.replay_of else "started by hand"
    begun = f"was {how} at {_due(facts, occurrence)}{who}{why}, outside its schedule"
    if occurrence.state is not OccurrenceState.COMPLETED:
        return f"{begun}: it {_VERBS[occurrence.state](facts, occurrence)}"
    started, ended = occurrence.started_at, occurrence.ended_at
    return f"{begun}: it completed{f' and took {took_of(ended - started)}' if started and ended else ''}."


def _ran(facts: Facts, occurrence: Occurrence) -> str:
    started, ended = occurrence.started_at, occurrence.ended_at
    if started is None:
        return f"was due at {_due(facts, occurrence)} and was {occurrence.reason or 'completed'}."
    took = f" and took {took_of(ended - started)}" if ended else ""
    return f"ran {_how_late(occurrence, started)} for {_due(facts, occurrence)}{took}: it completed."


def _due(facts: Facts, occurrence: Occurrence) -> str:
    return _both(facts, occurrence.scheduled_at)


def _how_late(occurrence: Occurrence, started: datetime) -> str:
    late = started - occurrence.scheduled_at
    return "on time" if late <= LATE else f"{took_of(late)} late"


def _failed(facts: Facts, occurrence: Occurrence) -> str:
    latest = sorted(facts.executions, key=lambda one: -one.attempt)
    error = facts.letter_error or next((one.error for one in latest if one.error), None) or occurrence.reason
    error = error if facts.report is None else occurrence.reason  # which names the step
    return f"ran for {_due(facts, occurrence)} and failed: {_sentence(error or 'no error was recorded')}"


def _sentence(text: str) -> str:
    """Return a text of others as the end of a sentence: its first line, with one full stop."""
    lines = text.strip().splitlines() or [""]
    return f"{lines[0].rstrip(' .')}{' …' if len(lines) > 1 else '.'}"


def _stale(facts: Facts, occurrence: Occurrence) -> str:
    why = occurrence.reason or "it ran for too long"
    return f"ran for {_due(facts, occurrence)} and was given up: {_sentence(why.removeprefix('stale: '))}"


def _cancelled(facts: Facts, occurrence: Occurrence) -> str:
    return f"was due at {_due(facts, occurrence)} and was cancelled: {_sentence(occurrence.reason or 'no reason was given')}"


def _running(facts: Facts, occurrence: Occurrence) -> str:
    started, job = occurrence.started_at, facts.job
    if job is not None and job.state is not JobState.RUNNING and job.retries:
        again = f"attempt {job.attempt} is due at {stamp(job.run_at)}"
        error = publish_error(job)
        unsent = "" if error is None else f" It was not published: {_sentence(error)}"
        return f"ran for {_due(facts, occurrence)} and is tried again: {again}.{unsent}"
    since = f", since {stamp(started)} ({_how_late(occurrence, started)})" if started else ""
    if facts.report is not None:
        return f"is running for {_due(facts, occurrence)}{since}: {_sentence(standing_of(facts.report))}"
    where = f", on {job.claimed_by}" if job and job.claimed_by and job.state is JobState.RUNNING else ""
    return f"is running for {_due(facts, occurrence)}{since}{where}."


def _waiting(facts: Facts, occurrence: Occurrence) -> str:
    due = _due(facts, occurrence)
    if occurrence.decided_at is None:
        return f"is planned for {due}; nothing is decided until then."
    job = facts.job
    if job is None:
        return f"was due at {due} and is recorded as {occurrence.state}, but its job is gone; a replay runs it."
    if (error := publish_error(job)) is not None:
        again = f"a beat tries again at {stamp(job.run_at)}" if job.run_at > facts.now else "a beat tries again"
        return f"was due at {due} and was not published: {_sentence(error)} No worker has its message; {again}."
    if job.slot is Slot.HELD:
        line = f", and {facts.ahead_in_line} more wait before it" if facts.ahead_in_line else ""
        return f"was due at {due} and waits for its turn: {_taken(facts, job)}{line}."
    if job.state is JobState.DISPATCHED and job.task == TASK:
        return f"was due at {due} and is about to start: {job.claimed_by} has claimed it."
    if job.state is JobState.DISPATCHED:
        return f"was due at {due} and waits for a free worker: its message was sent {_times(job.dispatches)}."
    if job.run_at > facts.now:
        return f"was due at {due} and is to run at {_both(facts, job.run_at)}."
    return f"has been due since {due} and waits for a beat to send it; {_beat(facts)}."


def _taken(facts: Facts, job: Job) -> str:
    if facts.slot_is_free:
        return f"a slot is free, and a beat lets the next job go on within some seconds; {_beat(facts)}"
    if (job.concurrency_key or "").startswith("definition:"):
        return "an earlier run of it has not ended"
    slots = "the only slot" if job.concurrency == 1 else f"all {job.concurrency} slots"
    return f"{slots} of concurrency_key {job.concurrency_key!r} {'is' if job.concurrency == 1 else 'are'} taken"


def _did_not_run(facts: Facts, occurrence: Occurrence) -> str:
    return f"did not run for {_due(facts, occurrence)}: {_sentence(occurrence.reason or str(occurrence.state))}"


_VERBS: Mapping[OccurrenceState, Callable[[Facts, Occurrence], str]] = {
    OccurrenceState.PENDING: _waiting,
    OccurrenceState.QUEUED: _waiting,
    OccurrenceState.RUNNING: _running,
    OccurrenceState.COMPLETED: _ran,
    OccurrenceState.FAILED: _failed,
    OccurrenceState.CANCELLED: _cancelled,
    OccurrenceState.STALE: _stale,
    OccurrenceState.SKIPPED: _did_not_run,
    OccurrenceState.MISSED: _did_not_run,
    OccurrenceState.COALESCED: _did_not_run,
}


def _timing(facts: Facts, occurrence: Occurrence) -> list[str]:
    """Say when it was decided and started, and what made it late."""
    lines = []
    if occurrence.decided_at is not None:
        late = occurrence.decided_at - occurrence.scheduled_at
        how = f", {took_of(late)} after its instant: {_why_decided_late(facts, occurrence)}" if late > LATE else ""
        lines.append(f"decided at {stamp(occurrence.decided_at)} under version {occurrence.version}{how}")
    if occurrence.replay_of is not None:
        lines.append(f"it is a replay of occurrence {occurrence.replay_of}")
    if occurrence.covers_from and occurrence.covers_until and occurrence.is_recovery:
        lines.append(f"it stands for all from {stamp(occurrence.covers_from)} until {stamp(occurrence.covers_until)}")
    if occurrence.started_at and occurrence.decided_at:
        wait = occurrence.started_at - max(occurrence.decided_at, occurrence.scheduled_at)
        if wait > LATE:
            lines.append(f"started at {stamp(occurrence.started_at)}, after {took_of(wait)} of waiting{_because(facts)}")
    if occurrence.reason and occurrence.state in (OccurrenceState.COMPLETED, OccurrenceState.RUNNING):
        lines.append(occurrence.reason)
    return lines


def _why_decided_late(facts: Facts, occurrence: Occurrence) -> str:
    """Say what is known of why: a backfill, since nobody else decides what was before there was a rule; or of beats.

    A beat that was running may not have been able to read or lock the definition. One that has stopped leaves no trace.
    """
    backfilled = (occurrence.reason or "").startswith(WORD) or occurrence.replay_of is not None
    if backfilled or (facts.created_at is not None and occurrence.scheduled_at < facts.created_at):
        return "it was backfilled"
    if facts.beat_since is not None and facts.beat_since <= occurrence.scheduled_at:
        return "a beat was running, but could not read or lock the definition before, or had too much to do"
    return "no beat is known to have been planning before"


def _because(facts: Facts) -> str:
    definition = facts.definition
    if definition is None:
        return ""
    causes = [
        (definition.jitter is not None, f"jitter of up to {format_duration(definition.jitter or SECOND)}"),
        (definition.recovery_spacing is not None, "the spacing of recovered runs"),
        (definition.overlap not in ("allow", "skip"), "an earlier run"),
    ]
    found = [cause for applies, cause in causes if applies]
    return f" (for {' or '.join([*found, 'a free worker'])})" if found else " for a free worker"


def _context(facts: Facts) -> list[str]:
    """Say by which rule it goes, who made it, and what switched it off."""
    lines = []
    definition = facts.definition
    if facts.version is not None:
        rule = facts.version.stated.get("schedule") if facts.version.stated else None
        rule = rule.get("expression") if isinstance(rule, Mapping) else rule
        schedule = f" (schedule {rule!r})" if rule else ""
        lines.append(f"version {facts.version.version} was in force{schedule}: {facts.version.told()}")
    if definition is not None:
        lines.append(f"now: {definition.meaning}, version {definition.version}")
        edit = None if definition.problem else definition.waiting_edit
        if edit is not None:
            values = ", ".join(name if name in ARGUMENTS else f"{name}={value!r}" for name, value in edit.values.items())
            when = f"at {stamp(edit.at)}" if edit.at else f"after the run at {stamp(edit.after)}"
            lines.append(f"an edit takes over {when}: {values}")
        off = "paused" if definition.paused else None if definition.enabled else "disabled"
        if off:
            lines.append(f"it is {off} now" + (f": {told}" if (told := _switch(facts, off)) else ""))
        then = _switch(facts, _off_then(facts), until=facts.occurrence.decided_at if facts.occurrence else None)
        if then and then != _switch(facts, off):
            lines.append(f"it was {then}" + ("" if off else ", and is on again"))
    return lines


def _off_then(facts: Facts) -> str | None:
    """Return what had switched the definition off at its instant, if that is why it did not run."""
    reason = facts.occurrence.reason if facts.occurrence else None
    return next((how for how in ("paused", "disabled") if reason == f"the definition was {how}"), None)
