"""`celery -A app tm prune`: delete what is older than its retention."""

from __future__ import annotations

import click

from ..management import TimeManagement
from ..presentation import plain
from .common import as_json, example, with_tm
from .output import show_one


@click.command(
    name="prune",
    help="Delete what is older than its retention (tm_keep_…); what is owed, dead letters and definitions stay.",
    epilog=example("prune"),
)
@as_json
@with_tm
def command(tm: TimeManagement, as_json: bool) -> None:
    """Delete old records."""
    show_one(plain(tm.prune()), json_wanted=as_json)
