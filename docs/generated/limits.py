"""The page about limits: how long what people give and bodies say may be, from the constants that hold them to it."""

from __future__ import annotations

from celery_tm.clock import MAX_DURATION
from celery_tm.domain.calendar import MAX_ENTRIES
from celery_tm.domain.codec import MAX_BYTES
from celery_tm.domain.definition import MAX_DEFINITION
from celery_tm.domain.execution import (
    MAX_ERROR,
    MAX_FRAMES,
    MAX_LINES,
    MAX_MESSAGE,
    MAX_SHOWN_RESULT,
    MAX_TRACEBACK,
)
from celery_tm.domain.job import MAX_ENTITY, MAX_ID, MAX_KEY, MAX_NAME, MAX_SCOPE, MAX_TASK, MAX_WORKER
from celery_tm.domain.loads import MAX_CHUNK
from celery_tm.domain.paging import MAX_PAGE
from celery_tm.domain.run import MAX_REPORT
from celery_tm.domain.schedule.base import MAX_LENGTH
from celery_tm.domain.schedule.rrule import MAX_TEXT
from celery_tm.domain.steps import MAX_STEP_NAME, MAX_STEPS_TEXT
from celery_tm.domain.workflow import MAX_STEPS
from celery_tm.flower.routes import MAX_BODY
from celery_tm.worker.reports import AT_ONCE, EVERY

from .markdown import code, page, table


def limits_page() -> str:
    """Return the page about limits."""
    return page(
        "Limits",
        "Every text that is kept has a longest length, on every database the same, in characters. What a caller gives is "
        "refused beyond it, with an `InvalidValue` that names the field, before anything is written. What a body says is "
        "shortened: both ends are kept, and between them stands how much is missing. Characters that a database does not "
        "store (NUL, half a surrogate) are replaced. Nothing that a body says or returns keeps its attempt from ending.",
        "## What callers give",
        table(("what", "most", "instead"), GIVEN),
        "A direct call (`.delay()`) whose arguments cannot be kept runs all the same, but cannot be sent again: if its "
        "worker dies, it becomes a dead letter.",
        "## What bodies say",
        table(("what", "most", "beyond that"), SAID),
        f"Progress is written every {EVERY:g} seconds at most, the latest wins. Of the lines, {AT_ONCE} are written as they "
        f"come; a body that goes on faster than one in {EVERY:g} seconds has the others gathered and written together, at "
        "the latest when its lease is renewed or its attempt ends.",
        "## What is asked for",
        table(("what", "most", "instead"), ASKED),
    )


GIVEN = [
    ("`args`, and `kwargs`, of a job", f"{MAX_BYTES:,} each, as JSON", "pass an id that the task looks up"),
    ("options of its message: headers, links, what follows", f"{MAX_BYTES:,}, as JSON", "pass ids"),
    ("`scope`", f"{MAX_SCOPE:,}, as JSON", "it is for ids"),
    ("`key`, `concurrency_key`", f"{MAX_KEY}", "hash what is longer"),
    ("`entity_id`", f"{MAX_ENTITY}", ""),
    ("a task id", f"{MAX_ID}", ""),
    ("a task's name", f"{MAX_TASK}", "refused when the task is made"),
    ("`queue`, `actor`", "255", ""),
    ("a definition's name, its group", f"{MAX_NAME}", ""),
    ("a definition, all that is stated of it", f"{MAX_DEFINITION:,}, as JSON", "pass ids"),
    ("its schedule", f"{MAX_LENGTH}; a recurrence rule {MAX_TEXT:,}", ""),
    ("a calendar, or `excluded`", f"{MAX_ENTRIES:,} entries", ""),
    (
        "steps of a workflow",
        f"{MAX_STEPS:,}, in all {MAX_STEPS_TEXT:,} as JSON, a name {MAX_STEP_NAME}",
        "defer other workflows",
    ),
    ("`chunk`", f"{MAX_CHUNK:,} jobs", ""),
    ("any duration", f"{MAX_DURATION.days:,} days", ""),
    ("the reason of a change", f"{MAX_MESSAGE:,}", "shortened"),
]
SAID = [
    ("an error: what a body raises or `report_failure` says", f"{MAX_ERROR:,}", "shortened"),
    ("its traceback", f"{MAX_TRACEBACK:,}, the last {MAX_FRAMES:,} frames", "shortened"),
    ("`report_success`, `report_progress`, a line of `log`", f"{MAX_MESSAGE:,}", "shortened"),
    ("lines of one execution, progress among them", f"{MAX_LINES:,}", "one more says that no more are kept"),
    (
        "a result that is kept with a key",
        f"{MAX_BYTES:,}, as JSON",
        f"the first and last of its representation, {MAX_SHOWN_RESULT:,} in all, as of what is no JSON",
    ),
    (
        "a step's result, for later steps",
        f"{MAX_BYTES:,}, as JSON",
        "not kept; `job.results[…]` raises `StepResultMissing`",
    ),
    ("the report of a run", f"{MAX_REPORT:,}, as JSON", "first without its tries, then without what succeeded"),
    ("a worker's name in the tables", f"{MAX_WORKER}", "its end becomes a hash"),
]
ASKED = [
    ("the body of a request to the API", f"{MAX_BODY:,} bytes", f"status {code(413)}"),
    ("rows of a page", f"{MAX_PAGE:,}", "ask for the next by its cursor"),
]
