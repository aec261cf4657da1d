"""What each process needs of the tables: one table of rights, from which the GRANT statements are written.

Nothing more is granted than some statement needs, and a test takes each right away to see that statement refused. Whoever
may do more than its role says has been given it by somebody else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy.engine import URL

from ..errors import InvalidValue, shown

VERSION_TABLE = "tm_schema_version"
MAX_USER = 128
READ = "SELECT"
CHANGE = "SELECT, INSERT, UPDATE, DELETE"
PAUSE = "SELECT, UPDATE (paused, version, updated_at, updated_by)"  # of a definition whose runs keep failing
REMOVE = "SELECT, UPDATE (id), DELETE"  # rows are locked before they are deleted, which PostgreSQL calls an update
NUMBERED = ("tm_audit", "tm_log")  # where a sequence numbers the rows
Rights = Mapping[str, str]  # of each table


@dataclass(frozen=True, slots=True)
class Role:
    """One kind of process or person: what it does, and what it may do with each table."""

    about: str
    rights: Rights


_PRODUCER: Rights = {
    "tm_job": CHANGE,
    "tm_key": "SELECT, INSERT, UPDATE",
    "tm_lane": "SELECT, INSERT, UPDATE",
    "tm_execution": "SELECT, INSERT",
    "tm_scope": "INSERT",
    "tm_dead_letter": READ,
    "tm_occurrence": "SELECT, UPDATE",
    "tm_workflow": "SELECT, UPDATE",
    "tm_step": "SELECT, UPDATE",
    "tm_definition": PAUSE,
    "tm_calendar": READ,
    "tm_version": "INSERT",
    "tm_audit": "INSERT",
    "tm_mark": READ,
}
_READER: Rights = {
    "tm_job": READ,
    "tm_key": READ,
    "tm_lane": READ,
    "tm_execution": READ,
    "tm_scope": READ,
    "tm_dead_letter": READ,
    "tm_occurrence": READ,
    "tm_workflow": READ,
    "tm_step": READ,
    "tm_definition": READ,
    "tm_calendar": READ,
    "tm_version": READ,
    "tm_log": READ,
    "tm_audit": READ,
    "tm_node": READ,
    "tm_mark": READ,
}
ROLES: Mapping[str, Role] = {
    "beat": Role(
        "plans, dispatches and sweeps, and seeds what `beat_schedule` states",
        {
            "tm_job": CHANGE,
            "tm_key": "SELECT, INSERT, UPDATE",
            "tm_lane": "SELECT, INSERT, UPDATE",
            "tm_execution": "SELECT, INSERT",
            "tm_scope": "INSERT",
            "tm_dead_letter": "SELECT, INSERT, UPDATE",
            "tm_occurrence": CHANGE,
            "tm_workflow": "SELECT, INSERT, UPDATE",
            "tm_step": "SELECT, INSERT, UPDATE",
            "tm_definition": "SELECT, INSERT, UPDATE",
            "tm_calendar": READ,
            "tm_version": "SELECT, INSERT",
            "tm_mark": "SELECT, INSERT, UPDATE",
            "tm_node": CHANGE,
            "tm_audit": "INSERT",
        },
    ),
    "worker": Role(
        "runs bodies and records how they ended; bodies may defer and cancel",
        {
            **_PRODUCER,
            "tm_dead_letter": "SELECT, INSERT, UPDATE",
            "tm_log": "INSERT",
            "tm_node": CHANGE,
        },
    ),
    "producer": Role("defers and cancels, as the web process does", _PRODUCER),
    "reader": Role("looks: commands that change nothing, metrics, Flower with --read-only", _READER),
    "operator": Role(
        "looks and changes: every command but `schema upgrade`, `prune` and, in tables of records, `rows remove`; Flower",
        {
            **_READER,
            "tm_job": CHANGE,
            "tm_key": "SELECT, INSERT, UPDATE",
            "tm_lane": "SELECT, INSERT, UPDATE",
            "tm_execution": "SELECT, INSERT",
            "tm_scope": "SELECT, INSERT",
            "tm_dead_letter": "SELECT, UPDATE (app), DELETE",
            "tm_occurrence": CHANGE,
            "tm_workflow": "SELECT, UPDATE",
            "tm_step": "SELECT, UPDATE",
            "tm_definition": CHANGE,
            "tm_calendar": CHANGE,
            "tm_version": "SELECT, INSERT",
            "tm_audit": "SELECT, INSERT",
            "tm_mark": "SELECT, DELETE",
        },
    ),
    "pruner": Role(
        "deletes what is too old: `tm prune`, or the worker that runs celery_tm.prune",
        {
            "tm_job": READ,
            "tm_key": "SELECT, UPDATE (job), DELETE",
            "tm_lane": "SELECT, UPDATE, DELETE",
            "tm_execution": REMOVE,
            "tm_scope": "SELECT, DELETE",
            "tm_dead_letter": READ,
            "tm_definition": READ,
            "tm_occurrence": REMOVE,
            "tm_workflow": REMOVE,
            "tm_step": "SELECT, UPDATE (number), DELETE",
            "tm_log": REMOVE,
            "tm_audit": REMOVE,
            "tm_mark": READ,
        },
    ),
}


def grants(role: str, to: str, *, url: URL, schema: str | None = None) -> list[str]:
    """Return the statements that give a user what a role needs, for the owner of the tables to run."""
    if url.get_backend_name() == "postgresql":
        return list(_postgresql(ROLES[role].rights, to, schema))
    if url.get_backend_name() in ("mysql", "mariadb"):
        return list(_mysql(ROLES[role].rights, to, schema or url.database or ""))
    raise InvalidValue("role", "SQLite knows no users", "let the rights of its file and folder say who may read and write")


def _postgresql(rights: Rights, to: str, schema: str | None) -> Iterator[str]:
    user, place = _quoted(to, '"'), f"{_quoted(schema, chr(34))}." if schema else ""
    if schema:
        yield f"GRANT USAGE ON SCHEMA {_quoted(schema, chr(34))} TO {user};"
    yield f"GRANT SELECT ON {place}{VERSION_TABLE} TO {user};"
    for table, some in rights.items():
        yield f"GRANT {some} ON {place}{table} TO {user};"
    for table in NUMBERED:
        if "INSERT" in rights.get(table, ""):
            yield f"GRANT USAGE ON SEQUENCE {place}{table}_id_seq TO {user};"


def _mysql(rights: Rights, to: str, database: str) -> Iterator[str]:
    name, _, host = to.partition("@")
    user, place = f"{_quoted(name, chr(39))}@{_quoted(host or '%', chr(39))}", _quoted(database, "`")
    yield f"GRANT SELECT ON {place}.{VERSION_TABLE} TO {user};"
    for table, some in rights.items():
        yield f"GRANT {some} ON {place}.{table} TO {user};"


def _quoted(name: str | None, quote: str) -> str:
    """Return a name as SQL takes it. It is pasted into a terminal: what could hide something in it is refused."""
    if not name or len(name) > MAX_USER or not name.isprintable() or re.search(r"[\\;]", name):
        raise InvalidValue("to", f"{shown(name)} is not the name of a user", "give the name as the database knows it")
    return quote + name.replace(quote, quote * 2) + quote
