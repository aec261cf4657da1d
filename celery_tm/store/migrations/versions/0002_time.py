"""Slots, calendars, versions, catch-up and edits that wait: what being right about time needs."""

from sqlalchemy import Column, Index, Integer, MetaData, String, Table, text

from celery_tm.store import online
from celery_tm.store.types import Duration, Instant, Json, LongText

revision = "0002"
down_revision = "0001"

OPTIONS = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def _job() -> list[Column[object]]:
    return [
        Column("scheduled_at", Instant),
        Column("covers_from", Instant),
        Column("covers_until", Instant),
        Column("execution_timeout", Duration),
        Column("concurrency", Integer),
        Column("slot", String(4)),
    ]


def _definition() -> list[Column[object]]:
    return [
        Column("excluded", Json),
        Column("calendars", Json),
        Column("jitter", Duration),
        Column("max_runs", Integer),
        Column("concurrency_key", String(255)),
        Column("concurrency", Integer),
        Column("recovery_count", Integer),
        Column("recovery_within", Duration),
        Column("recovery_spacing", Duration),
        Column("execution_timeout", Duration),
        Column("expires", Duration),
        Column("pause_after", Integer),
        Column("plan_ahead", Duration),
        Column("origin", String(100)),
        Column("retired_at", Instant),
        Column("next_edit", Json),
        Column("runs", Integer, nullable=False, server_default=text("0")),
        Column("planned_offset", Integer),
        Column("catching_up_from", Instant),
        Column("spaced_until", Instant),
    ]


def _tables() -> MetaData:
    metadata = MetaData()
    Table(
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
    Table(
        "tm_calendar",
        metadata,
        Column("name", String(100), primary_key=True),
        Column("entries", Json, nullable=False),
        Column("updated_at", Instant, nullable=False),
        Column("updated_by", String(255)),
        **OPTIONS,
    )
    Table("tm_lane", metadata, Column("key", String(255), primary_key=True), **OPTIONS)
    Table(
        "tm_mark",
        metadata,
        Column("name", String(100), primary_key=True),
        Column("value", LongText, nullable=False),
        Column("at", Instant, nullable=False),
        **OPTIONS,
    )
    return metadata


def upgrade() -> None:
    for table in ("tm_job", "tm_dead_letter"):
        online.add_columns(table, *_job())
    online.add_columns("tm_definition", *_definition())
    online.rename_column("tm_definition", "timeout", "task_timeout")
    online.add_columns("tm_occurrence", *_occurrence())
    # Every occurrence there is was decided; only what is planned ahead is not.
    online.fill("tm_occurrence", "decided_at", "scheduled_at", where="decided_at IS NULL")
    online.create_tables(_tables())
    online.drop_index("tm_job_due", "tm_job")
    pending, turn = "state = 'pending' AND slot IS NULL", "state = 'pending' AND slot = 'open'"
    online.add_index("tm_job_due", "tm_job", "run_at", where=pending, plain=("state", "slot", "run_at"))
    online.add_index("tm_job_turn", "tm_job", "run_at", where=turn, plain=("slot", "state", "run_at"))
    online.add_index("tm_job_lane", "tm_job", "concurrency_key", "run_at", where="slot IS NOT NULL")
    running, plain = "state = 'running'", ("state", "deadline_at")
    online.add_index("tm_occurrence_deadline", "tm_occurrence", "deadline_at", where=running, plain=plain)
    online.add_index("tm_occurrence_scheduled", "tm_occurrence", "scheduled_at")
    online.add_index("tm_definition_origin", "tm_definition", "origin")


def _occurrence() -> list[Column[object]]:
    return [Column("decided_at", Instant), Column("deadline_at", Instant)]


def downgrade() -> None:
    for name in ("tm_job_due", "tm_job_turn", "tm_job_lane"):
        online.drop_index(name, "tm_job")
    for name in ("tm_occurrence_deadline", "tm_occurrence_scheduled"):
        online.drop_index(name, "tm_occurrence")
    online.drop_index("tm_definition_origin", "tm_definition")
    online.add_index("tm_job_due", "tm_job", "run_at", where="state = 'pending'", plain=("state", "run_at"))
    online.drop_tables(_tables())
    # The first tables know nothing of instants that are only planned: they would take them for owed.
    if online.has_column("tm_occurrence", "decided_at"):
        online.delete_rows("tm_occurrence", where="decided_at IS NULL")
    online.drop_columns("tm_occurrence", *(column.name for column in _occurrence()))
    online.rename_column("tm_definition", "task_timeout", "timeout")
    online.drop_columns("tm_definition", *(column.name for column in _definition()))
    for table in ("tm_job", "tm_dead_letter"):
        online.drop_columns(table, *(column.name for column in _job()))
