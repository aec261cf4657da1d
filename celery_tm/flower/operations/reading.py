"""What the API tells: status, definitions, jobs, history, dead letters, audit. Nothing here changes anything."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from ...clock import as_utc
from ...domain.dst import local_or_utc
from ...domain.execution import Outcome
from ...domain.job import JobState, Source
from ...domain.occurrence import OccurrenceState
from ...domain.paging import checked_limit
from ...domain.scope import read_refs
from ...errors import DefinitionNotFound, InvalidValue
from ...management.occurrence_story import occurrence_story
from ...presentation import plain
from ...presentation.rows import coming_times
from ...presentation.shapes.schema import anything, mapping, ref
from . import asking
from .answers import AFTER, BEFORE, COMING, FORECAST, GROUPS, LIMIT, all_of, page_of, paged, span
from .asking import Asked, Operation, Parameter

MOST_COMING = 1_000
MOST_VERSIONS = 1_000
DEFINITION = "/api/tm/definitions/{name}"


def _words(name: str, about: str, values: Any) -> Parameter:
    return asking.text(name, about, enum=[str(value) for value in values])


INSTANTS = (
    _words("state", "only those that stand so", OccurrenceState),
    asking.flag("troubled", "only those that failed, are stale, or were missed, skipped or cancelled"),
    *span("instants"),
    BEFORE,
    LIMIT,
)
HISTORY = (
    asking.text("task", "only of this task"),
    _words("outcome", "only those that ended so", Outcome),
    _words("source", "only of jobs that came from there", Source),
    asking.text("entity_id", "only about this"),
    asking.names("scope", "only of jobs with these references in their scope, each as name=value"),
    asking.text("worker", "only on this worker"),
    *span("those that ended"),
    BEFORE,
    LIMIT,
)
LETTERS = (
    asking.text("task", "only of this task"),
    asking.text("definition", "only of this definition"),
    asking.text("error", "only with this text in the last error or the reason"),
    *span("those buried"),
)


def status(asked: Asked) -> Any:
    """Return how everything stands."""
    return plain(asked.tm.status())


def doctor(asked: Asked) -> Any:
    """Return what is wrong, and what to do about it."""
    return {"items": [plain(one) for one in asked.tm.doctor()]}


def definitions(asked: Asked) -> Any:
    """Return a page of the definitions, by name."""
    wanted = asked.given("group", "search", "standing", "task", "after")
    found = asked.tm.definitions.list(limit=asked.values.get("limit", 100), **wanted)
    return paged(found, map(asked.rows.definition, found))


def definition(asked: Asked) -> Any:
    """Return one definition in full."""
    name = asked.path["name"]
    found = asked.tm.definitions.get(name)
    versions = len(asked.tm.definitions.versions(name, limit=MOST_VERSIONS))
    return asked.rows.definition_in_full(found, versions=versions)


def occurrences(asked: Asked) -> Any:
    """Return a page of instants, the latest first; those of a definition if the path names one."""
    wanted = asked.given("state", "troubled", "since", "until", "before", "limit")
    found = asked.tm.occurrences(asked.path.get("name"), **wanted)
    return paged(found, asked.rows.occurrences(found))


def versions(asked: Asked) -> Any:
    """Return the versions of a definition, the latest first."""
    limit = checked_limit(asked.values.get("limit", 100))
    found = asked.tm.definitions.versions(asked.path["name"], limit=limit + 1)
    return {"items": asked.rows.versions(found, limit)}


def history(asked: Asked) -> Any:
    """Return a page of executions, the latest first; those of a definition if the path names one."""
    wanted = asked.given("task", "outcome", "source", "entity_id", "scope", "worker", "since", "until", "before", "limit")
    wanted |= {"scope": read_refs(wanted["scope"])} if "scope" in wanted else {}
    found = asked.tm.history(asked.path.get("name", asked.values.get("definition")), **wanted)
    return paged(found, asked.rows.executions(asked.tm, found))


def explain(asked: Asked) -> Any:
    """Return why a definition ran, or did not."""
    at = asked.values.get("at")
    found = asked.tm.explain(asked.path["name"], at=None if at is None else own_moment(asked, at))
    return asked.rows.explanation(found)


def coming(asked: Asked) -> Any:
    """Return the next instants of a definition."""
    count = asked.values.get("count", 10)
    if not 1 <= count <= MOST_COMING:
        raise InvalidValue("count", f"{count} is not a number of instants", f"give 1 to {MOST_COMING}")
    found = asked.tm.definitions.get(asked.path["name"])
    return {"items": coming_times(found, count)}


def effective(asked: Asked) -> Any:
    """Return the settings in force and who states each."""
    return asked.rows.redactor.calls(plain(asked.tm.effective(asked.path["name"], asked.values.get("step"))))


def groups(asked: Asked) -> Any:
    """Return the groups."""
    return {"groups": dict(asked.tm.definitions.groups())}


def jobs(asked: Asked) -> Any:
    """Return a page of the jobs that are owed."""
    found = asked.tm.jobs(**asked.given("state", "task", "definition", "entity_id", "key", "after", "limit"))
    return paged(found, map(asked.rows.job, found))


def job(asked: Asked) -> Any:
    """Return one job's story."""
    return asked.rows.story(asked.tm.job(asked.path["id"]))


def log(asked: Asked) -> Any:
    """Return a page of log lines, the oldest first."""
    found = asked.tm.log(asked.path["id"], **asked.given("after", "limit"))
    return paged(found, map(plain, found))


def occurrence(asked: Asked) -> Any:
    """Return one occurrence with its attempts and its report."""
    found = occurrence_story(asked.tm.installation, asked.path["id"])
    return {
        "occurrence": asked.rows.occurrences([found.occurrence])[0],
        "definition": found.definition,
        "executions": asked.rows.executions(asked.tm, found.executions),
        "report": plain(found.report),
    }


def letters(asked: Asked) -> Any:
    """Return a page of dead letters, the latest first."""
    found = asked.tm.dead_letters.list(**asked.given("task", "definition", "error", "since", "until", "before", "limit"))
    return paged(found, map(asked.rows.letter, found))


def letter(asked: Asked) -> Any:
    """Return one dead letter with its traceback."""
    return asked.rows.letter_in_full(asked.tm.dead_letters.get(asked.path["id"]))


def audit(asked: Asked) -> Any:
    """Return a page of the audit, the latest first."""
    found = asked.tm.audit(**asked.given("object", "actor", "action", "since", "before", "limit"))
    return paged(found, map(asked.rows.audit_line, found))


def coming_hours(asked: Asked) -> Any:
    """Return how many instants each hour to come has."""
    found = asked.tm.forecast(**asked.given("hours"))
    told = {name: getattr(found, name) for name in ("since", "hours", "totals", "counts", "estimated", "broken")}
    return plain(told)


def token(asked: Asked) -> Any:
    """Return the token that changes by a browser need."""
    return {"token": asked.token(), "header": "X-XSRFToken", "field": "_xsrf"}


def document(asked: Asked) -> Any:
    """Return the description of this API."""
    from ..openapi import document_of

    return document_of(asked.prefix)


def own_time(asked: Asked, at: Any, *, field: str) -> Any:
    """Return an instant in UTC; one without an offset is on the definition's own clocks, or UTC if it was removed."""
    return as_utc(local_or_utc(own_moment(asked, at)), field=field)


def own_moment(asked: Asked, at: datetime) -> datetime:
    """Return a time with its zone; one without an offset is on the definition's own clocks, or UTC if it was removed."""
    if at.tzinfo is not None:
        return at
    try:
        return at.replace(tzinfo=ZoneInfo(asked.tm.definitions.get(asked.path["name"]).timezone))
    except DefinitionNotFound:
        return at.replace(tzinfo=UTC)


def _get(name: str, path: str, about: str, work: Any, answer: Any, *parameters: Parameter) -> Operation:
    return Operation(name=name, method="GET", path=path, about=about, work=work, answer=answer, parameters=parameters)


READING: tuple[Operation, ...] = (
    _get("status", "/api/tm/status", "How everything stands.", status, ref("Status")),
    _get("doctor", "/api/tm/doctor", "What is wrong, and what to do.", doctor, all_of("Finding", "what was looked at")),
    _get(
        "definitions", "/api/tm/definitions", "A page of the definitions, by name.", definitions,
        page_of("Definition", "definitions by name"),
        asking.text("search", "only those with this text in their name or task"),
        asking.text("group", "only of this group"),
        asking.text("standing", "only those that are so", enum=["on", "paused", "disabled", "retired"]),
        asking.text("task", "only of this task"), AFTER, LIMIT,
    ),
    _get("definition", DEFINITION, "One definition in full.", definition, ref("DefinitionInFull")),
    _get(
        "occurrences", f"{DEFINITION}/occurrences", "A page of its instants and what was decided, the latest first.",
        occurrences, page_of("Occurrence", "instants, the latest first"), *INSTANTS,
    ),
    _get(
        "versions", f"{DEFINITION}/versions", "Its versions and what each changed.", versions,
        all_of("Version", "versions, the latest first"), LIMIT,
    ),
    _get(
        "definition_history", f"{DEFINITION}/history", "A page of its executions, also after it was removed.", history,
        page_of("Execution", "executions, the latest first"), *HISTORY,
    ),
    _get(
        "explain", f"{DEFINITION}/explain", "Why it ran, ran late or did not run.", explain, ref("Explanation"),
        asking.own_instant("at", "the instant; unset: its latest"),
    ),
    _get(
        "coming", f"{DEFINITION}/coming", "Its next instants, in UTC and on its own clocks.", coming, COMING,
        asking.whole("count", "how many, 1 to 1000; unset: 10", minimum=1, maximum=MOST_COMING),
    ),
    _get(
        "effective", f"{DEFINITION}/effective", "The settings that its steps run with and who states each.", effective,
        mapping("settings by name, or without `step` the same for each step", anything("a setting or those of a step")),
        asking.text("step", "only of this step"),
    ),
    _get("groups", "/api/tm/groups", "The groups, and how many definitions each has.", groups, GROUPS),
    _get(
        "jobs", "/api/tm/jobs", "A page of the jobs that are owed, those due first in front.", jobs,
        page_of("Job", "jobs, those due first in front"),
        _words("state", "only those in this state", JobState),
        asking.text("task", "only of this task"), asking.text("definition", "only of this definition"),
        asking.text("entity_id", "only about this"), asking.text("key", "only with this key"), AFTER, LIMIT,
    ),
    _get("job", "/api/tm/jobs/{id}", "One job's story, also after its row is gone.", job, ref("JobStory")),
    _get(
        "log", "/api/tm/jobs/{id}/log", "What a job's attempts, or one execution, said.", log,
        page_of("LogLine", "log lines, the oldest first"), AFTER, LIMIT,
    ),
    _get(
        "history", "/api/tm/history", "A page of executions, the latest first.", history,
        page_of("Execution", "executions, the latest first"), asking.text("definition", "only of this definition"), *HISTORY,
    ),
    _get(
        "all_occurrences", "/api/tm/occurrences", "A page of the instants of all definitions, the latest first.",
        occurrences, page_of("Occurrence", "instants, the latest first"), *INSTANTS,
    ),
    _get(
        "occurrence", "/api/tm/occurrences/{id}", "One occurrence, its attempts and, of a workflow, its report.", occurrence,
        ref("OccurrenceInFull"),
    ),
    _get(
        "dead_letters", "/api/tm/dead-letters", "A page of the dead letters, the latest first.", letters,
        page_of("DeadLetter", "dead letters, the latest first"), *LETTERS, BEFORE, LIMIT,
    ),
    _get(
        "dead_letter", "/api/tm/dead-letters/{id}", "One dead letter with its traceback.", letter, ref("DeadLetterInFull")
    ),
    _get(
        "audit", "/api/tm/audit", "A page of who changed what, the latest first.", audit,
        page_of("AuditLine", "changes, the latest first"),
        asking.text("object", "only about this, e.g. definition:nightly"), asking.text("actor", "only by this user"),
        asking.text("action", "only of this kind, e.g. pause"),
        asking.instant("since", "only at or after this"), BEFORE, LIMIT,
    ),
    _get(
        "forecast", "/api/tm/forecast", "How many instants each hour to come has.", coming_hours, FORECAST,
        asking.whole("hours", "how many hours ahead, 1 to 744; unset: a week", minimum=1, maximum=744),
    ),
    _get("token", "/api/tm/token", "A token for changes by a browser or a program with cookies.", token, ref("Token")),
    _get(
        "openapi", "/api/tm/openapi.json", "This description.", document, mapping("an OpenAPI 3.1 document"),
    ),
)  # fmt: skip
