"""`celery -A app tm occurrences`: the instants of a definition and what was decided about each."""

from __future__ import annotations

from dataclasses import replace

import click

from ..domain.occurrence import Occurrence
from ..management import TimeManagement
from .common import as_json, example, limit_option, plain, show, where_told, with_tm
from .report import counted

COLUMNS = ("scheduled_at", "state", "reason", "started_at", "ended_at")
INSTANTS = ("scheduled_at", "started_at", "ended_at")


@click.command(
    name="occurrences",
    help="List the instants of a definition, the latest first, with what was decided and how it ended.",
    epilog=example("occurrences nightly --limit 10"),
)
@click.argument("name")
@limit_option
@as_json
@with_tm
def command(tm: TimeManagement, name: str, limit: int, as_json: bool) -> None:
    """List the occurrences."""
    rows = [_row(occurrence) for occurrence in tm.occurrences(name, limit=limit)]
    columns = where_told(COLUMNS, rows, "steps", "id")
    show(rows, columns=columns, json_wanted=as_json, empty="nothing was decided yet")


def _row(occurrence: Occurrence) -> dict[str, object]:
    """Return an occurrence without its report: that has a command of its own."""
    told = {name: value for name, value in plain(replace(occurrence, report=None)).items() if name != "report"}
    steps = counted(occurrence.report["counts"]) if occurrence.report else None
    return {**told, **{name: getattr(occurrence, name) for name in INSTANTS}, "steps": steps}
