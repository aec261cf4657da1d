"""How a job's body ended while what follows it is handed on, and the message that several jobs share."""

from alembic import op
from sqlalchemy import Column, String

from celery_tm.store.types import Json

revision = "0003"
down_revision = "0002"


def _job() -> list[Column[object]]:
    return [Column("ended", Json), Column("carrier", String(36))]


def upgrade() -> None:
    for table in ("tm_job", "tm_dead_letter"):
        for column in _job():
            op.add_column(table, column, schema=_schema())


def _schema() -> str | None:
    return op.get_context().opts.get("version_table_schema")


def downgrade() -> None:
    # The tables before know no ends that are still followed: they would run such a body again.
    quote = op.get_bind().dialect.identifier_preparer.quote
    name = ".".join(quote(part) for part in (_schema(), "tm_job") if part)
    op.execute(f"DELETE FROM {name} WHERE ended IS NOT NULL")
    for table in ("tm_job", "tm_dead_letter"):
        for column in _job():
            op.drop_column(table, column.name, schema=_schema())
