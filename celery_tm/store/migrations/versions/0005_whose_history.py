"""The name of the definition on its jobs, dead letters and executions: its history is one stretch of an index."""

from alembic import op
from sqlalchemy import Column, String, text

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
        op.add_column(table, Column("definition", String(100)), schema=_schema())
        op.execute(_filled(table))
    for name, (columns, where) in INDEXES.items():
        some = {} if _is_mysql() else {"postgresql_where": text(where), "sqlite_where": text(where)}
        op.create_index(name, "tm_execution", list(columns), schema=_schema(), **some)


def _filled(table: str) -> str:
    """Return the statement that names the definition of what is there; that of one that was removed is not known."""
    ours, occurrence, definition = _named(table), _named("tm_occurrence"), _named("tm_definition")
    name = (
        f"SELECT d.name FROM {occurrence} o JOIN {definition} d ON d.id = o.definition WHERE o.id = {ours}.occurrence"
    )
    return f"UPDATE {ours} SET definition = ({name}) WHERE occurrence IS NOT NULL"


def _named(table: str) -> str:
    quote = op.get_bind().dialect.identifier_preparer.quote
    return ".".join(quote(part) for part in (_schema(), table) if part)


def _is_mysql() -> bool:
    return op.get_bind().dialect.name in ("mysql", "mariadb")


def _schema() -> str | None:
    return op.get_context().opts.get("version_table_schema")


def downgrade() -> None:
    for name in INDEXES:
        op.drop_index(name, "tm_execution", schema=_schema())
    for table in TABLES:
        op.drop_column(table, "definition", schema=_schema())
