"""`celery -A app tm audit`: who changed what, when and why."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from ..management import TimeManagement
from ..presentation import Rows
from .common import (
    as_json,
    before_option,
    example,
    limit_option,
    many,
    since_option,
    since_until,
    tell_next,
    until_option,
    with_tm,
)
from .output import cell, show

COLUMNS = ("at", "actor", "action", "object", "reason", "changed")


@click.command(
    name="audit",
    help="Show who changed what, when and why, the latest first.",
    epilog=example("audit --object definition:nightly"),
)
@click.option("--object", metavar="KIND:NAME", help="Only about this, e.g. definition:nightly or job:ID.")
@click.option("--actor", help="Only by them; SYSTEM: what nobody did in person.")
@click.option("--action", help="Only this act, e.g. edit, pause, revive.")
@since_option
@until_option
@before_option
@limit_option
@as_json
@with_tm
def command(tm: TimeManagement, limit: int, before: str | None, as_json: bool, **options: Any) -> None:
    """Show who changed what."""
    found = many(partial(tm.audit, **since_until(options)), limit=limit, before=before)
    show_rows = Rows(tm)
    rows = [show_rows.audit_line(line) for line in found]
    if not as_json:
        rows = [row | {"changed": _changed(row["before"] or {}, row["after"] or {})} for row in rows]
    filtered = any(value is not None for value in options.values())
    empty = "nothing like that was changed" if filtered else "nothing was changed yet"
    show(rows, columns=COLUMNS, json_wanted=as_json, empty=empty)
    tell_next(found, "--before")


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Return what was and what is, field by field."""
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    told = [f"{name}: {cell('', before.get(name))} → {cell('', after.get(name))}" for name in names]
    return "; ".join(told) or None
