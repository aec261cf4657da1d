"""`celery -A app tm occurrences`: the instants of a definition and what was decided about each."""

from __future__ import annotations

import click

from ..domain.occurrence import Occurrence
from ..management import TimeManagement
from .common import as_json, example, limit_option, plain, show, with_tm

COLUMNS = ("scheduled_at", "state", "reason", "started_at", "ended_at", "id")
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
    show(rows, columns=COLUMNS, json_wanted=as_json, empty="nothing was decided yet")


def _row(occurrence: Occurrence) -> dict[str, object]:
    return {**plain(occurrence), **{name: getattr(occurrence, name) for name in INSTANTS}}
