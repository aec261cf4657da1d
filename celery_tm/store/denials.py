"""Reading from a database's refusal what its user may not do, and on what."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import DBAPIError

INSUFFICIENT_PRIVILEGE = "42501"
TABLE_DENIED, COLUMN_DENIED, DATABASE_DENIED = 1142, 1143, 1044
_TABLE = r'(?:"?\w+"?\.)?"?{table}"?\b'
# How a statement shows that it needs a right; what it needs besides SELECT is told first.
_USES = {
    "INSERT": rf"INSERT INTO {_TABLE}",
    "UPDATE": rf"UPDATE {_TABLE}|{_TABLE}.*FOR (?:NO KEY )?(?:UPDATE|SHARE)",
    "DELETE": rf"DELETE FROM {_TABLE}",
}


@dataclass(frozen=True, slots=True)
class Lacking:
    """A right that is not there: what, and on what."""

    right: str
    object: str


def denied_by_postgresql(error: DBAPIError) -> Lacking | None:
    """Return what PostgreSQL refuses. It names the object only: which right is read from the statement."""
    orig: Any = error.orig
    if (getattr(orig, "sqlstate", None) or getattr(orig, "pgcode", None)) != INSUFFICIENT_PRIVILEGE:
        return None
    told = str(orig).strip().splitlines()[0]
    found = re.search(r'(\w+) "?([^"\s]+)"?$', told)  # whatever language it speaks, the object's name comes last
    if found is None:
        return Lacking("a right", told)
    if found[2].startswith("tm_") and not found[2].endswith("_seq"):
        return Lacking(_used(error.statement or "", found[2]), found[2])
    return Lacking("USAGE", f"{found[1]} {found[2]}")


def _used(statement: str, table: str) -> str:
    uses = [right for right, shape in _USES.items() if re.search(shape.format(table=re.escape(table)), statement, re.S)]
    return " or ".join([*uses, "SELECT"] if uses != ["INSERT"] or "RETURNING" in statement else uses)


def denied_by_mysql(error: DBAPIError) -> Lacking | None:
    """Return what MySQL or MariaDB refuses; both name the right."""
    arguments = getattr(error.orig, "args", ())
    number, told = (*arguments, None, None)[:2]
    if number == DATABASE_DENIED:
        return Lacking("any right", f"the database ({told})")
    if number not in (TABLE_DENIED, COLUMN_DENIED):
        return None
    right = re.match(r"([A-Z, ]+) command denied", str(told))
    table = re.search(r"table [`'](?:[^`']*[`']\.[`'])?([^`']+)[`']", str(told))
    return Lacking(right[1] if right else "a right", table[1] if table else str(told))
