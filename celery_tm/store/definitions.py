"""Recurring rules, as rows. The database is the authority: an edit counts from the next tick on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, Text, and_, case, cast, func, or_, select, type_coerce, update
from sqlalchemy.types import NullType

from ..domain.codec import decode, encode
from ..domain.definition import COLUMNS, Definition, Standing, calendars_later
from ..domain.dst import Fold, Gap
from ..domain.overlap import Overlap
from ..domain.recovery import Recovery
from ..domain.workflow import Mode, Strategy
from . import calendars, tables
from .database import UNNAMED, Transaction
from .exclusions import leave_out
from .rows import UNREADABLE
from .types import Instant

definition = tables.definition
# What planning moves; everything else is a person's to change.
MOVED = (
    "planned_until", "planned_offset", "next_run_at", "last_run_at", "runs", "catching_up_from", "spaced_until",
)  # fmt: skip


FILL = {name: vars(Definition)[name].__set__ for name in (*COLUMNS, "closed", "unread")}
SLOTS = [FILL[column.name] for column in definition.columns]  # in the order in which a row has them
NAMES = [column.name for column in definition.columns]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)  # in place of an instant that must be there and cannot be read
WORDS: Mapping[str, Callable[[Any], Any]] = {
    "gap": Gap, "fold": Fold, "overlap": Overlap, "recovery": Recovery, "mode": Mode, "failure_strategy": Strategy,
}  # fmt: skip
LISTS: Mapping[str, type] = {
    "excluded": tuple,
    "calendars": tuple,
    "groups": tuple,
    "options": dict,
}  # empty where the row has NULL


STANDING = case(
    (definition.c.retired_at.is_not(None), Standing.RETIRED.value),
    (definition.c.enabled.is_(False), Standing.DISABLED.value),
    (definition.c.paused.is_(True), Standing.PAUSED.value),
    else_=Standing.ON.value,
)


CHANGES_ROWS = or_(
    definition.c.overlap == Overlap.REPLACE.value, definition.c.plan_ahead.is_not(None), definition.c.next_edit.is_not(None)
)


def lock_due(
    tx: Transaction, *, limit: int, skip: Sequence[str] = (), only: Sequence[str] | None = None
) -> list[Definition]:
    """Lock and return definitions with an instant to decide, the most overdue first.

    The lock makes one beat plan a definition at a time; what others hold is passed over. `skip` are ids that this process
    cannot handle, `only` the ids that may be returned. Some may be unreadable: they have a `problem`.
    """
    query = select(definition).where(definition.c.app == tx.app, definition.c.next_run_at <= tx.now)
    query = leave_out(tx, query.order_by(definition.c.next_run_at), definition.c.id, skip, limit=limit).limit(limit)
    query = query.where(definition.c.id.in_(list(only))) if only is not None else query
    return _read_all(tx, tx.dialect.locked(query))


def due_ids(tx: Transaction, *, limit: int, skip: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Return the ids of definitions with an instant to decide, the most overdue first: in two parts.

    Planning one of the first part only adds rows; one of the second part may also change or delete rows.
    """
    query = select(definition.c.id, CHANGES_ROWS).where(definition.c.app == tx.app, definition.c.next_run_at <= tx.now)
    query = leave_out(tx, query.order_by(definition.c.next_run_at), definition.c.id, skip, limit=limit)
    found = tx.execute(query.limit(limit)).all()
    return [id for id, changes in found if not changes], [id for id, changes in found if changes]


def advance(tx: Transaction, moved: Sequence[Definition]) -> None:
    """Move definitions forward past what was decided. The caller holds their locks."""
    tx.update_all(definition, [{name: getattr(one, name) for name in ("id", *MOVED)} for one in moved])


def add(tx: Transaction, value: Definition) -> bool:
    """Insert a definition; False if its name is taken."""
    return tx.insert_new(definition, {name: getattr(value, name) for name in COLUMNS} | {"app": value.app or tx.app})


def save(tx: Transaction, value: Definition, *, version: int) -> bool:
    """Overwrite a definition that is still at `version`; False if somebody was faster.

    Columns that this release cannot read stay as they are.
    """
    kept = ("id", "app", "created_at", "created_by", *value.unread)
    values = {name: getattr(value, name) for name in COLUMNS if name not in kept}
    same = (definition.c.id == value.id, definition.c.version == version)
    return tx.execute(update(definition).where(*same).values(values)).rowcount == 1


def declare(tx: Transaction, value: Definition) -> None:
    """Write what files and code declared about a locked definition and what may retire it, and nothing else of it."""
    values = {"declared": value.declared, "origin": value.origin}
    tx.execute(update(definition).where(definition.c.id == value.id).values(values))


def pause(tx: Transaction, value: Definition, *, version: int) -> bool:
    """Pause a definition that is still at `version`, and change nothing else of it: a worker may do no more."""
    same = (definition.c.id == value.id, definition.c.version == version)
    values = {name: getattr(value, name) for name in ("paused", "version", "updated_by")}
    return tx.execute(update(definition).where(*same).values(updated_at=tx.now, **values)).rowcount == 1


def find(tx: Transaction, name: str, *, lock: bool = False) -> Definition | None:
    """Return the definition of this name: this app's own, else one that names no app and no other app can adopt."""
    if not name.isprintable():  # no definition is called that, and some databases refuse the question
        return None
    apps = [tx.app] if tx.app == UNNAMED or tx.foreign else [tx.app, UNNAMED, tx.app]  # adopted meanwhile: look again
    looks = (_first(tx, and_(definition.c.app == app, definition.c.name == name), lock=lock) for app in apps)
    return next((found for found in looks if found is not None), None)


def find_all(tx: Transaction, wanted: Sequence[str]) -> list[Definition]:
    """Return the definitions that have one of these names."""
    parts = (wanted[start : start + 500] for start in range(0, len(wanted), 500))
    return [one for part in parts for one in _read_all(tx, _named(tx, part))]


def _named(tx: Transaction, names: Sequence[str]) -> Select[Any]:
    return select(definition).where(definition.c.app == tx.app, definition.c.name.in_(names))


def find_by_id(tx: Transaction, id: str, *, lock: bool = False) -> Definition | None:
    """Return the definition with this id."""
    return _first(tx, definition.c.id == id, lock=lock)


def _first(tx: Transaction, condition: Any, *, lock: bool) -> Definition | None:
    query = select(definition).where(condition)
    if lock and tx.dialect.skips_locked:
        query = query.with_for_update()
    found = _read_all(tx, query)
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
    """Return definitions by name: of a group, those after a name; `search` is a part of a name or a task.

    `origin` is how their origin begins.
    """
    if any(text is not None and not text.isprintable() for text in (group, after)):
        return []
    query = select(definition).where(definition.c.app == tx.app).order_by(definition.c.name).limit(limit)
    if group is not None:
        query = query.where(or_(definition.c.group == group, _has_group(tx, group)))
    if origin is not None:
        query = query.where(definition.c.origin.startswith(origin, autoescape=True))
    if task is not None:
        query = query.where(definition.c.task == task)
    if after is not None:
        query = query.where(definition.c.name > after)
    if not retired:
        query = query.where(definition.c.retired_at.is_(None))
    if search is not None:
        query = query.where(or_(*(c.icontains(search, autoescape=True) for c in (definition.c.name, definition.c.task))))
    if standing is not None:
        query = query.where(STANDING.in_([standing.value]))
    found = _read_all(tx, query)
    return found if group is None else [one for one in found if group in (one.group, *one.groups)]


def _has_group(tx: Transaction, group: str) -> ColumnElement[bool]:
    """Return the condition that a group is among several; to the letter, which LIKE is not everywhere."""
    find = func.strpos if tx.dialect.name == "postgresql" else func.instr
    return and_(
        definition.c.groups.is_not(None), find(type_coerce(definition.c.groups, Text), encode(group, field="group")) > 0
    )


def select_conflicting(tx: Transaction, *, limit: int) -> list[Definition]:
    """Return definitions about which a file or the code and a person may disagree."""
    noted = type_coerce(definition.c.declared, Text).contains('"conflicts"')
    query = select(definition).where(definition.c.app == tx.app, definition.c.retired_at.is_(None), noted)
    return _read_all(tx, query.order_by(definition.c.name).limit(limit))


def count_by_group(tx: Transaction) -> dict[str, int]:
    """Return how many definitions each group has, by its name; one that is in several counts for each."""
    group, every = definition.c.group, type_coerce(definition.c.groups, Text)
    mine = select(group, every, func.count()).where(definition.c.app == tx.app, group.is_not(None)).group_by(group, every)
    found: Counter[str] = Counter()
    for first, text, count in tx.execute(mine):
        for name in _groups(first, text):
            found[name] += count
    return dict(sorted(found.items()))


def _groups(first: str, text: str | None) -> Sequence[str]:
    """Return the groups of a row; what an older release or a person wrote besides does not count."""
    try:
        every = decode(text) if text else []
    except ValueError:
        every = []
    return every if isinstance(every, list) and every[:1] == [first] else [first]


def select_using(tx: Transaction, calendar: str) -> list[Definition]:
    """Return the definitions that name a calendar."""
    query = select(definition).where(definition.c.calendars.is_not(None)).order_by(definition.c.name)
    if tx.dialect.skips_locked:
        query = query.with_for_update()
    return [one for one in _read_all(tx, query) if calendar in one.calendars]


def select_waiting_for(tx: Transaction, calendar: str) -> list[Definition]:
    """Return the definitions of which an edit waits that names a calendar."""
    query = select(definition).where(definition.c.next_edit.is_not(None)).order_by(definition.c.name)
    if tx.dialect.skips_locked:
        query = query.with_for_update()
    return [one for one in _read_all(tx, query) if calendar in calendars_later(one.next_edit)]


def local_ids(tx: Transaction, *, after: str, limit: int) -> list[str]:
    """Return ids of definitions in local time zones, those after an id: to walk over all of them in steps."""
    query = select(definition.c.id).where(
        definition.c.id > after, definition.c.timezone != "UTC", definition.c.app == tx.app
    )
    query = query.where(definition.c.retired_at.is_(None)).order_by(definition.c.id).limit(limit)
    return list(tx.execute(query).scalars())


def lock_free(tx: Transaction, ids: Sequence[str]) -> list[Definition]:
    """Lock and return those of these definitions that nobody else has locked."""
    return _read_all(tx, tx.dialect.locked(select(definition).where(definition.c.id.in_(list(ids))))) if ids else []


def names(tx: Transaction) -> list[str]:
    """Return all names, for suggestions."""
    return list(tx.execute(select(definition.c.name).where(definition.c.app == tx.app).limit(10_000)).scalars())


def names_of(tx: Transaction, ids: Collection[str]) -> dict[str, str]:
    """Return the names of definitions by id."""
    query = select(definition.c.id, definition.c.name).where(definition.c.id.in_(ids))
    return {row.id: row.name for row in tx.execute(query)}


def remove(tx: Transaction, id: str) -> bool:
    """Delete a definition; its occurrences and executions stay as history."""
    return tx.execute(definition.delete().where(definition.c.id == id)).rowcount == 1


def _read_all(tx: Transaction, query: Select[Any]) -> list[Definition]:
    """Return the definitions that a query finds; one that cannot be read says so in `unread`, and the others are whole."""
    try:
        rows: Sequence[tuple[Sequence[Any], Mapping[str, str]]] = [(row, {}) for row in tx.execute(query).all()]
    except UNREADABLE:  # a column that is no JSON, or no instant: by whom, is not told
        rows = [_apart(tx, row) for row in _raw(tx, query)]
    closed = _closed(tx, (names for row, _ in rows for names in _named_calendars(dict(zip(NAMES, row, strict=True)))))
    return [read_definition(row, closed, unread) for row, unread in rows]


def _named_calendars(row: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return the calendars that a row names, which may be anything, and those that its waiting edit names."""
    return row["calendars"], calendars_later(row["next_edit"])


def _raw(tx: Transaction, query: Select[Any]) -> Sequence[Row[Any]]:
    """Return rows as the driver gives them; instants as text, for it may have no value for them (`infinity`)."""
    as_text = tx.dialect.name == "postgresql"
    columns = [
        (cast(column, Text) if as_text and isinstance(column.type, Instant) else type_coerce(column, NullType())).label(
            column.name
        )
        for column in definition.columns
    ]
    return tx.execute(query.with_only_columns(*columns)).all()


def _apart(tx: Transaction, row: Row[Any]) -> tuple[Sequence[Any], Mapping[str, str]]:
    """Return the values of a row, read one by one, and why some of them cannot be read."""
    values, unread = [], dict[str, str]()
    dialect, is_postgresql = tx.connection.dialect, tx.dialect.name == "postgresql"
    for column, given in zip(definition.columns, row, strict=True):
        read = column.type.dialect_impl(dialect).result_processor(dialect, None)
        try:
            given = (
                datetime.fromisoformat(given)
                if is_postgresql and given is not None and isinstance(column.type, Instant)
                else given
            )
            values.append(read(given) if read is not None else given)
        except UNREADABLE as error:
            unread[column.name] = str(error) or type(error).__name__
            values.append(EPOCH if not column.nullable and column.name.endswith(("_at", "_until")) else None)
    return values, unread


def _closed(tx: Transaction, named: Iterable[Any]) -> Mapping[str, tuple[str, ...]]:
    wanted = {name for names in named if isinstance(names, (list, tuple)) for name in names if isinstance(name, str)}
    return calendars.entries(tx, wanted)


def read_definition(
    row: Sequence[Any], closed: Mapping[str, tuple[str, ...]], unread: Mapping[str, str] | None = None
) -> Definition:
    """Return a row as a value; `closed` is what the calendars it names say. What cannot be read is in its `unread`."""
    value = object.__new__(Definition)  # filled slot by slot, see `jobs.read_job`
    for fill, given in zip(SLOTS, row, strict=True):
        fill(value, given)
    wrong = dict(unread or {})
    for name, word in WORDS.items():
        if (given := getattr(value, name)) is not None:
            try:
                FILL[name](value, word(given))
            except ValueError as error:  # written by a newer release, or by hand
                wrong[name] = str(error)
    for name, kind in LISTS.items():
        given = getattr(value, name)
        if not isinstance(given, (list, tuple) if kind is tuple else Mapping):
            wrong |= {} if given is None else {name: f"{type(given).__name__} where a {kind.__name__} belongs"}
            given = ()
        FILL[name](value, kind(given))
    for name in value.calendars:
        if name not in closed:
            wrong["calendars"] = f"the calendar {name!r} of {value.name!r} is gone or cannot be read; set it again"
    if value.groups[:1] != (value.group,):  # an older release has changed the group, and knows only one
        FILL["groups"](value, ())
    if not isinstance(value.declared, Mapping):  # only a note about files: a damaged one stops no planning
        FILL["declared"](value, None)
    # What is gone of those that only its waiting edit names is found out when that takes over.
    later = {name: closed[name] for name in calendars_later(value.next_edit) if name in closed}
    FILL["closed"](value, {**later, **{name: closed.get(name, ()) for name in value.calendars}})
    FILL["unread"](value, wrong)
    return value
