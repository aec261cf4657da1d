"""The name of the definition on its jobs, dead letters and executions: its history is one stretch of an index."""

from sqlalchemy import Column, String

from celery_tm.store import online

revision = "0005"
down_revision = "0004"

TABLES = ("tm_job", "tm_dead_letter", "tm_execution")
INDEXES = {
    "tm_execution_definition": (("definition", "completed_at"), "definition IS NOT NULL"),
    "tm_execution_entity": (("entity_id", "completed_at"), "entity_id IS NOT NULL"),
    "tm_execution_trouble": (("outcome", "completed_at"), "outcome <> 'succeeded'"),
}


def upgrade() -> None:
    for table in TABLES:
        online.add_columns(table, Column("definition", String(100)))
    for table in TABLES:
        _fill(table)
    # Indexes come last: a column that has none is filled without touching any.
    for name, (columns, where) in INDEXES.items():
        online.add_index(name, "tm_execution", *columns, where=where)


def _fill(table: str) -> None:
    """Name the definition of what is there; that of one that was removed is not known."""
    ours, occurrence, definition = (online.named(name) for name in (table, "tm_occurrence", "tm_definition"))
    known = f"{occurrence} o JOIN {definition} d ON d.id = o.definition WHERE o.id = {ours}.occurrence"
    left = f"{ours}.occurrence IS NOT NULL AND {ours}.definition IS NULL AND EXISTS (SELECT 1 FROM {known})"
    online.fill(table, "definition", f"(SELECT d.name FROM {known})", where=left)


def downgrade() -> None:
    for name in INDEXES:
        online.drop_index(name, "tm_execution")
    for table in TABLES:
        online.drop_columns(table, "definition")
