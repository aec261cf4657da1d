"""Looking at what is owed and what has become of it: filters are checked, pages are read; nothing is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..domain.checks import choice, instant, text
from ..domain.execution import Execution, Outcome
from ..domain.job import MAX_ENTITY, MAX_ID, MAX_KEY, MAX_NAME, MAX_TASK, Job, JobState, Source, checked_text
from ..domain.occurrence import TROUBLED, Occurrence, OccurrenceState
from ..domain.paging import Page, checked_limit
from ..domain.scope import checked_refs
from ..errors import DefinitionNotFound, InvalidValue, JobNotFound, nearest
from ..installation import Installation
from ..store import definitions, lists, tables
from ..store import executions as attempts
from ..store import jobs as owed
from ..store.audit import AuditLine
from ..store.database import Transaction
from ..store.history import story
from ..store.logs import LogLine
from ..store.rows import readable

MAX_ACTOR, MAX_OBJECT, MAX_ACTION, MAX_ERROR = 255, 255, 40, 200
_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "task": text("task", MAX_TASK),
    "definition": text("definition", MAX_NAME),
    "entity_id": text("entity_id", MAX_ENTITY),
    "dedupe_key": text("key", MAX_KEY),
    "worker": text("worker", MAX_ACTOR),
    "actor": text("actor", MAX_ACTOR),
    "object": text("object", MAX_OBJECT),
    "action": text("action", MAX_ACTION),
    "error": text("error", MAX_ERROR),
    "since": instant("since"),
    "until": instant("until"),
    "outcome": choice(Outcome, "outcome", optional=True),
    "source": choice(Source, "source", optional=True),
    "scope": lambda value: None if value is None else checked_refs(value),
}


def checked(**wanted: Any) -> dict[str, Any]:
    """Return filters as values that every database takes; what is None is not asked for."""
    return {name: _CHECKS[name](value) for name, value in wanted.items()}


def refuse_unknown(tx: Transaction, name: str | None) -> None:
    """Raise if no definition has this name, and nothing is left of one that had it."""
    if name is None or definitions.find(tx, name) is not None:
        return
    if not name.isprintable() or not lists.has_traces(tx, name):
        raise DefinitionNotFound(name, nearest(name, definitions.names(tx)))


def history(
    installation: Installation, name: str | None, *, before: str | None, limit: int, **wanted: Any
) -> Page[Execution]:
    """Return the latest executions that fit; of a definition also after it was removed."""
    given = checked(**wanted)
    with installation.database.transaction(write=False) as tx:
        refuse_unknown(tx, name)
        return lists.executions(tx, definition=name, cursor=before, limit=limit, **given)


def jobs(installation: Installation, *, state: Any, after: str | None, limit: int, **wanted: Any) -> Page[Job]:
    """Return jobs that are owed and fit, those due first in front."""
    given = checked(**wanted) | {"state": choice(JobState, "state", optional=True)(state)}
    with installation.database.transaction(write=False) as tx:
        refuse_unknown(tx, given.get("definition"))
        return lists.jobs(tx, cursor=after, limit=limit, **given)


def occurrences(
    installation: Installation,
    name: str | None,
    *,
    state: Any,
    troubled: bool,
    before: str | None,
    limit: int,
    **wanted: Any,
) -> Page[Occurrence]:
    """Return the latest instants that fit, of a definition or of all."""
    given, one = checked(**wanted), choice(OccurrenceState, "state", optional=True)(state)
    if troubled and one is not None:
        raise InvalidValue("state", "troubled names the states already", "give one of the two")
    states = TROUBLED if troubled else () if one is None else (one,)
    with installation.database.transaction(write=False) as tx:
        id = None if name is None else _id_of(tx, name)
        return lists.occurrences(tx, id, states=states, cursor=before, limit=limit, **given)


def _id_of(tx: Transaction, name: str) -> str:
    found = definitions.find(tx, name)
    if found is None:
        raise DefinitionNotFound(name, nearest(name, definitions.names(tx)))
    return found.id


def names_of(installation: Installation, found: Iterable[Occurrence]) -> dict[str, str]:
    """Return the names of the definitions that occurrences are of, by id; one that was removed is not there."""
    with installation.database.transaction(write=False) as tx:
        return definitions.names_of(tx, {one.definition for one in found})


def audit(installation: Installation, *, before: str | None, limit: int, **wanted: Any) -> Page[AuditLine]:
    """Return the latest lines of the audit that fit."""
    given = checked(**wanted)
    with installation.database.transaction(write=False) as tx:
        return lists.audit_lines(tx, cursor=before, limit=limit, **given)


def log(installation: Installation, id: str, *, after: str | None, limit: int) -> Page[LogLine]:
    """Return the log lines of all attempts of a job, or of one execution."""
    checked_text(id, field="id", limit=MAX_ID)
    checked_limit(limit)
    with installation.database.transaction(write=False) as tx:
        known = _executions_of(tx, id)
        found = lists.log_lines(tx, known or {id: None}, cursor=after, limit=limit)
        if not known and not found and after is None and story(tx, id) is None:
            raise JobNotFound(id)
    return found


def _executions_of(tx: Transaction, id: str) -> dict[str, int | None]:
    """Return the executions of a job, that of the attempt that runs too, or the one of this id, each with its attempt."""
    known: dict[str, int | None] = {one.id: one.attempt for one in attempts.of_job(tx, id)}
    with readable(tables.job, id):
        job = owed.find(tx, id)
    if job is not None:
        known[job.execution_id] = job.attempt
    one = None if known else attempts.find(tx, id)
    return {one.id: one.attempt} if one is not None else known
