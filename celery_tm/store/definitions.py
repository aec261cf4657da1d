"""Recurring rules, as rows. The database is the authority: an edit counts from the next tick on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Row, case, func, or_, select, update

from ..domain.definition import COLUMNS, Definition, Standing
from ..domain.dst import Fold, Gap
from ..domain.overlap import Overlap
from ..domain.recovery import Recovery
from ..domain.workflow import Mode, Strategy
from ..errors import InvalidValue
from . import calendars, tables
from .database import Transaction

definition = tables.definition
# What planning moves; everything else is a person's to change.
MOVED = (
    "planned_until", "planned_offset", "next_run_at", "last_run_at", "runs", "catching_up_from", "spaced_until",
)  # fmt: skip


FILL = {name: vars(Definition)[name].__set__ for name in (*COLUMNS, "closed")}
SLOTS = [FILL[column.name] for column in definition.columns]  # in the order in which a row has them


STANDING = case(
    (definition.c.retired_at.is_not(None), Standing.RETIRED.value),
    (definition.c.enabled.is_(False), Standing.DISABLED.value),
    (definition.c.paused.is_(True), Standing.PAUSED.value),
    else_=Standing.ON.value,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """A definition that this release cannot read or plan."""

    id: str
    name: str
    error: str


def lock_due(tx: Transaction, *, limit: int) -> tuple[list[Definition], list[Broken]]:
    """Lock and return definitions with an instant to decide, the most overdue first, and those that cannot be read.

    The lock makes one beat plan a definition at a time; what others hold is passed over.
    """
    query = select(definition).where(definition.c.next_run_at <= tx.now).order_by(definition.c.next_run_at).limit(limit)
    rows = tx.execute(tx.dialect.locked(query)).all()
    closed = _closed(tx, rows)
    due: list[Definition] = []
    broken: list[Broken] = []
    for row in rows:
        try:
            due.append(read_definition(row, closed))
        except ValueError as error:  # written by a newer release, or by hand
            broken.append(Broken(id=row.id, name=row.name, error=str(error)))
    return due, broken


def postpone(tx: Transaction, id: str, delay: timedelta) -> None:
    """Look at a definition again after a while."""
    tx.execute(update(definition).where(definition.c.id == id).values(next_run_at=tx.later(delay)))


def advance(tx: Transaction, moved: Sequence[Definition]) -> None:
    """Move definitions forward past what was decided. The caller holds their locks."""
    tx.update_all(definition, [{name: getattr(one, name) for name in ("id", *MOVED)} for one in moved])


def add(tx: Transaction, value: Definition) -> bool:
    """Insert a definition; False if its name is taken."""
    return tx.insert_new(definition, {name: getattr(value, name) for name in COLUMNS})


def save(tx: Transaction, value: Definition, *, version: int) -> bool:
    """Overwrite a definition that is still at `version`; False if somebody was faster."""
    values = {name: getattr(value, name) for name in COLUMNS if name not in ("id", "created_at", "created_by")}
    same = (definition.c.id == value.id, definition.c.version == version)
    return tx.execute(update(definition).where(*same).values(values)).rowcount == 1


def pause(tx: Transaction, value: Definition, *, version: int) -> bool:
    """Pause a definition that is still at `version`, and change nothing else of it: a worker may do no more."""
    same = (definition.c.id == value.id, definition.c.version == version)
    values = {name: getattr(value, name) for name in ("paused", "version", "updated_by")}
    return tx.execute(update(definition).where(*same).values(updated_at=tx.now, **values)).rowcount == 1


def find(tx: Transaction, name: str, *, lock: bool = False) -> Definition | None:
    """Return the definition of this name."""
    if not name.isprintable():  # no definition is called that, and some databases refuse the question
        return None
    return _first(tx, definition.c.name == name, lock=lock)


def find_by_id(tx: Transaction, id: str, *, lock: bool = False) -> Definition | None:
    """Return the definition with this id."""
    return _first(tx, definition.c.id == id, lock=lock)


def _first(tx: Transaction, condition: Any, *, lock: bool) -> Definition | None:
    query = select(definition).where(condition)
    if lock and tx.dialect.skips_locked:
        query = query.with_for_update()
    found = _read_all(tx, tx.execute(query).all())
    return found[0] if found else None


def select_definitions(
    tx: Transaction,
    *,
    group: str | None = None,
    origin: str | None = None,
    task: str | None = None,
    search: str | None = None,
    standing: Standing | None = None,
    after: str | None = None,
    retired: bool = True,
    limit: int | None = None,
) -> list[Definition]:
    """Return definitions by name: of a group, of an origin, those after a name; `search` is a part of a name or a task."""
    if any(text is not None and not text.isprintable() for text in (group, after)):
        return []
    query = select(definition).order_by(definition.c.name).limit(limit)
    for column, wanted in ((definition.c.group, group), (definition.c.origin, origin), (definition.c.task, task)):
        if wanted is not None:
            query = query.where(column == wanted)
    if after is not None:
        query = query.where(definition.c.name > after)
    if not retired:
        query = query.where(definition.c.retired_at.is_(None))
    if search is not None:
        query = query.where(or_(*(c.icontains(search, autoescape=True) for c in (definition.c.name, definition.c.task))))
    if standing is not None:
        query = query.where(STANDING.in_([standing.value]))
    return _read_all(tx, tx.execute(query).all())


def count_by_group(tx: Transaction) -> dict[str, int]:
    """Return how many definitions each group has, by its name."""
    group = definition.c.group
    query = select(group, func.count()).where(group.is_not(None)).group_by(group).order_by(group)
    return {row[0]: row[1] for row in tx.execute(query)}


def select_using(tx: Transaction, calendar: str) -> list[Definition]:
    """Return the definitions that name a calendar."""
    query = select(definition).where(definition.c.calendars.is_not(None)).order_by(definition.c.name)
    if tx.dialect.skips_locked:
        query = query.with_for_update()
    rows = [row for row in tx.execute(query) if calendar in (row.calendars or ())]
    return _read_all(tx, rows)


def select_by_id(tx: Transaction, *, after: str, limit: int) -> list[Definition]:
    """Return definitions in local time zones by id, those after an id: to walk over all of them in steps."""
    query = select(definition).where(definition.c.id > after, definition.c.timezone != "UTC").order_by(definition.c.id)
    query = query.where(definition.c.retired_at.is_(None)).limit(limit)
    if tx.dialect.skips_locked:
        query = query.with_for_update()
    return _read_all(tx, tx.execute(query).all())


def names(tx: Transaction) -> list[str]:
    """Return all names, for suggestions."""
    return list(tx.execute(select(definition.c.name).limit(10_000)).scalars())


def names_of(tx: Transaction, ids: Collection[str]) -> dict[str, str]:
    """Return the names of definitions by id."""
    query = select(definition.c.id, definition.c.name).where(definition.c.id.in_(ids))
    return {row.id: row.name for row in tx.execute(query)}


def remove(tx: Transaction, id: str) -> bool:
    """Delete a definition; its occurrences and executions stay as history."""
    return tx.execute(definition.delete().where(definition.c.id == id)).rowcount == 1


def _read_all(tx: Transaction, rows: Sequence[Row[Any]]) -> list[Definition]:
    closed = _closed(tx, rows)
    return [read_definition(row, closed) for row in rows]


def _closed(tx: Transaction, rows: Iterable[Row[Any]]) -> Mapping[str, tuple[str, ...]]:
    return calendars.entries(tx, {name for row in rows for name in row.calendars or ()})


def read_definition(row: Row[Any], closed: Mapping[str, tuple[str, ...]]) -> Definition:
    """Return a row as a value; `closed` is what the calendars it names say."""
    value = object.__new__(Definition)  # filled slot by slot, see `jobs.read_job`
    for fill, given in zip(SLOTS, row, strict=True):
        fill(value, given)
    FILL["gap"](value, Gap(row.gap))
    FILL["fold"](value, Fold(row.fold) if row.fold else None)
    FILL["overlap"](value, Overlap(row.overlap))
    FILL["recovery"](value, Recovery(row.recovery))
    FILL["excluded"](value, tuple(row.excluded or ()))
    FILL["calendars"](value, tuple(row.calendars or ()))
    FILL["options"](value, row.options or {})
    FILL["mode"](value, Mode(row.mode))
    FILL["failure_strategy"](value, Strategy(row.failure_strategy) if row.failure_strategy else None)
    for name in value.calendars:
        if name not in closed:
            raise InvalidValue("calendars", f"the calendar {name!r} of {row.name!r} is gone", "set it again")
    FILL["closed"](value, {name: closed[name] for name in value.calendars})
    return value
