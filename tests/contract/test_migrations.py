"""Migrations are made of the steps of `store.online`, which lock no big table for long and can be repeated."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer

import celery_tm
from celery_tm.errors import InvalidValue
from celery_tm.store import online

VERSIONS = Path(celery_tm.__file__).parent / "store" / "migrations" / "versions"
MIGRATIONS = sorted(VERSIONS.glob("*.py"))
DIRECT = {"execute", "exec_driver_sql", "scalar", "create_all", "drop_all", "get_bind", "create", "drop"}


def blocking(text: str) -> list[str]:
    """Return what a migration does past the steps that are known not to block, or not to need to be done in one go."""
    found = []
    for node in ast.walk(ast.parse(text)):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [name.name for name in node.names] if isinstance(node, ast.Import) else []
        found += [f"imports {module}" for module in modules if module.split(".")[0] not in ("sqlalchemy", "celery_tm")]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value
            ours = isinstance(owner, ast.Name) and owner.id == "online"
            if node.func.attr in DIRECT and not ours:
                found.append(f"calls {node.func.attr}")
    return found


@pytest.mark.parametrize("path", MIGRATIONS, ids=lambda path: path.stem)
def test_a_migration_does_nothing_that_blocks(path: Path) -> None:
    assert blocking(path.read_text()) == []


@pytest.mark.parametrize(
    "text",
    [
        "from alembic import op\n\ndef upgrade():\n    op.create_index('x', 'tm_execution', ['task'])",
        "import alembic.op",
        "from celery_tm.store import online\n\ndef upgrade():\n    online.op.get_bind().exec_driver_sql('DELETE')",
        "def upgrade():\n    metadata.create_all(bind)",
        "def upgrade():\n    Index('x', table.c.task).create(bind)",
        "import psycopg",
    ],
)
def test_one_that_does_it_the_blocking_way_is_refused(text: str) -> None:
    assert blocking(text)


def test_a_column_that_would_rewrite_or_refuse_the_rows_there_are_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"column tm_job\.x: rows that are there have no value for it; let it be empty"):
        online.add_columns("tm_job", Column("x", Integer, nullable=False))


def test_the_template_of_the_next_migration_uses_the_steps() -> None:
    template = (VERSIONS.parent / "script.py.mako").read_text()
    assert "from celery_tm.store import online" in template
    assert "alembic" not in template
