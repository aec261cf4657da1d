"""Limits of attempts, what executions keep of their jobs, and what files and code declared last.

- tm_job: when a running attempt counts as stuck, and how long its key is kept if it fails or is cancelled.
- tm_execution: key, scope and due time of its job, and the backoff that followed; tm_scope finds executions by scope.
- tm_key: how the job that kept its key ended.
- tm_definition: what files and code declared last, several groups, a hook that blocks. tm_occurrence: values of its own.
"""

from sqlalchemy import Boolean, Column, Index, MetaData, String, Table, false

from celery_tm.store import online
from celery_tm.store.types import Duration, Instant, Json

revision = "0007"
down_revision = "0006"

OPTIONS = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def _columns() -> dict[str, list[Column[object]]]:
    return {
        "tm_job": _job(),
        "tm_dead_letter": _job(),
        "tm_execution": [
            Column("dedupe_key", String(255)),
            Column("scope", Json),
            Column("run_at", Instant),
            Column("next_delay", Duration),
        ],
        "tm_key": [Column("outcome", String(10), nullable=False, server_default="succeeded")],
        "tm_definition": [
            Column("declared", Json),
            Column("groups", Json),
            Column("on_start_blocking", Boolean, nullable=False, server_default=false()),
        ],
        "tm_calendar": [Column("declared", Json)],
        "tm_occurrence": [Column("overrides", Json)],
    }


def _job() -> list[Column[object]]:
    return [Column("stuck_at", Instant), Column("keep_failed", Duration), Column("keep_cancelled", Duration)]


def _tables() -> MetaData:
    metadata = MetaData()
    Table(
        "tm_scope",
        metadata,
        Column("name", String(100), primary_key=True),
        Column("value", String(200), primary_key=True),
        Column("completed_at", Instant, primary_key=True),
        Column("execution", String(36), primary_key=True),
        Index("tm_scope_execution", "execution"),
        **OPTIONS,
    )
    return metadata


def upgrade() -> None:
    for table, columns in _columns().items():
        online.add_columns(table, *columns)
    online.create_tables(_tables())
    online.add_index("tm_dead_letter_key", "tm_dead_letter", "dedupe_key", "task", where="dedupe_key IS NOT NULL")


def downgrade() -> None:
    # What the release before could not read, or would take for something else.
    online.fill("tm_execution", "outcome", "'timeout'", where="outcome = 'stale'")
    if online.has_column("tm_key", "outcome"):
        online.delete_rows("tm_key", where="outcome <> 'succeeded'", key="job")
    online.drop_tables(_tables())
    online.drop_index("tm_dead_letter_key", "tm_dead_letter")
    for table, columns in _columns().items():
        online.drop_columns(table, *(column.name for column in columns))
