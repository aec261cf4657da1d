"""Shapes of what is kept in the tables: definitions, occurrences, jobs, executions, dead letters, audit, log lines."""

from __future__ import annotations

from collections.abc import Mapping

from ...domain.dst import Fold, Gap
from ...domain.execution import Outcome
from ...domain.job import JobState, Slot, Source, Status
from ...domain.occurrence import OccurrenceState
from ...domain.overlap import Overlap
from ...domain.recovery import Recovery
from ...domain.workflow import Mode, Strategy
from .schema import (
    Schema,
    anything,
    flag,
    instant,
    list_of,
    mapping,
    maybe,
    one_of,
    ref,
    seconds,
    text,
    thing,
    whole,
)

RETRY = maybe(mapping("its retry policy; null: the task's own"))
ARGS = "as JSON text, redacted as `tm_redact` says"

DEFINITION: dict[str, Schema] = {
    "id": text("its id"),
    "name": text("its name"),
    "task": maybe(text("name of the task; null: it has steps")),
    "args": text(f"its arguments {ARGS}"),
    "kwargs": text(f"its named arguments {ARGS}"),
    "schedule_kind": text("kind of schedule: cron, interval, iso8601, once, window, solar, rrule, or a registered one"),
    "schedule": text("the rule as it is written"),
    "timezone": text("zone of its local times"),
    "gap": one_of("what becomes of a local time that clocks skip", Gap),
    "fold": maybe(one_of("what becomes of a local time that comes twice; null: by the kind of rule", Fold)),
    "starts_at": maybe(instant("no instant before this")),
    "ends_at": maybe(instant("no instant after this")),
    "excluded": list_of(text("a day, a range, a day of every year or week"), "days on which it does not fire"),
    "calendars": list_of(text("name of a calendar"), "calendars that it follows"),
    "jitter": maybe(seconds("the longest random delay of a dispatch")),
    "max_runs": maybe(whole("how often it may run")),
    "enabled": flag("whether it is switched on"),
    "paused": flag("whether it is stopped for a while"),
    "group": maybe(text("group to list and switch it by")),
    "queue": maybe(text("queue of its jobs")),
    "priority": maybe(whole("priority of its messages")),
    "max_retries": maybe(whole("how many retries; null: the task's own")),
    "retry": RETRY,
    "overlap": one_of("what happens while an earlier run is owed", Overlap),
    "concurrency_key": maybe(text("what its jobs share slots under")),
    "concurrency": maybe(whole("how many slots that has")),
    "recovery": one_of("what happens to missed instants", Recovery),
    "recovery_count": maybe(whole("with `bounded`: how many of them run")),
    "recovery_within": maybe(seconds("with `bounded`: how far back")),
    "recovery_spacing": maybe(seconds("time between two that are made up for")),
    "execution_timeout": maybe(seconds("how long a run may take with all its tries")),
    "task_timeout": maybe(seconds("how long one attempt may take")),
    "expires": maybe(seconds("how late a job may start")),
    "pause_after": maybe(whole("so many failures in a row pause it")),
    "plan_ahead": maybe(seconds("how far ahead its instants are rows")),
    "options": mapping("other options of the Celery message"),
    "steps": maybe(list_of(anything("a step, or a list of steps that run together"), "steps instead of one task")),
    "mode": one_of("how the steps run", Mode),
    "failure_strategy": maybe(one_of("what a failed step means for the others", Strategy)),
    "max_parallel": maybe(whole("how many steps may run at once")),
    "terminate": flag("whether a stopped run ends the processes of its running steps"),
    "on_start": maybe(text("hook that is called when a run starts")),
    "on_complete": maybe(text("hook that is called when a run has ended")),
    "origin": maybe(text("what seeded or imported it")),
    "retired_at": maybe(instant("since when the code no longer names it")),
    "version": whole("its version; each edit adds one"),
    "next_edit": maybe(mapping("an edit that waits, as it is kept")),
    "runs": whole("how many instants have run"),
    "planned_until": instant("the last instant that is decided"),
    "planned_offset": maybe(whole("the zone's offset there as it was known, in seconds")),
    "catching_up_from": maybe(instant("since when it catches up on missed instants")),
    "spaced_until": maybe(instant("until when it leaves space between those")),
    "next_run_at": maybe(instant("the next instant")),
    "last_run_at": maybe(instant("the last instant that ran")),
    "created_at": instant("when it was added"),
    "created_by": maybe(text("by whom")),
    "updated_at": instant("when it was last changed"),
    "updated_by": maybe(text("by whom")),
    "closed": mapping("what its calendars say, by name", list_of(text("a day or range"), "its entries")),
    "is": text("on, paused, disabled or retired, and `edit waits`"),
}

BOTH_TIMES = thing(
    "an instant on two clocks",
    {"utc": instant("in UTC"), "local": text("in its own time zone"), "timezone": text("which zone that is")},
)
WAITING_EDIT = thing(
    "an edit that takes over after a run",
    {
        "values": mapping("what it states"),
        "after": instant("the run after which it holds"),
        "actor": maybe(text("who made it")),
        "reason": maybe(text("why")),
    },
)
IN_FULL: dict[str, Schema] = {
    "stated": mapping("what a person would write to get it"),
    "meaning": text("the schedule in words"),
    "coming": list_of(ref("BothTimes"), "its next instants"),
    "versions": whole("how many versions are kept"),
    "waiting_edit": maybe(ref("WaitingEdit", "the edit that waits")),
}
VERSION = thing(
    "a definition as it was stated between two edits",
    {
        "definition": text("id of the definition"),
        "version": whole("its number, from 1"),
        "at": instant("when it took effect"),
        "actor": text("who made it"),
        "action": text("by which act: add, edit, pause …"),
        "reason": maybe(text("why")),
        "stated": mapping("all that was stated"),
        "changed": mapping("the fields that differ from the version before"),
    },
)
OCCURRENCE = thing(
    "one instant of a definition and what was decided",
    {
        "id": text("its id; of a workflow the run's id too"),
        "definition": text("id of the definition"),
        "name": maybe(text("its name; null: it was removed, or there never was one")),
        "version": whole("version of the definition that decided"),
        "scheduled_at": instant("the instant"),
        "state": one_of("where it stands", OccurrenceState),
        "reason": maybe(text("why, in words")),
        "is_recovery": flag("whether it was made up for"),
        "covers_from": maybe(instant("begin of the range it stands for")),
        "covers_until": maybe(instant("end of it, not included")),
        "replay_of": maybe(text("the occurrence that it repeats")),
        "decided_at": maybe(instant("when it was decided; null: only planned ahead")),
        "started_at": maybe(instant("when it began to run")),
        "deadline_at": maybe(instant("when it becomes stale")),
        "ended_at": maybe(instant("when it ended")),
        "steps": maybe(text("of a workflow that has ended: how many steps are in each state")),
    },
)
JOB: dict[str, Schema] = {
    "id": text("its id, which is the Celery task's id too"),
    "task": text("name of the task"),
    "args": maybe(text(f"its arguments {ARGS}; null: they could not be kept")),
    "kwargs": maybe(text(f"its named arguments {ARGS}; null: they could not be kept")),
    "run_at": instant("when it is due"),
    "created_at": instant("when it was made"),
    "original_delay": seconds("how far ahead it was deferred"),
    "scheduled_at": maybe(instant("the instant of its occurrence")),
    "covers_from": maybe(instant("begin of the range it stands for")),
    "covers_until": maybe(instant("end of it, not included")),
    "state": one_of("where it stands", JobState),
    "attempt": whole("which attempt it is at, from 1"),
    "tries_from": whole("the attempt that tries are counted from"),
    "max_retries": maybe(whole("how many retries; null: no limit")),
    "retry": RETRY,
    "dedupe_key": maybe(text("its key")),
    "keep_key": maybe(seconds("how long its key refuses a second run")),
    "entity_id": maybe(text("what it is about, in the application's words")),
    "scope": maybe(mapping("references that it carries")),
    "lease_until": maybe(instant("how long its claim lasts")),
    "claimed_by": maybe(text("the node that holds it")),
    "claimed_at": maybe(instant("since when")),
    "dispatches": whole("how often this attempt was handed to the broker"),
    "queue": maybe(text("its queue; null: Celery's routing decides")),
    "priority": maybe(whole("priority of its message")),
    "expires_at": maybe(instant("after which it is too late to start")),
    "timeout": maybe(seconds("how long one attempt may take")),
    "execution_timeout": maybe(seconds("how long all attempts together may take")),
    "concurrency_key": maybe(text("what it shares slots under")),
    "concurrency": maybe(whole("how many slots that has")),
    "slot": maybe(one_of("whether it waits for a slot", Slot)),
    "occurrence": maybe(text("the occurrence that it is of")),
    "step": maybe(text("the step that it is of")),
    "source": one_of("where it came from", Source),
    "options": mapping("other options of the Celery message"),
    "cancel_requested": flag("whether it was asked to stop"),
    "progress": maybe(text("what its body last said")),
    "last_error": maybe(text("what the last attempt ended with")),
    "actor": maybe(text("who made it")),
    "ended": maybe(mapping("how its body ended, while what follows it is handed on")),
    "carrier": maybe(text("the message that it shares with other jobs")),
    "definition": maybe(text("name of the definition that it is of; null: deferred, or called directly")),
    "run": maybe(text("the run of a workflow that it belongs to")),
}
LETTER: dict[str, Schema] = {
    **JOB,
    "attempts": whole("how often it was tried"),
    "buried_at": instant("when it was given up"),
    "reason": text("why"),
}
EXECUTION = thing(
    "the record of one attempt",
    {
        "id": text("its id"),
        "job": text("the job that it was of"),
        "task": text("name of the task"),
        "source": one_of("where the job came from", Source),
        "attempt": whole("which attempt, from 1"),
        "outcome": one_of("how it ended", Outcome),
        "completed_at": instant("when it ended"),
        "started_at": maybe(instant("when it began; null: it did not")),
        "occurrence": maybe(text("the occurrence that it was of")),
        "entity_id": maybe(text("what it was about")),
        "message": maybe(text("what the body said at its end")),
        "error": maybe(text("what it failed with")),
        "traceback": maybe(text("where")),
        "worker": maybe(text("which worker ran it")),
        "actor": maybe(text("who made the job")),
        "definition": maybe(text("name of the definition that it was of")),
        "step": maybe(text("the step that it was of")),
    },
)
STORY = thing(
    "one job's life so far, also after its row is gone",
    {
        "id": text("its id"),
        "task": text("name of the task"),
        "state": one_of("what a caller is told", Status),
        "attempt": whole("which attempt it is or was at"),
        "attempt_count": whole("how many attempts began"),
        "executions": list_of(ref("Execution"), "its attempts, the latest first"),
        "job": maybe(ref("Job", "its row, while work is owed or it is a dead letter")),
        "run_at": maybe(instant("when it is due")),
        "locked_by": maybe(text("the node that holds it")),
        "locked_at": maybe(instant("since when")),
        "last_error": maybe(text("what the last attempt ended with")),
        "progress": maybe(text("what its body last said")),
        "result": anything("what it returned, while its key is kept"),
        "reason": maybe(text("why it ended as it did")),
        "definition": maybe(text("name of the definition that it is of")),
        "step": maybe(text("the step that it is of")),
        "run": maybe(text("the run of a workflow that it belongs to")),
    },
)
AUDIT_LINE = thing(
    "who changed what",
    {
        "id": whole("its number"),
        "at": instant("when"),
        "actor": text("who; SYSTEM: nobody in person"),
        "action": text("what was done"),
        "object": text("to what, e.g. definition:nightly"),
        "before": maybe(mapping("what was")),
        "after": maybe(mapping("what is")),
        "reason": maybe(text("why")),
    },
)
LOG_LINE = thing(
    "a progress or log line of an execution",
    {
        "id": whole("its number"),
        "execution": text("the execution that it is of"),
        "attempt": maybe(whole("which attempt that was")),
        "at": instant("when"),
        "level": text("progress, or a level of Python's logging"),
        "message": text("what was said"),
    },
)
CALENDAR = thing(
    "named days on which definitions do not fire",
    {
        "name": text("its name"),
        "dates": list_of(text("a day, a range, a day of every year or week"), "its days"),
        "used_by": list_of(text("name of a definition"), "definitions that follow it"),
        "updated_at": instant("when it was written"),
        "updated_by": maybe(text("by whom")),
    },
)

RECORDS: Mapping[str, Schema] = {
    "Definition": thing("a recurring rule", DEFINITION),
    "DefinitionInFull": thing("a recurring rule with what it means and what comes next", {**DEFINITION, **IN_FULL}),
    "BothTimes": BOTH_TIMES,
    "WaitingEdit": WAITING_EDIT,
    "Version": VERSION,
    "Occurrence": OCCURRENCE,
    "Job": thing("one piece of work still owed", JOB),
    "JobStory": STORY,
    "Execution": EXECUTION,
    "DeadLetter": thing("a job that will not be tried again by itself", LETTER),
    "DeadLetterInFull": thing(
        "a dead letter with its traceback", {**LETTER, "traceback": maybe(text("where it failed last"))}
    ),
    "AuditLine": AUDIT_LINE,
    "LogLine": LOG_LINE,
    "Calendar": CALENDAR,
}
