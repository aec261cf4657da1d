"""`celery -A app tm prune`: delete what is older than its retention, or more than is to be kept."""

from __future__ import annotations

import click

from ..management import TimeManagement
from ..presentation import plain
from .common import as_json, example, with_tm
from .output import show_one
from .waiting import working


@click.command(
    name="prune",
    help="Delete what is older than its retention (tm_keep_…), or more than tm_keep_rows; what is owed, dead letters and "
    "definitions stay.",
    epilog=example("prune"),
)
@as_json
@with_tm
def command(tm: TimeManagement, as_json: bool) -> None:
    """Delete old records."""
    with working("deleting what is too old"):
        pruned = tm.prune()
        while not pruned.finished:
            pruned += tm.prune()
    show_one(plain(pruned), json_wanted=as_json)
