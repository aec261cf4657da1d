"""Every row of every table, to compare what was there with what is there."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from celery_tm import TimeManagement
from celery_tm.store import tables

RESTLESS = frozenset({"tm_node", "tm_mark"})  # nodes and apps are seen again and again


def all_rows(tm: TimeManagement) -> dict[str, list[Any]]:
    """Return what all tables hold, by name."""
    with tm.installation.database.transaction(write=False) as tx:
        return {
            table.name: sorted(map(repr, tx.execute(select(table))))
            for table in tables.metadata.sorted_tables
            if table.name not in RESTLESS
        }
