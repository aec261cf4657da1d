"""Rows that this release cannot read, in any table: find them, and remove one. Everything else goes on without them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ..domain.set_aside import BadRow
from ..errors import InvalidValue, RowUnreadable, nearest, shown
from ..installation import Installation
from ..producer import cancel as cancel_job
from ..store import audit, dead_letters, executions, jobs, occurrences, settlement, versions, workflows
from ..store import rows as store
from ..store.database import Transaction

LOOKED_AT = 1000  # rows of each table, the latest


def _whole(row: Any) -> Any:
    return row._mapping


READERS: Mapping[str, Callable[[Any], Any]] = {
    "tm_job": jobs.read_job,
    "tm_dead_letter": dead_letters.read_letter,
    "tm_execution": executions.read_execution,
    "tm_occurrence": occurrences.read_occurrence,
    "tm_version": versions.read_version,
    "tm_workflow": workflows.read_run,
    "tm_step": workflows.read_step,
    "tm_audit": audit.read_line,
}


def unreadable(installation: Installation, *, limit: int = LOOKED_AT) -> list[BadRow]:
    """Return the rows that cannot be read, of the latest `limit` rows of each table."""
    with installation.database.transaction(write=False) as tx:
        return found_in(tx, limit=limit)


def found_in(tx: Transaction, *, limit: int) -> list[BadRow]:
    """Return the rows that cannot be read, in this transaction."""
    return [row for name, table in store.TABLES.items() for row in store.look(tx, table, _reader(name), limit=limit)]


def remove(
    installation: Installation, table: str, key: Sequence[str], *, actor: str | None = None, reason: str | None = None
) -> BadRow:
    """Delete a row that cannot be read, and say so in the audit; one that can be read is refused."""
    found = store.TABLES.get(table)
    if found is None:
        close = nearest(table, store.TABLES)
        remedy = f"did you mean {close!r}?" if close else "`celery -A app tm rows list` shows them"
        raise InvalidValue("table", f"there is no table {shown(table)}", remedy)
    names = [column.name for column in found.primary_key]
    if len(key) != len(names):
        raise InvalidValue("key", f"a row of {table} is named by {', '.join(names)}", "give each of them")

    def work(tx: Transaction) -> BadRow:
        gone = _removed(tx, table, key)
        if gone is None:
            remedy = "only rows that cannot be read are removed like this"
            raise InvalidValue("key", f"{' '.join(key)} of {table} can be read, or is not there", remedy)
        before = {"table": table, "error": gone.error}
        audit.note(tx, "remove row", f"{table}:{gone.id}"[:255], actor=actor, before=before, reason=reason)
        return gone

    return installation.database.run(work)


def cancel(installation: Installation, id: str, *, actor: str | None = None, reason: str | None = None) -> bool:
    """Cancel a job; one whose row cannot be read is deleted, for nobody could run it."""
    with suppress(*store.UNREADABLE, RowUnreadable):
        if cancel_job(id=id, app=installation.app, actor=actor, reason=reason):
            return True

    def work(tx: Transaction) -> bool:
        gone = _removed(tx, jobs.job.name, [id])
        if gone is not None:
            audit.note(tx, "cancel", f"job:{id}", actor=actor, before={"unreadable": gone.error}, reason=reason)
        return gone is not None

    return installation.database.run(work)


def _removed(tx: Transaction, table: str, key: Sequence[str]) -> BadRow | None:
    """Delete a row that cannot be read; the run or step that its job was for ends in the usual way."""
    found, run = store.TABLES[table], None
    occurrence, step = jobs.place_of(tx, key[0]) if found is jobs.job else (None, None)
    with suppress(*store.UNREADABLE):  # a run that cannot be read either
        run = workflows.lock(tx, occurrence)
    gone = store.remove_unreadable(tx, found, key, _reader(table), closes=run is None)
    if gone is not None and run is not None:
        settlement.end_removed(tx, run, key[0], step, why=f"its job could not be read: {gone.error}")
    return gone


def _reader(table: str) -> Callable[[Any], Any]:
    return READERS.get(table, _whole)
