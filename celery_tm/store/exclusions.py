"""Statements that leave out rows which this process has set aside, however many there are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Select

from .database import Transaction

FEW = 1000  # ids that a statement names; SQLite takes no more than 32,766 parameters, and MySQL plans long lists badly


def leave_out(
    tx: Transaction,
    query: Select[Any],
    key: ColumnElement[Any],
    skip: Collection[str],
    *,
    limit: int,
    parameters: Mapping[str, Any] | None = None,
) -> Select[Any]:
    """Return an ordered query for its first `limit` rows, without those that `skip` names.

    Of many, the ids of so many more rows are read in the same order, and the query names the first that are not left out.
    """
    if not skip:
        return query
    if len(skip) <= FEW:
        return query.where(key.not_in(list(skip)))
    left_out = set(skip)
    first = tx.execute(query.with_only_columns(key).limit(limit + len(left_out)), parameters).scalars()
    return query.where(key.in_([id for id in first if id not in left_out][:limit]))
