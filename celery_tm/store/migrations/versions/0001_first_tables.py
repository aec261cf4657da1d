"""The first tables. A frozen copy of what store.tables was then: never edited again."""

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, MetaData, SmallInteger, String, Table, UniqueConstraint, text

from celery_tm.store import online
from celery_tm.store.types import Duration, Instant, Json, LongText

revision = "0001"
down_revision = None

metadata = MetaData()
# Keys and names compare to the letter everywhere; MySQL's default would ignore case.
OPTIONS = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def partial(name: str, *columns: str, where: str, plain: tuple[str, ...] | None = None) -> tuple[Index, Index]:
    """Return an index over the rows that `where` names; MySQL, which knows none such, indexes `plain` or all rows."""
    some = Index(name, *columns, postgresql_where=text(where), sqlite_where=text(where))
    every = Index(name, *(plain or columns))
    return some.ddl_if(dialect=("postgresql", "sqlite")), every.ddl_if(dialect=("mysql", "mariadb"))


def _job_columns() -> list[Column[object]]:
    return [
        Column("id", String(155), primary_key=True),
        Column("task", String(255), nullable=False),
        Column("args", LongText),
        Column("kwargs", LongText),
        Column("dedupe_key", String(255)),
        Column("keep_key", Duration),
        Column("entity_id", String(200)),
        Column("scope", Json),
        Column("run_at", Instant, nullable=False),
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
        Column("concurrency_key", String(255)),
        Column("occurrence", String(36)),
        Column("step", String(100)),
        Column("source", String(10), nullable=False),
        Column("options", Json),
        Column("cancel_requested", Boolean, nullable=False),
        Column("progress", LongText),
        Column("last_error", LongText),
        Column("actor", String(255)),
    ]


job = Table(
    "tm_job",
    metadata,
    *_job_columns(),
    UniqueConstraint("dedupe_key", "task", name="tm_job_key"),
    *partial("tm_job_due", "run_at", where="state = 'pending'", plain=("state", "run_at")),
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
    Column("job", String(155), nullable=False),
    Column("task", String(255), nullable=False),
    Column("source", String(10), nullable=False),
    Column("occurrence", String(36)),
    Column("entity_id", String(200)),
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
    **OPTIONS,
)

key = Table(
    "tm_key",
    metadata,
    Column("task", String(255), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("job", String(155), nullable=False),
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
    Column("task", String(255), nullable=False),
    Column("args", LongText, nullable=False),
    Column("kwargs", LongText, nullable=False),
    Column("schedule_kind", String(20), nullable=False),
    Column("schedule", LongText, nullable=False),
    Column("timezone", String(64), nullable=False),
    Column("gap", String(10), nullable=False),
    Column("fold", String(10)),
    Column("starts_at", Instant),
    Column("ends_at", Instant),
    Column("enabled", Boolean, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("group", String(100)),
    Column("queue", String(255)),
    Column("priority", SmallInteger),
    Column("max_retries", Integer),
    Column("retry", Json),
    Column("overlap", String(20), nullable=False),
    Column("recovery", String(20), nullable=False),
    Column("timeout", Duration),
    Column("options", Json),
    Column("version", Integer, nullable=False),
    Column("planned_until", Instant, nullable=False),
    Column("next_run_at", Instant),
    Column("last_run_at", Instant),
    Column("created_at", Instant, nullable=False),
    Column("created_by", String(255)),
    Column("updated_at", Instant, nullable=False),
    Column("updated_by", String(255)),
    UniqueConstraint("name", name="tm_definition_name"),
    Index("tm_definition_due", "next_run_at"),
    Index("tm_definition_group", "group"),
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
    Column("started_at", Instant),
    Column("ended_at", Instant),
    Column("report", Json),
    Index("tm_occurrence_definition", "definition", "scheduled_at"),
    *partial(
        "tm_occurrence_active",
        "definition",
        where="state IN ('pending', 'queued', 'running')",
        plain=("definition", "state"),
    ),
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


def upgrade() -> None:
    online.create_tables(metadata)


def downgrade() -> None:
    online.drop_tables(metadata)
