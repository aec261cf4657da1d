"""Slots, calendars, versions, catch-up and edits that wait: what being right about time needs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy import Column, Index, Integer, MetaData, String, Table, text

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
        for column in _job():
            op.add_column(table, column, schema=_schema())
    for column in _definition():
        op.add_column("tm_definition", column, schema=_schema())
    _rename("tm_definition", "timeout", "task_timeout")
    for name in ("decided_at", "deadline_at"):
        op.add_column("tm_occurrence", Column(name, Instant), schema=_schema())
    # Every occurrence there is was decided; only what is planned ahead is not.
    occurrence = sa.table("tm_occurrence", sa.column("decided_at"), sa.column("scheduled_at"), schema=_schema())
    op.execute(occurrence.update().values(decided_at=occurrence.c.scheduled_at))
    _tables().create_all(op.get_bind(), checkfirst=False)
    op.drop_index("tm_job_due", "tm_job", schema=_schema())
    _partial("tm_job_due", "tm_job", ["run_at"], "state = 'pending' AND slot IS NULL", ["state", "slot", "run_at"])
    _partial("tm_job_turn", "tm_job", ["run_at"], "state = 'pending' AND slot = 'open'", ["slot", "state", "run_at"])
    _partial("tm_job_lane", "tm_job", ["concurrency_key", "run_at"], "slot IS NOT NULL", ["concurrency_key", "run_at"])
    _partial("tm_occurrence_deadline", "tm_occurrence", ["deadline_at"], "state = 'running'", ["state", "deadline_at"])
    op.create_index("tm_occurrence_scheduled", "tm_occurrence", ["scheduled_at"], schema=_schema())
    op.create_index("tm_definition_origin", "tm_definition", ["origin"], schema=_schema())


def _schema() -> str | None:
    return op.get_context().opts.get("version_table_schema")


def _rename(table: str, old: str, new: str) -> None:
    quote = op.get_bind().dialect.identifier_preparer.quote
    name = ".".join(quote(part) for part in (_schema(), table) if part)
    op.execute(f"ALTER TABLE {name} RENAME COLUMN {quote(old)} TO {quote(new)}")


def _partial(name: str, table: str, columns: list[str], where: str, plain: list[str]) -> None:
    if op.get_bind().dialect.name in ("mysql", "mariadb"):
        op.create_index(name, table, plain, schema=_schema())
    else:
        op.create_index(name, table, columns, schema=_schema(), postgresql_where=text(where), sqlite_where=text(where))


def downgrade() -> None:
    for name in ("tm_job_due", "tm_job_turn", "tm_job_lane"):
        op.drop_index(name, "tm_job", schema=_schema())
    for name in ("tm_occurrence_deadline", "tm_occurrence_scheduled"):
        op.drop_index(name, "tm_occurrence", schema=_schema())
    op.drop_index("tm_definition_origin", "tm_definition", schema=_schema())
    _partial("tm_job_due", "tm_job", ["run_at"], "state = 'pending'", ["state", "run_at"])
    _tables().drop_all(op.get_bind(), checkfirst=False)
    # The first tables know nothing of instants that are only planned: they would take them for owed.
    occurrence = sa.table("tm_occurrence", sa.column("decided_at"), schema=_schema())
    op.execute(occurrence.delete().where(occurrence.c.decided_at.is_(None)))
    for name in ("decided_at", "deadline_at"):
        op.drop_column("tm_occurrence", name, schema=_schema())
    _rename("tm_definition", "task_timeout", "timeout")
    for column in _definition():
        op.drop_column("tm_definition", column.name, schema=_schema())
    for table in ("tm_job", "tm_dead_letter"):
        for column in _job():
            op.drop_column(table, column.name, schema=_schema())
