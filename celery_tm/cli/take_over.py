"""`celery -A app tm take-over`: move what another app has in these tables to this one."""

from __future__ import annotations

import click

from ..management import TimeManagement
from .common import actor_option, as_json, example, reason_option, with_tm
from .output import show_one


@click.command(
    name="take-over",
    help="Move the definitions, jobs and dead letters of the app NAME to this app, say after it was renamed. No beat of "
    "NAME may run. An empty NAME means rows that name no app.",
    epilog=example("take-over shop"),
)
@click.argument("name")
@actor_option
@reason_option
@as_json
@with_tm
def command(tm: TimeManagement, name: str, actor: str | None, reason: str | None, as_json: bool) -> None:
    """Move rows of another app."""
    tm.take_over(name, actor=actor, reason=reason)
    if as_json:
        show_one({"before": name, "after": tm.installation.database.app}, json_wanted=True)
    else:
        click.echo(f"what app {name!r} had belongs to app {tm.installation.database.app!r} now")
