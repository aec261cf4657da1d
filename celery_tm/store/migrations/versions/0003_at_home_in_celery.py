"""How a job's body ended while what follows it is handed on, and the message that several jobs share."""

from sqlalchemy import Column, String

from celery_tm.store import online
from celery_tm.store.types import Json

revision = "0003"
down_revision = "0002"


def _job() -> list[Column[object]]:
    return [Column("ended", Json), Column("carrier", String(36))]


def upgrade() -> None:
    for table in ("tm_job", "tm_dead_letter"):
        online.add_columns(table, *_job())


def downgrade() -> None:
    # The tables before know no ends that are still followed: they would run such a body again.
    if online.has_column("tm_job", "ended"):
        online.delete_rows("tm_job", where="ended IS NOT NULL")
    for table in ("tm_job", "tm_dead_letter"):
        online.drop_columns(table, *(column.name for column in _job()))
