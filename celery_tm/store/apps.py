"""Which apps share these tables. Each has definitions and jobs of its own, and plans and claims only those.

An app is registered, under its name, when a beat of it has looked at the tables once. A row names an app where `tm_app`
does, or where a process knows whose it is by the apps that are registered; no other app takes it over or runs it. A row
without a name (of a release that knew no apps, or of a process that started before any beat) goes to the beat of the only
app that is registered; where there are several, to one that has its task. What no beat plans or claims, also because the
app is called otherwise now, is a stray, which beat logs and doctor reports.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, case, select, update

from . import audit, rows, tables
from .conditions import IS_PENDING, MAY_TAKE_SLOT, NEEDS_NO_SLOT
from .database import UNNAMED, Transaction

logger = logging.getLogger(__name__)

PREFIX = "app:"
BATCH = 1000
SILENT_AFTER = timedelta(minutes=10)  # a beat notes every few seconds that it works for its app
job, definition, dead_letter, mark = tables.job, tables.definition, tables.dead_letter, tables.mark
# Where strays are looked for: by indexes that begin with the app, so that each look reads a few entries.
WAITING: tuple[tuple[ColumnElement[bool], ...], ...] = ((IS_PENDING, NEEDS_NO_SLOT), (IS_PENDING, MAY_TAKE_SLOT))


def registered(tx: Transaction) -> frozenset[str]:
    """Return the apps that have a beat."""
    names = tx.execute(select(mark.c.name).where(mark.c.name.like(PREFIX + "%"))).scalars()
    return frozenset(name.removeprefix(PREFIX) for name in names)


def beats_seen(tx: Transaction) -> dict[str, datetime]:
    """Return when a beat of each registered app was last seen."""
    found = rows.read_all(tx, select(mark).where(mark.c.name.like(PREFIX + "%")), lambda row: (row.name, row.at), mark)
    return {name.removeprefix(PREFIX): at for name, at in found}


def register(tx: Transaction) -> None:
    """Note that the app of this process has a beat, which is alive."""
    tx.execute(tx.dialect.upsert(mark, {"name": PREFIX + tx.app, "value": tx.app, "at": tx.now}, ("name",)))


def strays(tx: Transaction) -> frozenset[str]:
    """Return the apps that have definitions or waiting jobs, and no beat now; an empty name for rows that name none."""
    found = {name for conditions in WAITING for name in _apps_in(tx, job, conditions)}
    served = select(mark.c.name).where(mark.c.name.like(f"{PREFIX}%"), mark.c.at > tx.later(-SILENT_AFTER))
    alive = {name.removeprefix(PREFIX) for name in tx.execute(served).scalars()}
    return frozenset(found | set(_apps_in(tx, definition, ()))) - alive


def adopt(tx: Transaction, *, origin: str, tasks: Collection[str]) -> bool:
    """Take over a batch of the rows that name no app; say whether there may be more.

    `origin` is what definitions are known by that this app's code states. Where other apps have a beat, too, only rows of
    these `tasks` are taken over.
    """
    if tx.app == UNNAMED:
        return False
    is_shared = bool(registered(tx) - {tx.app})
    ours = [job.c.task.in_(sorted(tasks))] if is_shared else []
    moved = [_take_jobs(tx, tx.dialect.locked(_jobs_of(UNNAMED, *conditions, *ours))) for conditions in WAITING]
    defined = _definitions_of(UNNAMED)
    defined = defined.where(definition.c.task.in_(sorted(tasks))) if is_shared else defined
    _take_definitions(tx, UNNAMED, tx.dialect.locked(defined), origin)
    return max(moved) >= BATCH


def awaits_adoption(tx: Transaction, name: str, *, tasks: Collection[str]) -> bool:
    """Say whether there is a definition of this name that `adopt` takes over, unless somebody has locked it just then."""
    if tx.app == UNNAMED:
        return False
    task = tx.execute(select(definition.c.task).where(definition.c.app == UNNAMED, definition.c.name == name)).scalar()
    return task is not None and (task in tasks or not registered(tx) - {tx.app})


def take_over(tx: Transaction, name: str, *, origin: str, actor: str | None = None, reason: str | None = None) -> bool:
    """Make a batch of what belongs to another app this one's, with its audit; say whether there may be more."""
    moved = _take_jobs(tx, _jobs_of(name))
    taken = _take_definitions(tx, name, _definitions_of(name), origin)
    letters = tx.execute(update(dead_letter).where(dead_letter.c.app == name).values(app=tx.app)).rowcount
    before, after = {"app": name}, {"app": tx.app}
    for one in taken:
        audit.note(tx, "take over", f"definition:{one}", actor=actor, before=before, after=after, reason=reason)
    if moved or letters:
        told = after | {"jobs": moved, "dead_letters": letters}
        audit.note(tx, "take over", f"{PREFIX}{name}", actor=actor, before=before, after=told, reason=reason)
    return moved >= BATCH


def has_anything(tx: Transaction, name: str) -> bool:
    """Say whether an app of this name is registered, or has a definition, a job or a dead letter."""
    if name in registered(tx):
        return True
    columns = (definition.c.app, job.c.app, dead_letter.c.app)
    return any(tx.execute(select(column).where(column == name).limit(1)).first() for column in columns)


def _jobs_of(name: str, *conditions: ColumnElement[bool]) -> Select[Any]:
    return select(job.c.id).where(job.c.app == name, *conditions).order_by(job.c.run_at).limit(BATCH)


def _definitions_of(name: str) -> Select[Any]:
    return select(definition.c.id, definition.c.name).where(definition.c.app == name)


def _take_jobs(tx: Transaction, chosen: Select[Any]) -> int:
    ids = tx.execute(chosen).scalars().all()
    if ids:
        tx.execute(update(job).where(job.c.id.in_(ids)).values(app=tx.app))
        logger.info("%s jobs belong to app %r now", len(ids), tx.app)
    return len(ids)


def _take_definitions(tx: Transaction, name: str, chosen: Select[Any], origin: str) -> list[str]:
    """Make these definitions this app's, but for those whose name it has already; return the names."""
    taken: list[str] = []
    found = tx.execute(chosen).all()
    ours = set(tx.execute(select(definition.c.name).where(definition.c.app == tx.app)).scalars()) if found else set()
    seeded = case((definition.c.origin.like("beat_schedule:%"), origin), else_=definition.c.origin)
    for row in found:
        if row.name in ours:
            logger.warning("definition %r of app %r is left alone: this app has one of that name", row.name, name)
        else:
            tx.execute(update(definition).where(definition.c.id == row.id).values(app=tx.app, origin=seeded))
            logger.info("definition %r of app %r belongs to app %r now", row.name, name, tx.app)
            taken.append(row.name)
    return taken


def forget(tx: Transaction, name: str) -> None:
    """Unregister an app that has no beat any more, say because it has another name now."""
    tx.execute(mark.delete().where(mark.c.name == PREFIX + name))


def _apps_in(tx: Transaction, table: Table, conditions: Collection[ColumnElement[bool]]) -> Iterator[str]:
    """Yield the apps that have rows here, each by one look at an index."""
    column: Any = table.c.app
    looked = select(column).where(*conditions).order_by(column).limit(1)
    found = tx.execute(looked).scalar()
    while found is not None:
        yield found
        found = tx.execute(looked.where(column > found)).scalar()
