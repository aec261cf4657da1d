"""What all tables have in common: their metadata, their options on MySQL, and indexes over a part of the rows."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Index, MetaData, text

metadata = MetaData()
# Keys and names compare to the letter everywhere; MySQL's default would ignore case.
OPTIONS: dict[str, Any] = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def partial(name: str, *columns: str, where: str, plain: tuple[str, ...] | None = None) -> tuple[Index, Index]:
    """Return an index over the rows that `where` names; MySQL, which knows none such, indexes `plain` or all rows."""
    some = Index(name, *columns, postgresql_where=text(where), sqlite_where=text(where))
    every = Index(name, *(plain or columns))
    with_parts: Any = ("postgresql", "sqlite")
    without: Any = ("mysql", "mariadb")
    return some.ddl_if(dialect=with_parts), every.ddl_if(dialect=without)
