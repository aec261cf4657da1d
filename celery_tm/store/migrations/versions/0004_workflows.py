"""Definitions with steps, the runs of workflows and their steps."""

from sqlalchemy import Boolean, Column, Index, Integer, MetaData, String, Table, false

from celery_tm.store import online
from celery_tm.store.types import Instant, Json, LongText

revision = "0004"
down_revision = "0003"

OPTIONS = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def _definition() -> list[Column[object]]:
    return [
        Column("steps", Json),
        Column("mode", String(10), nullable=False, server_default="sequential"),
        Column("failure_strategy", String(20)),
        Column("max_parallel", Integer),
        Column("terminate", Boolean, nullable=False, server_default=false()),
        Column("on_start", String(255)),
        Column("on_complete", String(255)),
    ]


def _tables() -> MetaData:
    metadata = MetaData()
    Table(
        "tm_workflow",
        metadata,
        Column("id", String(36), primary_key=True),
        Column("job", String(155), nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("remaining", Json, nullable=False),
        Column("stopped_by", LongText),
        Column("stopped_as", String(10)),
        Column("settings", Json, nullable=False),
        Column("created_at", Instant, nullable=False),
        Index("tm_workflow_created", "created_at"),
        **OPTIONS,
    )
    Table(
        "tm_step",
        metadata,
        Column("workflow", String(36), primary_key=True),
        Column("name", String(100), primary_key=True),
        Column("number", Integer, nullable=False),
        Column("task", String(255), nullable=False),
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
    return metadata


def upgrade() -> None:
    online.add_columns("tm_definition", *_definition())
    online.create_tables(_tables())


def downgrade() -> None:
    # The tables before know no workflows: what is owed of one, and the definitions that have steps, go.
    online.delete_rows("tm_job", where="step IS NOT NULL OR task = 'celery_tm.workflow'")
    if online.has_column("tm_definition", "steps"):
        online.delete_rows("tm_definition", where="steps IS NOT NULL")
    online.drop_tables(_tables())
    online.drop_columns("tm_definition", *(column.name for column in _definition()))
