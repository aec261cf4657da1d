"""`celery -A app tm replay`: run an occurrence that has ended once more."""

from __future__ import annotations

import click

from ..management import TimeManagement
from .common import actor_option, as_json, example, show_one, with_tm


@click.command(
    name="replay",
    help="Run an occurrence that has ended once more, as a new one, under its definition's overlap rule.",
    epilog=example('replay 4e0a44f4-6a5b-5d4c-9a57-3f5a4d1c0b7e --reason "the report was empty"'),
)
@click.argument("occurrence")
@click.option("--reason", required=True, help="Why, for the audit.")
@actor_option
@as_json
@with_tm
def command(tm: TimeManagement, occurrence: str, reason: str, actor: str | None, as_json: bool) -> None:
    """Run it once more."""
    made = tm.replay(occurrence, actor=actor, reason=reason)
    value = {"occurrence": made.id, "state": str(made.state), "reason": made.reason, "replay_of": made.replay_of}
    show_one(value, json_wanted=as_json)
