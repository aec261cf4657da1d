"""The statements that write new jobs: one, or thousands at once.

A new job comes as a draft: the columns of its row by name; what is not named is as in every new job (`NEW`), or NULL. It has
a `run_at`, or a `delay` after which it is due; if it is dispatched or running already, a `lease`; if it runs, the `limit`
after which it is stuck. `created_at` is now unless it is named. All that goes by the database's clock, in the statement that
writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Executable,
    Integer,
    Text,
    bindparam,
    case,
    column,
    false,
    func,
    insert,
    literal_column,
    null,
    select,
    true,
)
from sqlalchemy.exc import IntegrityError

from ..domain.codec import encode
from ..domain.job import Job
from . import tables
from .clocks import Clock, ahead
from .database import Transaction
from .dialect_base import Dialect
from .given import apart, as_texts, given_rows, read_as, together
from .prepared import Prepared
from .types import Duration, Instant

Draft = Mapping[str, Any]
job = tables.job
TIMED = frozenset({"delay", "lease", "limit"})  # of a draft, and no columns
NEW: Mapping[str, Any] = {"kwargs": "{}", "options": {}} | {
    one.name: one.default for one in fields(Job) if one.default is not MISSING and one.default is not None
}


@dataclass(frozen=True, slots=True)
class Written:
    """When drafts were written, and the ids of those that are new; None where all of them are."""

    now: datetime
    new: frozenset[str] | None = None

    def run_at(self, draft: Draft) -> datetime:
        """Return when a job that was written now is due."""
        delay: timedelta | None = draft.get("delay")
        instant: datetime = draft["run_at"] if delay is None else self.now + delay
        return instant

    def is_new(self, draft: Draft) -> bool:
        """Say whether a draft has become a row."""
        return self.new is None or draft["id"] in self.new


def insert_one(tx: Transaction, draft: Draft, *, fresh: bool = False) -> Written | None:
    """Insert a job; None if its id or key is taken. A `fresh` one has no key, and an id that nobody else can have."""
    values = {name: value for name, value in draft.items() if value is not None} | {"app": draft.get("app") or tx.app}
    gives_back = tx.dialect.gives_back_updates
    statement, named = _one(frozenset(values), fresh=fresh, gives_back=gives_back), _named(values)
    if gives_back:
        rows = tx.run(statement, **named)
        return Written(rows[0][0]) if rows else None
    # MySQL reports an ignored duplicate like a new row, but an error there does not end the transaction.
    try:
        tx.run(statement, **named)
    except IntegrityError:
        return None
    ((created_at,),) = tx.run(_CREATED_AT, job_id=draft["id"])
    return Written(created_at)


_CREATED_AT = Prepared(
    lambda *_: select(job.c.created_at).where(job.c.id == bindparam("job_id")), returns=[job.c.created_at]
)


def _named(values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}_": value for name, value in values.items()}


@lru_cache(maxsize=256)
def _one(names: frozenset[str], *, fresh: bool, gives_back: bool) -> Prepared:
    """Return the statement for a draft that names these columns."""

    def build(dialect: Dialect, clock: Clock) -> Executable:
        values = {**_NEW, **{name: _parameter(name) for name in sorted(names - TIMED)}}
        values.setdefault("created_at", clock.now)
        if "delay" in names:
            values["run_at"] = clock.later("delay_")
        if "lease" in names:
            values |= {"lease_until": clock.later("lease_"), "claimed_at": clock.now}
        if "limit" in names:
            values["stuck_at"] = clock.later("limit_")
        statement = insert(job) if fresh or not gives_back else dialect.insert_if_new(job)
        statement = statement.values(values)
        return statement.returning(job.c.created_at) if gives_back else statement

    return Prepared(build, returns=[job.c.created_at] if gives_back else [])


def _inline(value: Any) -> ColumnElement[Any]:
    """Return a value as a part of the statement."""
    if isinstance(value, bool):
        return true() if value else false()
    text = encode(value, field="value") if isinstance(value, Mapping) else str(value)
    return literal_column(text if isinstance(value, int) else f"'{text}'")


_NEW: Mapping[str, ColumnElement[Any]] = {name: _inline(value) for name, value in NEW.items()}


def _parameter(name: str) -> ColumnElement[Any]:
    return bindparam(f"{name}_", type_=Duration if name in TIMED else job.c[name].type)


def insert_many(tx: Transaction, drafts: Sequence[Draft]) -> Written:
    """Insert jobs at once, at least one; those whose id or key is taken are left out.

    A single prepared statement where the database takes tables.
    """
    drafts = [draft if draft.get("app") else {**draft, "app": tx.app} for draft in drafts]
    same, own = _apart(drafts)
    fresh = "dedupe_key" not in same and "dedupe_key" not in own  # fresh ids, nothing to meet
    if not tx.dialect.takes_tables:
        return _insert_rows(tx, drafts, [*same, *own], fresh=fresh)
    statement = _many(frozenset(same), frozenset(own), fresh=fresh)
    ((now, count, new),) = tx.run(statement, **_named(same), **as_texts(own))
    return Written(now, None if count == len(drafts) else apart(new))


def _apart(drafts: Sequence[Draft]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return what all drafts have in common, and the columns of what is each one's own."""
    same: dict[str, Any] = {}
    own: dict[str, list[Any]] = {}
    for name in sorted(set[str]().union(*drafts)):
        usual = NEW.get(name)
        values = [draft.get(name, usual) for draft in drafts]
        if name == "id" or not _are_same(values):
            own[name] = values
        elif values[0] is not None:
            same[name] = values[0]
    return same, own


def _are_same(values: Sequence[Any]) -> bool:
    first = values[0]
    if isinstance(first, Mapping):  # not by what is in them: 1, 1.0 and True are equal, and different JSON
        return all(value is first for value in values)
    return values.count(first) == len(values)


@lru_cache(maxsize=256)
def _many(same: frozenset[str], own: frozenset[str], *, fresh: bool) -> Prepared:
    """Return PostgreSQL's statement for drafts that share the columns `same`, and have those of `own` each."""
    listed = [_column(name) for name in sorted(own)]

    def build(dialect: Dialect, clock: Clock) -> Executable:
        given = given_rows(listed)
        own_values = {c.name: read_as(given, c) for c in listed}
        values = _timed({**_NEW, **{name: _parameter(name) for name in sorted(same)}, **own_values}, clock)
        statement = insert(job) if fresh else dialect.insert_if_new(job)
        written = statement.from_select(list(values), select(*values.values()).select_from(given))
        made = written.returning(job.c.id).cte("made")
        new = null() if fresh else together(made.c.id)
        return select(clock.now, func.count(), new).select_from(made)

    return Prepared(build, returns=[column("now", Instant), column("count", Integer), column("new", Text)])


def _column(name: str) -> Column[Any]:
    return Column(name, Duration) if name in TIMED else job.c[name]


def _timed(values: Mapping[str, ColumnElement[Any]], clock: Clock) -> dict[str, ColumnElement[Any]]:
    """Return the columns of rows with the instants that `delay` and `lease` mean."""
    columns = {name: value for name, value in values.items() if name not in TIMED}
    columns.setdefault("created_at", clock.now)
    if "delay" in values:
        due = ahead(clock.now, values["delay"])
        columns["run_at"] = func.coalesce(columns["run_at"], due) if "run_at" in columns else due
    if "lease" in values:
        columns["lease_until"] = ahead(clock.now, values["lease"])
        columns["claimed_at"] = case((values["lease"].is_not(None), clock.now))
    return columns


def _insert_rows(tx: Transaction, drafts: Sequence[Draft], names: Sequence[str], *, fresh: bool) -> Written:
    """Insert jobs by a statement that the driver repeats."""
    now = drafts[0].get("created_at") or tx.read_now()
    columns = {*NEW, *names, "created_at", "run_at"} - TIMED
    if "lease" in names:
        columns |= {"lease_until", "claimed_at"}
    rows = [{name: row.get(name) for name in columns} for row in (_row(draft, now) for draft in drafts)]
    if fresh:
        tx.execute(insert(job), rows)
        return Written(now)
    tx.execute(tx.dialect.insert_if_new(job), rows)
    ids = [draft["id"] for draft in drafts]
    found: set[str] = set()
    for start in range(0, len(ids), 1000):
        found.update(tx.execute(select(job.c.id).where(job.c.id.in_(ids[start : start + 1000]))).scalars())
    return Written(now, frozenset(found))


def _row(draft: Draft, now: datetime) -> dict[str, Any]:
    delay, lease = draft.get("delay"), draft.get("lease")
    row = {**NEW, "created_at": now, **draft}
    if delay is not None:
        row["run_at"] = now + delay
    if lease is not None:
        row |= {"lease_until": now + lease, "claimed_at": now}
    return row
