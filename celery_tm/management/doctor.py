"""`tm.doctor()`: gathers what the rules of `domain.checkup` go by. It changes nothing, and what is away is a finding too."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

from celery import Celery

from ..domain.checkup import AGAIN, CHECKS
from ..domain.findings import Facts, Finding, examine
from ..errors import TmError
from ..installation import Installation
from ..producer.workflows import own_tasks
from ..store import checkup, overview, schema
from ..store.database import Transaction
from ..version import __version__

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
        return replace(facts, status=overview.status(database))
    except TmError as error:
        return replace(facts, database_error=str(error))


def _stated_late(installation: Installation) -> list[str]:
    read, now = installation.settings, installation.stated_now()
    return [one.name for one in fields(read) if getattr(read, one.name) != getattr(now, one.name)]


def _of_tables(tx: Transaction) -> dict[str, Any]:
    ahead, statement = checkup.clock_and_speed(tx)
    orphaned, longest = checkup.last_day(tx)
    spent, never_again = checkup.without_next_run(tx)
    return {
        "ahead": ahead,
        "statement": statement,
        "tasks_of_definitions": checkup.tasks_of_definitions(tx),
        "tasks_owed": checkup.tasks_owed(tx),
        "dispatched_again": checkup.dispatched_again(tx, AGAIN),
        "stuck": checkup.stuck_occurrences(tx),
        "spent": spent,
        "never_again": never_again,
        "paused": checkup.paused_longest(tx),
        "orphaned": orphaned,
        "longest": longest,
        "last_buried_at": checkup.last_buried_at(tx),
        "oldest": checkup.oldest(tx),
    }


def _of_broker(installation: Installation) -> dict[str, Any]:
    """Return where the broker is, what is wrong with it, and how long it waits for an acknowledgement."""
    app, hidden = installation.app, installation.hidden
    try:
        connection = app.connection_for_write(connect_timeout=PATIENCE)
        where, options = connection.as_uri(), dict(connection.transport_options or {})
    except Exception as error:  # a URL that nobody understands
        return {"broker": hidden(app.conf.broker_url), "broker_error": hidden(_said(error))}
    scheme = (connection.transport_cls if isinstance(connection.transport_cls, str) else "").partition("+")[0]
    told = {"broker": hidden(where), "visibility": _visibility(scheme, options)}
    try:
        with connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=PATIENCE)
            connection.channel().close()
    except Exception as error:
        told["broker_error"] = hidden(_said(error))
    return told


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
