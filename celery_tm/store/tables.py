"""The tables. Migrations create them; a test holds the two in step.

`tm_job` is the hot one: it keeps only what is still owed, has no foreign keys, and its indexes cover just the rows a
question is about. The states in those indexes are literals, and so are they in the statements: a parameter would hide the
partial index from PostgreSQL's planner.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
    false,
    text,
)

from ..domain.job import MAX_ENTITY, MAX_ID, MAX_KEY, MAX_NAME, MAX_TASK
from .types import Duration, Instant, Json, LongText

metadata = MetaData()
# Keys and names compare to the letter everywhere; MySQL's default would ignore case.
OPTIONS: dict[str, Any] = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def partial(name: str, *columns: str, where: str, plain: tuple[str, ...] | None = None) -> tuple[Index, Index]:
    """Return an index over the rows that `where` names; MySQL, which knows none such, indexes `plain` or all rows."""
    some = Index(name, *columns, postgresql_where=text(where), sqlite_where=text(where))
    every = Index(name, *(plain or columns))
    with_parts: Any = ("postgresql", "sqlite")
    without: Any = ("mysql", "mariadb")
    return some.ddl_if(dialect=with_parts), every.ddl_if(dialect=without)


def _job_columns() -> list[Column[object]]:
    return [
        Column("id", String(MAX_ID), primary_key=True),
        Column("task", String(MAX_TASK), nullable=False),
        Column("args", LongText),
        Column("kwargs", LongText),
        Column("dedupe_key", String(MAX_KEY)),
        Column("keep_key", Duration),
        Column("entity_id", String(MAX_ENTITY)),
        Column("scope", Json),
        Column("run_at", Instant, nullable=False),
        Column("scheduled_at", Instant),
        Column("covers_from", Instant),
        Column("covers_until", Instant),
        Column("created_at", Instant, nullable=False),
        Column("original_delay", Duration, nullable=False),
        Column("state", String(10), nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("tries_from", Integer, nullable=False),
        Column("max_retries", Integer),
        Column("retry", Json),
        Column("lease_until", Instant),
        Column("claimed_by", String(255)),
        Column("claimed_at", Instant),
        Column("dispatches", Integer, nullable=False),
        Column("queue", String(255)),
        Column("priority", SmallInteger),
        Column("expires_at", Instant),
        Column("timeout", Duration),
        Column("execution_timeout", Duration),
        Column("concurrency_key", String(MAX_KEY)),
        Column("concurrency", Integer),
        Column("slot", String(4)),
        Column("occurrence", String(36)),
        Column("definition", String(MAX_NAME)),
        Column("step", String(100)),
        Column("source", String(10), nullable=False),
        Column("options", Json),
        Column("cancel_requested", Boolean, nullable=False),
        Column("progress", LongText),
        Column("last_error", LongText),
        Column("actor", String(255)),
        Column("ended", Json),
        Column("carrier", String(36)),
    ]


job = Table(
    "tm_job",
    metadata,
    *_job_columns(),
    UniqueConstraint("dedupe_key", "task", name="tm_job_key"),
    # Jobs that need a slot have an index of their own: those that wait for one never stand in the way of the others.
    *partial("tm_job_due", "run_at", where="state = 'pending' AND slot IS NULL", plain=("state", "slot", "run_at")),
    *partial("tm_job_turn", "run_at", where="state = 'pending' AND slot = 'open'", plain=("slot", "state", "run_at")),
    *partial("tm_job_lane", "concurrency_key", "run_at", where="slot IS NOT NULL"),
    *partial("tm_job_lease", "lease_until", where="state <> 'pending'", plain=("state", "lease_until")),
    *partial("tm_job_entity", "entity_id", "task", where="entity_id IS NOT NULL"),
    *partial("tm_job_occurrence", "occurrence", where="occurrence IS NOT NULL"),
    **OPTIONS,
)

dead_letter = Table(
    "tm_dead_letter",
    metadata,
    *_job_columns(),
    Column("reason", LongText, nullable=False),
    Column("traceback", LongText),
    Column("buried_at", Instant, nullable=False),
    Index("tm_dead_letter_task", "task", "buried_at"),
    Index("tm_dead_letter_buried", "buried_at"),
    **OPTIONS,
)

execution = Table(
    "tm_execution",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("job", String(MAX_ID), nullable=False),
    Column("task", String(MAX_TASK), nullable=False),
    Column("source", String(10), nullable=False),
    Column("occurrence", String(36)),
    Column("definition", String(MAX_NAME)),
    Column("entity_id", String(MAX_ENTITY)),
    Column("attempt", Integer, nullable=False),
    Column("started_at", Instant),
    Column("completed_at", Instant, nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("message", LongText),
    Column("error", LongText),
    Column("traceback", LongText),
    Column("worker", String(255)),
    Column("actor", String(255)),
    Index("tm_execution_job", "job", "attempt"),
    Index("tm_execution_task", "task", "completed_at"),
    Index("tm_execution_completed", "completed_at"),
    *partial("tm_execution_occurrence", "occurrence", where="occurrence IS NOT NULL"),
    *partial("tm_execution_definition", "definition", "completed_at", where="definition IS NOT NULL"),
    *partial("tm_execution_entity", "entity_id", "completed_at", where="entity_id IS NOT NULL"),
    # Most succeed: whoever looks for the others does not read past those, and those cost nothing to write.
    *partial("tm_execution_trouble", "outcome", "completed_at", where="outcome <> 'succeeded'"),
    **OPTIONS,
)

key = Table(
    "tm_key",
    metadata,
    Column("task", String(MAX_TASK), primary_key=True),
    Column("key", String(MAX_KEY), primary_key=True),
    Column("job", String(MAX_ID), nullable=False),
    Column("execution", String(36), nullable=False),
    Column("result", LongText),
    Column("done_at", Instant, nullable=False),
    Column("kept_until", Instant, nullable=False),
    Index("tm_key_job", "job"),
    Index("tm_key_kept", "kept_until"),
    **OPTIONS,
)

definition = Table(
    "tm_definition",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("name", String(100), nullable=False),
    Column("task", String(MAX_TASK), nullable=False),
    Column("args", LongText, nullable=False),
    Column("kwargs", LongText, nullable=False),
    Column("schedule_kind", String(20), nullable=False),
    Column("schedule", LongText, nullable=False),
    Column("timezone", String(64), nullable=False),
    Column("gap", String(10), nullable=False),
    Column("fold", String(10)),
    Column("starts_at", Instant),
    Column("ends_at", Instant),
    Column("excluded", Json),
    Column("calendars", Json),
    Column("jitter", Duration),
    Column("max_runs", Integer),
    Column("enabled", Boolean, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("group", String(100)),
    Column("queue", String(255)),
    Column("priority", SmallInteger),
    Column("max_retries", Integer),
    Column("retry", Json),
    Column("overlap", String(20), nullable=False),
    Column("concurrency_key", String(MAX_KEY)),
    Column("concurrency", Integer),
    Column("recovery", String(20), nullable=False),
    Column("recovery_count", Integer),
    Column("recovery_within", Duration),
    Column("recovery_spacing", Duration),
    Column("execution_timeout", Duration),
    Column("task_timeout", Duration),
    Column("expires", Duration),
    Column("pause_after", Integer),
    Column("plan_ahead", Duration),
    Column("options", Json),
    Column("steps", Json),
    Column("mode", String(10), nullable=False, server_default="sequential"),
    Column("failure_strategy", String(20)),
    Column("max_parallel", Integer),
    Column("terminate", Boolean, nullable=False, server_default=false()),
    Column("on_start", String(MAX_TASK)),
    Column("on_complete", String(MAX_TASK)),
    Column("origin", String(100)),
    Column("retired_at", Instant),
    Column("version", Integer, nullable=False),
    Column("next_edit", Json),
    Column("runs", Integer, nullable=False, server_default=text("0")),
    Column("planned_until", Instant, nullable=False),
    Column("planned_offset", Integer),
    Column("catching_up_from", Instant),
    Column("spaced_until", Instant),
    Column("next_run_at", Instant),
    Column("last_run_at", Instant),
    Column("created_at", Instant, nullable=False),
    Column("created_by", String(255)),
    Column("updated_at", Instant, nullable=False),
    Column("updated_by", String(255)),
    UniqueConstraint("name", name="tm_definition_name"),
    Index("tm_definition_due", "next_run_at"),
    Index("tm_definition_group", "group"),
    Index("tm_definition_origin", "origin"),
    **OPTIONS,
)

occurrence = Table(
    "tm_occurrence",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("definition", String(36), nullable=False),
    Column("version", Integer, nullable=False),
    Column("scheduled_at", Instant, nullable=False),
    Column("state", String(10), nullable=False),
    Column("reason", LongText),
    Column("is_recovery", Boolean, nullable=False),
    Column("covers_from", Instant),
    Column("covers_until", Instant),
    Column("replay_of", String(36)),
    Column("decided_at", Instant),
    Column("started_at", Instant),
    Column("deadline_at", Instant),
    Column("ended_at", Instant),
    Column("report", Json),
    Index("tm_occurrence_definition", "definition", "scheduled_at"),
    Index("tm_occurrence_scheduled", "scheduled_at"),
    *partial("tm_occurrence_deadline", "deadline_at", where="state = 'running'", plain=("state", "deadline_at")),
    *partial(
        "tm_occurrence_active",
        "definition",
        where="state IN ('pending', 'queued', 'running')",
        plain=("definition", "state"),
    ),
    **OPTIONS,
)

# One run of a workflow; its id is its occurrence's. Locked, before any of its steps, by locking the row of its job.
workflow = Table(
    "tm_workflow",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("job", String(MAX_ID), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("remaining", Json, nullable=False),
    Column("stopped_by", LongText),
    Column("stopped_as", String(10)),
    Column("settings", Json, nullable=False),
    Column("created_at", Instant, nullable=False),
    Index("tm_workflow_created", "created_at"),
    **OPTIONS,
)

step = Table(
    "tm_step",
    metadata,
    Column("workflow", String(36), primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("task", String(MAX_TASK), nullable=False),
    Column("args", LongText, nullable=False),
    Column("kwargs", LongText, nullable=False),
    Column("settings", Json, nullable=False),
    Column("regardless", Boolean, nullable=False),
    Column("waits_for", Integer),
    Column("feeds", LongText, nullable=False),
    Column("state", String(10), nullable=False),
    Column("job", String(36), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("started_at", Instant),
    Column("ended_at", Instant),
    Column("outcome", String(20)),
    Column("result", LongText),
    Column("error", LongText),
    Column("cancelled_by", LongText),
    Column("kept_from", String(36)),
    Index("tm_step_join", "workflow", "waits_for"),
    **OPTIONS,
)

version = Table(
    "tm_version",
    metadata,
    Column("definition", String(36), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("at", Instant, nullable=False),
    Column("actor", String(255), nullable=False),
    Column("action", String(40), nullable=False),
    Column("reason", LongText),
    Column("stated", Json, nullable=False),
    **OPTIONS,
)

calendar = Table(
    "tm_calendar",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("entries", Json, nullable=False),
    Column("updated_at", Instant, nullable=False),
    Column("updated_by", String(255)),
    **OPTIONS,
)

lane = Table(
    "tm_lane",
    metadata,
    Column("key", String(MAX_KEY), primary_key=True),
    **OPTIONS,
)

mark = Table(
    "tm_mark",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("value", LongText, nullable=False),
    Column("at", Instant, nullable=False),
    **OPTIONS,
)

log = Table(
    "tm_log",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("execution", String(36), nullable=False),
    Column("at", Instant, nullable=False),
    Column("level", String(10), nullable=False),
    Column("message", LongText, nullable=False),
    Index("tm_log_execution", "execution", "id"),
    Index("tm_log_at", "at"),
    **OPTIONS,
)

audit = Table(
    "tm_audit",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("at", Instant, nullable=False),
    Column("actor", String(255), nullable=False),
    Column("action", String(40), nullable=False),
    Column("object", String(255), nullable=False),
    Column("before", Json),
    Column("after", Json),
    Column("reason", LongText),
    Index("tm_audit_object", "object", "at"),
    Index("tm_audit_at", "at"),
    **OPTIONS,
)

node = Table(
    "tm_node",
    metadata,
    Column("name", String(255), primary_key=True),
    Column("kind", String(10), primary_key=True),
    Column("started_at", Instant, nullable=False),
    Column("seen_at", Instant, nullable=False),
    Column("version", String(40), nullable=False),
    **OPTIONS,
)
