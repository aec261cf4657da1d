"""`tm.doctor()`: gathers what the rules of `domain.checkup` go by. It changes nothing, and what is away is a finding too."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any

from celery import Celery

from ..domain.checkup import AGAIN, CHECKS, LATE, LONG
from ..domain.definition import Definition
from ..domain.findings import Facts, Finding, ShortKey, examine
from ..domain.steps import read_steps
from ..errors import TmError
from ..installation import Installation
from ..producer.workflows import own_tasks
from ..settings import read_keep_key
from ..store import apps, checkup, overview, schema
from ..store.database import Transaction
from ..store.rows import UNREADABLE, told
from ..version import __version__
from .rows import found_in

LOOKED_AT = 200  # rows of each table that are read, to see whether they can be
PATIENCE = 5.0  # seconds that a broker has to answer
VISIBILITY = {"redis": 3600, "rediss": 3600, "sentinel": 3600, "sqs": 1800}  # kombu's own, where it is not stated


def doctor(installation: Installation) -> list[Finding]:
    """Return what was found, the worst first."""
    return examine(gather(installation), CHECKS)


def gather(installation: Installation) -> Facts:
    """Return what there is to know about the database, the broker and the app."""
    app, database = installation.app, installation.database
    facts = Facts(
        settings=installation.settings,
        version=__version__,
        database=database.safe_url,
        schema_needed=schema.LATEST,
        stated_late=_stated_late(installation),
        **_of_broker(installation),
        **_of_tasks(app),
    )
    try:
        facts = replace(facts, is_server=database.dialect.is_server, dialect=database.dialect.name)
        facts = replace(facts, schema_found=schema.current(database))
        if facts.schema_found is None or facts.schema_found < schema.LATEST:
            return facts
        with database.transaction(write=False) as tx:
            facts = replace(facts, **_of_tables(tx))
            with suppress(*UNREADABLE):
                facts = replace(facts, oldest=checkup.oldest(tx, keep=installation.settings.tm_keep_last))
            with suppress(*UNREADABLE):
                facts = replace(facts, short_keys=_short_keys(tx, installation))
        with suppress(*UNREADABLE):  # the row is among `unreadable`
            facts = replace(facts, status=overview.status(database))
        return facts
    except TmError as error:
        return replace(facts, database_error=str(error))
    except UNREADABLE as error:
        return replace(facts, database_error=told(error))


def _stated_late(installation: Installation) -> list[str]:
    read, now = installation.settings, installation.stated_now()
    return [one.name for one in fields(read) if getattr(read, one.name) != getattr(now, one.name)]


def _of_tables(tx: Transaction) -> dict[str, Any]:
    """Return what the tables tell; a question whose answer cannot be read is left out, its row is among `unreadable`."""
    found: dict[str, Any] = {}
    for ask in QUESTIONS:
        with suppress(*UNREADABLE):
            found |= ask(tx)
    return found


def _clock_and_speed(tx: Transaction) -> dict[str, Any]:
    ahead, statement = checkup.clock_and_speed(tx)
    return {"ahead": ahead, "statement": statement}


def _last_day(tx: Transaction) -> dict[str, Any]:
    orphaned, longest = checkup.last_day(tx)
    return {"orphaned": orphaned, "longest": longest}


def _without_next_run(tx: Transaction) -> dict[str, Any]:
    spent, never_again = checkup.without_next_run(tx)
    return {"spent": spent, "never_again": never_again}


def _apps(tx: Transaction) -> dict[str, Any]:
    seen = apps.beats_seen(tx)
    return {"strays": sorted(apps.strays(tx) - {tx.app}), "app": tx.app, "beats_seen": seen, "now": tx.read_now()}


QUESTIONS: Sequence[Callable[[Transaction], dict[str, Any]]] = (
    _clock_and_speed,
    _last_day,
    _without_next_run,
    lambda tx: {"tasks_of_definitions": checkup.tasks_of_definitions(tx)},
    lambda tx: {"tasks_owed": checkup.tasks_owed(tx)},
    lambda tx: {"dispatched_again": checkup.dispatched_again(tx, AGAIN)},
    lambda tx: {"running_longest": checkup.running_longest(tx, LONG)},
    lambda tx: {"stuck": checkup.stuck_occurrences(tx)},
    lambda tx: {"paused": checkup.paused_longest(tx)},
    lambda tx: {"last_buried_at": checkup.last_buried_at(tx)},
    lambda tx: {"unreadable": found_in(tx, limit=LOOKED_AT)},
    lambda tx: {"broken": checkup.broken_definitions(tx)},
    lambda tx: {"blocked": checkup.blocked_queues(tx)},
    lambda tx: {"overdue": checkup.overdue_definitions(tx, LATE)},
    lambda tx: {"conflicts": checkup.conflicting_definitions(tx)},
    _apps,
)


def _short_keys(tx: Transaction, installation: Installation) -> list[ShortKey]:
    """Return the tasks with keys that definitions run less often than their keys are kept."""
    app, found = installation.app, []
    keyed = {name: task for name, task in app.tasks.items() if getattr(task, "tm_gated", False)}
    now = tx.read_now()
    for definition in checkup.definitions_on(tx):
        if definition.problem is not None:
            continue
        own = [definition.task] if not definition.steps else []
        steps = [step for stage in read_steps(definition.steps or []) for step in stage]
        named = {task for task in own if task in keyed and keyed[task].key is not None}
        named |= {step.task for step in steps if step.own.get("key") or getattr(keyed.get(step.task), "key", None)}
        period = _period(definition, now) if named else None
        for task in sorted(named):
            kept = _kept_for(keyed.get(task), installation)
            if period is not None and kept < period:
                found.append(ShortKey(task=task, kept=kept, definition=definition.name, period=period))
    return found


def _kept_for(task: Any, installation: Installation) -> timedelta:
    stated = getattr(task, "keep_key", None)
    own = {} if stated is None else read_keep_key(stated)
    return own.get("succeeded", installation.settings.keep_keys["succeeded"])


def _period(definition: Definition, now: datetime) -> timedelta | None:
    """Return the time between the next two runs of a definition; None if there are no two."""
    first = definition.next_after(now)
    second = None if first is None else definition.next_after(first)
    return None if first is None or second is None else second - first


def _of_broker(installation: Installation) -> dict[str, Any]:
    """Return where the broker is, what is wrong with it, and how long it waits for an acknowledgement."""
    app, hidden = installation.app, installation.hidden
    try:
        connection = app.connection_for_write(connect_timeout=PATIENCE)
        where, options = connection.as_uri(), dict(connection.transport_options or {})
    except Exception as error:  # a URL that nobody understands
        return {"broker": hidden(app.conf.broker_url), "broker_error": hidden(_said(error))}
    scheme = (connection.transport_cls if isinstance(connection.transport_cls, str) else "").partition("+")[0]
    answer = {"broker": hidden(where), "visibility": _visibility(scheme, options)}
    try:
        with connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=PATIENCE)
            connection.channel().close()
    except Exception as error:
        answer["broker_error"] = hidden(_said(error))
    return answer


def _said(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _visibility(scheme: str, options: dict[str, Any]) -> timedelta | None:
    if scheme not in VISIBILITY:
        return None
    seconds = options.get("visibility_timeout", VISIBILITY[scheme])
    return timedelta(seconds=float(seconds))


def _of_tasks(app: Celery) -> dict[str, Any]:
    """Return the tasks that this app has, and how long those may run that are acknowledged after their body."""
    app.loader.import_default_modules()
    known = own_tasks(app)
    late = {name: _limit(app, app.tasks[name]) for name in known if app.tasks[name].acks_late}
    return {"known_tasks": frozenset(app.tasks) if known else None, "late_tasks": late}


def _limit(app: Celery, task: Any) -> timedelta | None:
    seconds = task.time_limit or app.conf.task_time_limit
    return timedelta(seconds=float(seconds)) if seconds else None
