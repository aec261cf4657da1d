"""Writes the pages that only repeat what the code says: states, settings, errors, events, metrics, tables, limits,
rights and commands.

`python docs/generate.py` writes them; with `--check` it writes nothing, names the pages that are stale and exits with 1.
What the code cannot say (why an occurrence moves, what a table is for) stands here, and a missing entry is an error.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from datetime import UTC, datetime, timedelta
from logging import getLevelName
from pathlib import Path
from typing import Any

from generated.api import api_page
from generated.commands import commands_page
from generated.json_shapes import json_page
from generated.limits import limits_page
from generated.markdown import code, first_line, page, table
from generated.metrics import metrics_page
from generated.rights import rights_page
from sqlalchemy import Boolean, Column, Index, Integer, String, Table, UniqueConstraint

from celery_tm import errors, events
from celery_tm.clock import format_duration
from celery_tm.domain.execution import STATUS
from celery_tm.domain.job import NEXT, Job, JobState, Status
from celery_tm.domain.occurrence import OCCURRENCE_NEXT, OccurrenceState
from celery_tm.management.easy import BACKENDS, BROKERS
from celery_tm.settings import FROM_ENVIRONMENT, Settings
from celery_tm.store.tables import metadata
from celery_tm.store.types import Duration, Instant, Json, LongText

DOCS = Path(__file__).parent


# States

# How a job's row comes to be; `NEXT` says only how it goes on.
JOB_BIRTHS: Mapping[JobState, str] = {
    JobState.PENDING: "deferred with a delay, planned, triggered, replayed, backfilled or revived, "
    "or a direct call that takes turns",
    JobState.DISPATCHED: "deferred to run at once, published after commit",
    JobState.RUNNING: "a direct call passes the gate",
}
OCCURRENCE_BIRTHS: Mapping[OccurrenceState, str] = {
    OccurrenceState.PENDING: "it is to run: a job is created with it; or it is planned ahead, and nothing is decided",
    OccurrenceState.CANCELLED: "overlap=replace, and a newer one runs",
    OccurrenceState.SKIPPED: "the definition was paused or disabled, or met an earlier one (overlap=skip, queue_one)",
    OccurrenceState.MISSED: "it came while no beat was planning, and recovery=skip or bounded leaves it out",
    OccurrenceState.COALESCED: "it came while no beat was planning, and recovery=last or compressed runs once for all",
}


def states_page() -> str:
    """Return the page about states."""
    return page(
        "States",
        "The state machines are data: `NEXT` in `celery_tm/domain/job.py` and `OCCURRENCE_NEXT` in "
        "`celery_tm/domain/occurrence.py`. This page is drawn from them.",
        "## Jobs",
        "A job's row exists only while work is owed. Where the table says *gone*, the row is deleted; its executions, "
        "its dead letter or its key tell what became of it.",
        _diagram(JOB_BIRTHS, [(a, b, why) for a, following in NEXT.items() for b, why in following.items()]),
        table(("from", "to", "why"), _job_rows()),
        "## Occurrences",
        "An occurrence that was decided stays until it is pruned (`tm_keep_executions`). While its job waits for another "
        "try, it stays *running*. One that is only planned ahead is *pending* with an empty `decided_at`; when its instant "
        "comes it is decided like any other, and it goes when an edit takes its instant away.",
        _diagram(OCCURRENCE_BIRTHS, _occurrence_moves()),
        table(("from", "to", "why"), _occurrence_rows()),
        "## What callers are told",
        "`JobHandle.state` and `tm.job(id).state` answer one of these, also after the row is gone. While the row is there:",
        table(("the job is", "callers are told"), _owed_statuses()),
        "Afterwards, by the outcome of its last execution:",
        table(("outcome", "callers are told"), [(code(o), code(s)) for o, s in STATUS.items()]),
        f"A dead letter answers {code(Status.FAILED)}.",
    )


def _job_rows() -> list[tuple[str, str, str]]:
    born = [("(new)", code(state), why) for state, why in JOB_BIRTHS.items()]
    moves = [(code(a), code(b) if b else "gone", why) for a, following in NEXT.items() for b, why in following.items()]
    return born + moves


def _occurrence_moves() -> list[tuple[OccurrenceState, OccurrenceState, str]]:
    return [(before, after, why) for before, following in OCCURRENCE_NEXT.items() for after, why in following.items()]


def _occurrence_rows() -> list[tuple[str, str, str]]:
    born = [("(new)", code(state), why) for state, why in OCCURRENCE_BIRTHS.items()]
    return born + [(code(before), code(after), why) for before, after, why in _occurrence_moves()]


def _diagram(births: Mapping[Any, str], moves: Iterable[tuple[Any, Any, str]]) -> str:
    """Return a mermaid diagram; a semicolon would end a label there."""
    lines = [f"    [*] --> {state}: {why}" for state, why in births.items()]
    lines += [f"    {before} --> {after or '[*]'}: {why}" for before, after, why in moves]
    return "\n".join(["```mermaid", "stateDiagram-v2", *(line.replace(";", ",") for line in lines), "```"])


def _owed_statuses() -> list[tuple[str, str]]:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    rows = []
    for state in JobState:
        for attempt, which in ((1, "first try"), (2, "a later try")):
            facts: dict[str, Any] = {"run_at": now, "created_at": now, "original_delay": timedelta(0)}
            job = Job(id="", task="", args="[]", kwargs="{}", state=state, attempt=attempt, **facts)
            rows.append((f"{code(state)}, {which}", code(job.status)))
    return rows


# Settings


def settings_page() -> str:
    """Return the page about settings."""
    rows = [
        (
            code(f.name),
            _default(f),
            code(FROM_ENVIRONMENT[f.name]) if f.name in FROM_ENVIRONMENT else "–",
            f.metadata["about"],
        )
        for f in fields(Settings)
    ]
    return page(
        "Settings",
        "Set them on the app: `app.conf.tm_lease = '30s'`. What the app does not state comes from the environment where a "
        "variable is named, else from the default. They are read once, when the app is first used with celery_tm. "
        "A `tm_` name that is not on this page is refused.",
        "Durations may be a `timedelta`, seconds, or text like `'15m'` and `'1h 30m'`; they must be above zero.",
        table(("setting", "default", "environment", "meaning"), rows),
        "`easy_app` also reads the broker and the result backend from the environment; the first variable that is set wins.",
        table(
            ("what", "environment"),
            [
                ("broker", ", ".join(map(code, BROKERS)) + "; none: files in the folder `.celery_tm`"),
                (
                    "result backend",
                    ", ".join(map(code, BACKENDS)) + "; none: with the file broker, files in the same folder",
                ),
            ],
        ),
    )


def _default(setting: Field[Any]) -> str:
    value = setting.default_factory() if setting.default_factory is not MISSING else setting.default
    if value is None:
        return "unset"
    return code(format_duration(value) if isinstance(value, timedelta) else value)


# Errors

EXAMPLES: Mapping[str, tuple[Any, ...]] = {
    "TmError": ("something is wrong",),
    "InvalidValue": ("delay", "'soon' is not a duration", "give a timedelta, seconds, or text like '15m' or '1h 30m'"),
    "NoInstantLeft": (
        "schedule",
        "'at 2020-01-01T00:00:00+00:00' has no instant after now",
        "give one that is still to come",
    ),
    "UnknownName": ("ordr",),
    "UnknownSetting": ("tm_leese", "tm_lease"),
    "UnknownOption": ("dely", "delay"),
    "UnknownTask": ("shop.expire",),
    "UnknownStep": ("fetsh", "fetch"),
    "UnknownHook": ("notify",),
    "StepResultMissing": ("fetch", "is not there: the step is failed"),
    "UnknownTimeZone": ("Europe/Warsow", "Europe/Warsaw"),
    "UnknownSource": ("red-beat", "redbeat"),
    "DefinitionNotFound": ("nightly",),
    "DefinitionExists": ("nightly",),
    "StaleVersion": ("nightly", 3, 4, "kim", {"queue": ("'fast'", "'slow'")}),
    "JobNotFound": ("01981f6e-7c10-7a52-b1c3-0d3f5a6b7c8d",),
    "RowUnreadable": ("tm_job", "01981f6e-7c10-7a52-b1c3-0d3f5a6b7c8d", "'paused' is not a state"),
    "OccurrenceNotFound": ("4e0a44f4-6a5b-5d4c-9a57-3f5a4d1c0b7e",),
    "DeadLetterNotFound": ("01981f6e-7c10-7a52-b1c3-0d3f5a6b7c8d",),
    "CountChanged": ("dead letters", 40, 42),
    "DuplicateKey": ("shop.expire_payment", "order:42", "01981f6e-7c10-7a52-b1c3-0d3f5a6b7c8d"),
    "DuplicateId": ("shop.expire_payment", "01981f6e-7c10-7a52-b1c3-0d3f5a6b7c8d"),
    "SchemaMissing": ("postgresql://shop@db/shop",),
    "SchemaOutdated": ("postgresql://shop@db/shop", "0001", "0002"),
    "TableInUse": ("tm_job", 60.0),
    "DatabaseUnavailable": ("postgresql://shop@db/shop", "connection refused"),
    "DatabaseBusy": ("postgresql://shop@db/shop", "canceling statement due to lock timeout"),
    "PoolerUnfit": ("postgresql://shop@pgbouncer/shop", 'prepared statement "_pg3_0" does not exist'),
    "RightMissing": ("postgresql://shop_worker@db/shop", "UPDATE", "tm_job"),
    "DatabaseReadOnly": ("postgresql://shop@replica/shop", "cannot execute INSERT in a read-only transaction"),
    "SourceUnavailable": ("redis://:**@old:6379/0", "connection refused"),
    "SourceEmpty": ("postgresql://shop@db/shop", "table celery_periodictask", "give the database that the old beat uses"),
    "DriverMissing": ("postgresql://shop@db/shop", "postgres"),
    "FlowerMissing": ("celery_tm.flower",),
    "FlowerUnfit": ("the last of flower.urls.handlers is not the one that answers 404",),
    "ForeignSession": ("sqlite:///other.db", "sqlite:///shop.db"),
    "LeaseLost": ("01981f6e-7c10-7a52-b1c3-0d3f5a6b7c8d", 1),
    "AppMissing": ("celery tm",),
}


def errors_page() -> str:
    """Return the page about errors."""
    rows = [(code(kind.__name__), _bases(kind), first_line(kind), str(kind(*EXAMPLES[kind.__name__]))) for kind in _errors()]
    return page(
        "Errors",
        "Everything celery_tm raises on purpose is a `TmError`; the classes are in `celery_tm.errors`. Each keeps its facts "
        "as attributes and as `args`, so it survives pickling. On the command line an error is one line and exit code 1.",
        table(("class", "is a", "meaning", "example"), rows),
    )


def _errors() -> list[type[Exception]]:
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.TmError)]
    return sorted(found, key=lambda kind: inspect.getsourcelines(kind)[1])


def _bases(kind: type[Exception]) -> str:
    return ", ".join(code(base.__name__) for base in kind.__bases__)


# Events


def events_page() -> str:
    """Return the page about events."""
    rows = [
        (
            code(f"events.{signal.name}"),
            first_line(event),
            ", ".join(code(f"{f.name}: {f.type}") for f in fields(event)),
            _level(event),
        )
        for event, signal in events.SIGNALS.items()
    ]
    return page(
        "Events",
        "Each event is a Celery signal in `celery_tm.events`. Connect to it as to any of Celery's; the handler gets the app "
        "as `sender` and the event's fields as keywords. Signals arrive in the process where the event happened: execution "
        "events of a body in the worker's pool process, those of the sweeper in beat.",
        "```python\n"
        "from celery_tm import events\n\n\n"
        "@events.execution_failed.connect(weak=False)\n"
        "def tell(sender=None, job=None, error=None, **_):\n"
        "    print(job, error)\n"
        "```",
        "Delivery is best effort: a process that dies between its commit and the signal sends none. "
        "The tables are the truth.",
        table(("signal", "meaning", "fields", "logged at"), rows),
        "Every event is also one line of the logger `celery_tm`, with its fields in `record.tm`. "
        "With `tm_verbose` the events logged at DEBUG are logged at INFO.",
    )


def _level(event: type) -> str:
    if event is events.JobsSwept:  # beat always emits this one as verbose
        return "INFO"
    return getLevelName(events.LEVELS[event]) if event in events.LEVELS else "DEBUG"


# Tables

ABOUT: Mapping[str, str] = {
    "tm_job": "One piece of work that is still owed. A row lives from `defer` (or the planner, or the gate of a direct "
    "call) until the work has succeeded, was cancelled, or moved to the dead letters.",
    "tm_dead_letter": "A job that will not be tried again by itself: the job's columns, why it was buried, its last error.",
    "tm_execution": "One attempt, written once when it ended, never changed. `definition` is the name of the one whose "
    "occurrence it was part of, also after that was removed. `dedupe_key` and `scope` are those of its job, `run_at` is "
    "when the attempt was due, and `next_delay` the backoff before the next one.",
    "tm_scope": "The references in the scope of an execution, by which `tm.history(scope=…)` finds it: one row for each, "
    "with its value as text. Executions without a scope have none. The rows are pruned with their execution.",
    "tm_key": "A key that has succeeded, kept until `kept_until`, with the result; by policy also one whose job failed or "
    "was cancelled, which `outcome` tells.",
    "tm_definition": "A recurring rule. `planned_until` is the last instant decided; it only moves forward.",
    "tm_occurrence": "One instant of a definition and what was decided about it. Where `decided_at` is empty it is only "
    "planned ahead.",
    "tm_workflow": "One run of a workflow: what is left of its joins, what stopped it, and what it was stated with.",
    "tm_step": "One step of a run: what it does and waits for, and how it ended.",
    "tm_version": "Every version of every definition as it was stated, with who made it and why. It is never pruned.",
    "tm_calendar": "Named days on which the definitions that name them do not fire.",
    "tm_lane": "One row for each concurrency key in use. It is locked while slots are given out; it counts nothing.",
    "tm_mark": "Small facts that all nodes share: `tzdata:` and an app, the tz database that its plans were made with.",
    "tm_log": "A progress or log line of one execution.",
    "tm_audit": "Who changed what. Background work, and calls that name no actor, are `SYSTEM`.",
    "tm_node": "A running beat or worker, by when it was last seen. One that stops in order removes its row; "
    "one that was killed leaves it.",
}
WORDS: Mapping[type, str] = {
    Instant: "instant",
    Duration: "duration",
    Json: "JSON",
    LongText: "text",
    Boolean: "flag",
    Integer: "integer",
}


def tables_page() -> str:
    """Return the page about tables."""
    parts = [part for each in metadata.sorted_tables for part in _table(each)]
    return page(
        "Tables",
        "The tables are there to be read: with SQL, by reports, by whoever is on call. Write to them only through "
        "celery_tm. `tm_schema_version` belongs to Alembic and tells the revision. Executions, occurrences, keys, log "
        "lines and audit lines are pruned by age and number (`tm_keep_…`); what is owed, dead letters, definitions and "
        "their versions stay.",
        "Types: *instant* is UTC with microseconds (`timestamptz` in PostgreSQL, `datetime(6)` in MySQL), *duration* is "
        "seconds as a double, *JSON* and *text* are long text in every database. *?* means that the column may be empty.",
        "No table has a foreign key. A partial index covers only the rows it names; MySQL has none such and indexes all "
        "rows.",
        *parts,
    )


def _table(each: Table) -> list[str]:
    columns = [(code(c.name), _type(c)) for c in each.columns]
    return [
        f"## {each.name}",
        ABOUT[each.name],
        table(("column", "type"), columns),
        table(("index", "columns", "rows"), _indexes(each)),
    ]


def _type(column: Column[Any]) -> str:
    kind = column.type
    if isinstance(kind, String) and kind.length:
        word = f"text ({kind.length})"
    else:
        word = next(word for known, word in WORDS.items() if isinstance(kind, known))
    return word + ("?" if column.nullable else "") + (", primary key" if column.primary_key else "")


def _indexes(each: Table) -> list[tuple[str, str, str]]:
    rows = [("primary key", _names(each.primary_key.columns), "all, unique")]
    uniques = sorted((c for c in each.constraints if isinstance(c, UniqueConstraint)), key=lambda c: str(c.name))
    rows += [(code(one.name), _names(one.columns), "all, unique") for one in uniques]
    plain = {index.name: index for index in each.indexes if _where(index) is None}
    partial = {index.name: index for index in each.indexes if _where(index) is not None}
    for name in sorted({*plain, *partial}, key=str):
        index = partial.get(name) or plain[name]
        where = f"where {code(_where(index))}" if name in partial else "all"
        other = plain[name].columns if name in partial and name in plain else index.columns
        if _names(other) != _names(index.columns):
            where += f"; in MySQL all, on {_names(other)}"
        rows.append((code(name), _names(index.columns), where))
    return rows


def _where(index: Index) -> str | None:
    where = index.dialect_options["postgresql"].get("where")
    return None if where is None else str(where)


def _names(columns: Iterable[Column[Any]]) -> str:
    return ", ".join(code(column.name) for column in columns)


# Running it

PAGES: Mapping[str, Callable[[], str]] = {
    "explanation/states.md": states_page,
    "reference/settings.md": settings_page,
    "reference/errors.md": errors_page,
    "reference/events.md": events_page,
    "reference/metrics.md": metrics_page,
    "reference/tables.md": tables_page,
    "reference/commands.md": commands_page,
    "reference/json.md": json_page,
    "reference/api.md": api_page,
    "reference/limits.md": limits_page,
    "reference/rights.md": rights_page,
}


def stale_pages() -> list[str]:
    """Return the pages that do not say what the code says."""
    return [path for path, write in PAGES.items() if not (DOCS / path).exists() or (DOCS / path).read_text() != write()]


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or check them; return the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python docs/generate.py [--check]")  # noqa: T201
        return 2
    stale = stale_pages()
    for path in stale:
        if arguments:
            print(f"stale: docs/{path}; run python docs/generate.py")  # noqa: T201
        else:
            (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
            (DOCS / path).write_text(PAGES[path]())
            print(f"written: docs/{path}")  # noqa: T201
    return 1 if stale and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
